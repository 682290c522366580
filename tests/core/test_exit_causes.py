"""By which causes ends are counted: few, whatever the reason says."""

from __future__ import annotations

import pytest

from asyncpool._core.figures.exit_causes import CAUSES, exit_cause


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("roll", "roll"),
        ("max_memory", "max_memory"),
        ("close", "close"),
        ("uncaught exception", "uncaught exception"),
        ("retire_worker()", "retire_worker"),
        ("retire()", "retire"),
        ("request_replacement(): worn: out", "request_replacement"),
        ("timeout of job 12", "timeout"),
        ("cancellation of job 3", "cancellation"),
        ("", "other"),
        ("what nobody knows", "other"),
    ],
)
def test_a_cause_names_no_job_and_no_text(reason: str, cause: str) -> None:
    assert exit_cause(reason) == cause
    assert cause in CAUSES
