"""Why a worker ended, as a pool writes and reads it."""

from __future__ import annotations

import pytest

from asyncpool._core.slots.lifecycle import (
    CAUSES,
    detail_for_client,
    exit_cause,
    job_not_ended,
    killed_since,
    reason_for_client,
    reason_for_job,
)


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


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ("killed since job 30 did not end", "killed since job 1 did not end"),
        (
            "killed since job 30, which it ran too, did not end",
            "killed since job 1, which it ran too, did not end",
        ),
        ("job 30 did not end", "job 1 did not end"),
        ("killed since job 40 did not end", "killed since a job did not end"),
        (
            "killed since job 40, which it ran too, did not end",
            "killed since another job did not end",
        ),
        ("job 40 did not end", "a job did not end"),
        ("ValueError: job 30 did not end", "ValueError: job 30 did not end"),
        ("job 30 did not end well", "job 30 did not end well"),
    ],
)
def test_a_detail_names_the_clients_own_jobs_only(detail: str, told: str) -> None:
    assert detail_for_client(detail, {30: 1}) == told


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("timeout of job 30", "timeout of job 1"),
        ("cancellation of job 40", "cancellation"),
        ("roll", "roll"),
        ("retire(): end of job thirty", "retire(): end of job thirty"),
    ],
)
def test_a_reason_names_the_clients_own_jobs_only(reason: str, told: str) -> None:
    assert reason_for_client(reason, {30: 1}) == told


@pytest.mark.parametrize("cause", ["timeout", "cancellation"])
def test_what_is_written_of_a_job_is_read_again(cause: str) -> None:
    reason = reason_for_job(cause, 30)
    assert exit_cause(reason) == cause
    assert reason_for_client(reason, {30: 1}) == reason_for_job(cause, 1)


@pytest.mark.parametrize("beside", [False, True])
def test_the_number_in_a_detail_is_read_again(*, beside: bool) -> None:
    detail, told = (job_not_ended(job, beside=beside) for job in (30, 1))
    assert detail_for_client(detail, {30: 1}) == told
    assert detail_for_client(killed_since(detail), {30: 1}) == killed_since(told)
