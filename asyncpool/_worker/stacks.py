"""Tell where the jobs of this worker are: while they go on, and before one is ended.

The control thread calls this, and reads the frames of the other threads.  That takes some 50 us,
in which no job runs, and changes nothing.  If C code holds the GIL, this thread cannot run, and
the pool gets no answer.  The signal that makes a handler in C write the stacks is for workers that
are about to be killed: it may come while Python runs, and what it reads then may not be whole.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from _thread import allocate_lock, get_ident, start_new_thread
from itertools import islice
from traceback import walk_stack

from asyncpool._wire.messages import COROUTINE, is_ours, users_lines
from asyncpool._wire.page import JOB_KEY, LANE_STACK_SIZE

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any

    from asyncpool._worker.runner import JobRunner, Lane

# The most calls of a stack, the most threads, and the most characters: of a coroutine, and in all.
_DEEPEST = 100
_MOST_THREADS = 50
_LONGEST_COROUTINE = 16_384
_LONGEST = 60_000

_ORDER = "(most recent call first):"
_MAIN = f"Main thread {_ORDER}\n"

# Where something waits, and what it waits for.
_NAMES = (
    ("cr_frame", "cr_await"),
    ("ag_frame", "ag_await"),
    ("gi_frame", "gi_yieldfrom"),
)


def write_stacks(runner: JobRunner, job: int, attempt: int) -> None:
    """Write the stacks of all threads to the page, and where *job* is if several may run."""
    layout, lanes, file = runner.layout, runner.by_job, runner.control.page_fd
    os.lseek(file, layout.stacks, os.SEEK_SET)
    faulthandler.dump_traceback(file)
    several = layout.width > 1
    lane = lanes.get((job, attempt)) if several else (*lanes.values(), None)[0]
    tell = runner.server_stacks
    text = _waiting(runner, lane) if tell is None else tell(0)
    if several and lane is not None:
        # The dump shows a job that computes, too.  But if several jobs end at once, the pool
        # shows the dump with the first of them only.
        if not text and (main := _pop_main(runner, sys._current_frames())):  # noqa: SLF001 - public
            text = _MAIN + main
        note = JOB_KEY.pack(job, attempt) + text.encode(errors="replace")
        start, note = layout.stack_offset(lane.index), note[:LANE_STACK_SIZE]
        area = slice(start, start + LANE_STACK_SIZE)
        runner.page[area] = note.ljust(LANE_STACK_SIZE, b"\0")
    elif text:
        os.write(file, f"\n{text[:_LONGEST_COROUTINE]}\n".encode(errors="replace"))


def live_stacks(runner: JobRunner, wanted: int) -> bytes:
    """Return the stacks as text: of the jobs, and of threads that are not the worker's own.

    Args:
        runner: Has the jobs.
        wanted: The only job that is wanted; 0 for all that is there.
    """
    tell = runner.server_stacks
    if wanted and tell is not None:  # what a server has in place of jobs
        return tell(wanted).encode(errors="replace")[:_LONGEST]
    frames = sys._current_frames()  # noqa: SLF001 - public
    # The frame of this call would make a cycle, and keep what the jobs have.
    frames.pop(get_ident(), None)
    main = _pop_main(runner, frames)
    lanes = runner.by_job.copy()
    parts: list[str] = []
    for (job, attempt), lane in lanes.items():
        if wanted in {0, job}:
            _, _, text = _waiting(runner, lane).partition("\n")
            parts.append(f"Job {job}, attempt {attempt} {_ORDER}\n{text or main}")
    if not wanted:
        if not lanes and tell is not None:  # a server's tasks
            parts.append(tell(0).strip())
        if not lanes and main:  # its initializer, say
            parts.append(_MAIN + main)
        # Of other threads, those that somebody else than the worker has begun.
        known = getattr(sys.modules.get("threading"), "_active", {})
        for ident, frame in islice(frames.items(), _MOST_THREADS):
            lines = _lines(frame)
            if not is_ours(lines[-1]):
                name = getattr(known.get(ident), "name", f"0x{ident:x}")
                lines[_DEEPEST:] = []
                parts.append(f"Thread {name} {_ORDER}\n" + "\n".join(lines))
    return "\n".join(parts).encode(errors="replace")[:_LONGEST]


def _waiting(runner: JobRunner, lane: Lane | None) -> str:
    """Tell where the coroutine of a lane waits, or that of a broadcast; nothing if it computes."""
    awaited = runner.shown if lane is None or lane.context is None else lane.shown
    lines = [line_of(frame) for frame in islice(waiting_frames(awaited), _DEEPEST)]
    return "\n".join([COROUTINE, *lines[::-1]]) if lines else ""


def _pop_main(runner: JobRunner, frames: dict[int, FrameType]) -> str:
    """Return the calls of the job in the main thread; empty if there is none."""
    lines = _lines(frames.pop(runner.endings.main))
    return "\n".join(users_lines(lines)[:_DEEPEST])


def line_of(frame: FrameType) -> str:
    """Return a call as ``faulthandler`` writes it."""
    code = frame.f_code
    return f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}'


def waiting_frames(awaited: Any) -> Iterator[FrameType]:
    """Yield the frames in which *awaited* waits, if it does, the outermost first."""
    while awaited is not None:
        for frame_name, inner_name in _NAMES:
            frame = getattr(awaited, frame_name, None)
            if frame is not None and frame.f_back is None:  # or else it is running
                yield frame
                awaited = getattr(awaited, inner_name)
                break
        else:
            return


def _lines(frame: FrameType) -> list[str]:
    """Return a line for each call, the innermost first."""
    return [line_of(caller) for caller, _ in walk_stack(frame)]


def start_thread(run: Callable[[], object]) -> None:
    """Start a thread that calls *run*, and return as soon as it runs.

    A thread that has no number yet would be the first in the list of threads.  Of such a
    list, ``faulthandler`` writes no stack at all since Python 3.15, not even that of the
    thread that crashed.  ``threading.Thread`` waits, too; to import it takes a while.

    Raises:
        RuntimeError: If no thread can be started.
    """
    running = allocate_lock()
    running.acquire()

    def begin() -> None:
        running.release()
        run()

    start_new_thread(begin, ())
    running.acquire()
