"""Whatever a worker has written before it died, a row has bounds."""

from __future__ import annotations

from asyncpool._core.history.history import clip, crash_row
from tests.helpers.told_lines import BEGIN, crashed


def test_a_row_has_what_happened_with_stack_and_stderr() -> None:
    event = crashed(3.0, detail="it was told to")
    assert crash_row(event["at"], event["crash"]) == {
        "at": BEGIN + 3.0,
        "slot": 0,
        "generation": 1,
        "pid": 4000,
        "exit_code": None,
        "uptime": 12.0,
        "job_id": 7,
        "attempt": 1,
        "kind": "crash",
        "signal": "SIGSEGV",
        "detail": "it was told to",
        "function": "shop.resize",
        "next_step": "restart",
        "stack": 'File "shop.py", line 9 in resize',
        "stderr": ["Fatal Python error: Segmentation fault"],
    }


def test_its_texts_are_cut() -> None:
    event = crashed(
        0.0, stack="s" * 50_000, stderr_tail=("e" * 5_000,) * 200, signal=None
    )
    row = crash_row(event["at"], event["crash"])
    assert row["signal"] == ""
    assert len(row["stack"]) == 20_000
    assert len(row["stderr"]) == 80
    assert {len(line) for line in row["stderr"]} == {500}


def test_a_cut_shows() -> None:
    assert clip("abcdef", 4) == "abc…"
    assert clip("abcd", 4) == "abcd"
