"""Tell where the jobs of this worker are, while they go on.

The control thread calls this, and reads the frames of the other threads.  That takes some 50 us,
in which no job runs, and changes nothing.  If C code holds the GIL, this thread cannot run, and
the pool gets no answer.  The signal that makes a handler in C write the stacks is for workers that
are about to be killed: it may come while Python runs, and what it reads then may not be whole.
"""

from __future__ import annotations

import sys
from itertools import islice

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from types import FrameType

    from asyncpool._worker.job_ending.interrupts import Interrupts

_OURS = "asyncpool/_worker/"

# A job that calls them is inside of our calls, and yet not at its end.
_CALLED = "asyncpool/_worker/job/heartbeats.py"

# The most calls of a stack, the most threads, and the most characters in all.
_DEEPEST = 100
_MOST_THREADS = 50
_LONGEST = 60_000

_ORDER = "(most recent call first):"


def live_stacks(
    interrupts: Interrupts, running: tuple[int, int] | None, wanted: int
) -> bytes:
    """Return the stacks as text: of the jobs, and of threads that are not the worker's own.

    Args:
        interrupts: Knows what runs.
        running: The job and attempt that run, if there are no lanes.
        wanted: The only job that is wanted; 0 for all that is there.
    """
    frames = sys._current_frames()  # noqa: SLF001 - public
    main = _outside(_lines(frames.pop(interrupts.main, None)))
    if interrupts.lanes is not None:
        waiting = interrupts.lanes.waiting()
    elif running is not None:
        text = interrupts.stacks() if interrupts.stacks is not None else ""
        # Its first line is a heading.
        waiting = {running: "\n".join(text.strip().split("\n")[1:])}
    else:
        waiting = {}
    parts = [
        f"Job {job}, attempt {attempt} {_ORDER}\n{text or main}"
        for (job, attempt), text in waiting.items()
        if wanted in {0, job}
    ]
    if not wanted:
        if not waiting and interrupts.stacks is not None:  # a server's tasks
            parts.append(interrupts.stacks().strip())
        if not waiting and main:  # its initializer, say
            parts.append(f"Main thread {_ORDER}\n{main}")
        parts += _threads(frames)
    text = "\n".join(parts)
    return text.encode(errors="replace")[:_LONGEST]


def computing(interrupts: Interrupts) -> str:
    """Return the stack of the job that computes now; empty if none does."""
    frame = sys._current_frames().get(interrupts.main)  # noqa: SLF001 - public
    lines = _outside(_lines(frame))
    return f"Main thread {_ORDER}\n{lines}" if lines else ""


def _threads(frames: dict[int, FrameType]) -> list[str]:
    """Return the stacks of threads that somebody else than the worker has begun."""
    found: list[str] = []
    known = getattr(sys.modules.get("threading"), "_active", {})
    for ident, frame in islice(frames.items(), _MOST_THREADS):
        lines = _lines(frame)
        if not _is_ours(lines[-1]):
            name = getattr(known.get(ident), "name", f"0x{ident:x}")
            found.append(f"Thread {name} {_ORDER}\n" + "\n".join(lines[:_DEEPEST]))
    return found


def _lines(frame: FrameType | None) -> list[str]:
    """Return a line for each call, the innermost first."""
    lines: list[str] = []
    while frame is not None:
        code = frame.f_code
        lines.append(
            f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}'
        )
        frame = frame.f_back
    return lines


def _outside(lines: list[str]) -> str:
    """Return the calls of the main thread that are inside of our calls: the innermost ones."""
    shown: list[str] = []
    for line in lines:
        if not _is_ours(line):
            shown.append(line)
        elif shown and _CALLED not in line:
            return "\n".join(shown[:_DEEPEST])
    return ""  # whatever is left has called us


def _is_ours(line: str) -> bool:
    return _OURS in line
