"""What is shown of a worker's stacks."""

from __future__ import annotations

import faulthandler
import sys
import tempfile
import threading
from types import FrameType

import pytest

from asyncpool._core.wire.stacks import COROUTINE, are_whole, tidy

OURS = '  File "/somewhere/asyncpool/_worker/loop.py", line 20 in _serve'
BEATS = '  File "/somewhere/asyncpool/_worker/job/heartbeats.py", line 9 in heartbeat'
MAIN = "Thread 0x00007f (most recent call first):"
NOW = "Current thread 0x00007f (most recent call first):"
OTHER = "Thread 0x00007e (most recent call first):"
USER = '  File "/home/user/job.py", line 3 in work'
LIBRARY = '  File "/usr/lib/python3.11/socket.py", line 1 in recv'


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ([], []),
        ([MAIN, USER, OURS], [MAIN, USER]),
        ([MAIN, LIBRARY, USER, OURS, LIBRARY], [MAIN, LIBRARY, USER]),
        # The worker's own function that the job has called.
        ([MAIN, OURS, USER, OURS], [MAIN, USER]),
        ([MAIN, LIBRARY, BEATS, USER, OURS, LIBRARY], [MAIN, LIBRARY, USER]),
        ([OTHER, LIBRARY, OURS, "", MAIN, USER, OURS], [MAIN, USER]),
        (
            [OTHER, USER, LIBRARY, "", MAIN, USER, OURS],
            [MAIN, USER, OTHER, USER, LIBRARY],
        ),
        ([MAIN, OURS], [MAIN]),
        # It waits in an event loop.
        (
            [OTHER, OURS, "", MAIN, LIBRARY, OURS, "", COROUTINE, USER],
            [COROUTINE, USER, MAIN, LIBRARY],
        ),
        ([COROUTINE, USER], [COROUTINE, USER]),
        (
            [OTHER, OURS, "", MAIN, LIBRARY, OURS, OTHER, OURS, "", NOW, USER, OURS],
            [NOW, USER],
        ),
        ([OTHER, MAIN, USER], [MAIN, USER, OTHER]),
        (["  whatever it wrote"], ["  whatever it wrote"]),
    ],
)
def test_the_main_thread_comes_first_and_ours_not_at_all(
    lines: list[str], shown: list[str]
) -> None:
    assert tidy("\n".join(lines)) == "\n".join(shown)


OUTERMOST = '  File "<string>", line 1 in <module>'


@pytest.mark.parametrize(
    ("lines", "unchanged", "whole"),
    [
        ([], True, False),
        ([MAIN], True, False),
        ([OTHER, LIBRARY, OURS, ""], True, False),
        ([MAIN, USER, OURS], True, False),
        ([OTHER, LIBRARY, OURS, "", MAIN, USER, OURS, OUTERMOST], True, True),
        ([OTHER, LIBRARY, OURS, "", MAIN, USER, OURS, OUTERMOST], False, True),
        ([OTHER, LIBRARY, "  ..."], False, False),
        ([MAIN, USER, "  ..."], True, True),
    ],
)
def test_they_are_whole_with_the_outermost_call_of_the_main_thread(
    lines: list[str], *, unchanged: bool, whole: bool
) -> None:
    written = "".join(f"{line}\n" for line in lines).encode()
    before = written if unchanged else written[:-1]
    assert are_whole(written, before) is whole
    assert not are_whole(written[:-1], written[:-1])


def test_that_is_how_they_are_written() -> None:
    ready, leave = threading.Event(), threading.Event()

    def other_thread() -> None:
        ready.set()
        leave.wait()

    thread = threading.Thread(target=other_thread)
    thread.start()
    ready.wait()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        leave.set()
        thread.join()
        file.seek(0)
        first, second, *rest = tidy(file.read()).splitlines()
    frame: FrameType = sys._getframe()
    assert first.endswith("(most recent call first):")
    assert second.endswith(f"in {frame.f_code.co_name}")
    assert any(line.endswith("in other_thread") for line in rest)
