"""Find out which job a stack belongs to, and what the calls in it are called.

Nothing is noted for this while jobs run.  The frames of a few functions of the worker say it:
each of them has the context of the job, in which the job's function is noted anyway.  The
functions are known by their names here, since this module is below theirs.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from asyncpool._core.base.names import function_name
from asyncpool._core.profile.profile_messages import MAX_DEPTH, as_name
from asyncpool._core.profile.stack_counts import NO_JOB
from asyncpool._worker.api.context import running

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context
    from types import CodeType, FrameType
    from typing import Any

    from asyncpool._core.profile.stack_counts import Stack

# The innermost call of a job that waits in its event loop, and what the worker does for a job.
AWAITING = "(awaiting)"
ASYNCPOOL = "(asyncpool)"

_JOB, _STEP, _COROUTINE, _LANES = range(1, 5)

# The frames that say what runs, and which of their variables has the context of the job, or is
# that context.
_MARKS = {
    ("asyncpool._worker.job.execute", "JobRunner.run"): (_JOB, "context", ""),
    ("asyncpool._worker.lanes.concurrent_jobs", "ConcurrentJobs._run"): (
        _JOB,
        "lane",
        "context",
    ),
    ("asyncpool._worker.lanes.lanes", "Lane._take"): (_STEP, "self", "context"),
    ("asyncio.events", "Handle._run"): (_STEP, "self", "_context"),
    ("asyncpool._worker.job.coroutines", "Coroutines.run"): (_COROUTINE, "", ""),
    ("asyncpool._worker.lanes.concurrent_jobs", "ConcurrentJobs._run_loop"): (
        _LANES,
        "",
        "",
    ),
}
_CALL = ("asyncpool._worker.job.execute", "JobRunner.call")

# What stands for the function of a map until that is unpickled.
_CHUNK = "asyncpool._core.map.chunks.run_chunk"

# What runs the calls of users: the outermost calls from there are left out.
_RUNNERS = ("asyncpool.", "asyncio.", "concurrent.futures.", "selectors.", "threading.")
# If a thread is in one of these, it waits.
_WAITS = ("concurrent.futures.", "queue.", "selectors.", "threading.")

_MOST_CODES = 20_000
_DEEPER = "(deeper)"


class _Code:
    """What is known of a code object."""

    __slots__ = (
        "attribute",
        "is_call",
        "is_runner",
        "is_wait",
        "mark",
        "name",
        "variable",
    )

    def __init__(self, module: str, code: CodeType) -> None:
        name = code.co_qualname
        self.mark, self.variable, self.attribute = _MARKS.get(
            (module, name), (0, "", "")
        )
        self.is_call = (module, name) == _CALL
        dotted = f"{module}."
        self.is_runner = dotted.startswith(_RUNNERS)
        self.is_wait = dotted.startswith(_WAITS)
        if module == "__mp_main__":  # what workers call the script
            module = "__main__"
        self.name = as_name(f"{module}.{name}:{code.co_firstlineno}")


class StackReader:
    """Reads the stacks of the threads of this worker.

    Args:
        main: The thread that jobs run in.
        ours: Other threads of the worker, which belong to no job.
        waiting_frames: Returns the frames in which a coroutine waits, the outermost first.
    """

    def __init__(
        self,
        main: int,
        ours: tuple[int, ...],
        waiting_frames: Callable[[Any], Any],
    ) -> None:
        self._main = main
        self._ours = {*ours, get_ident()}
        self._waiting_frames = waiting_frames
        self._codes: dict[CodeType, _Code] = {}
        self._turn = 0

    def read(self) -> tuple[Stack | None, list[Stack]]:
        """Return the stack of the job, if there is one; and those of threads that jobs started."""
        frames = sys._current_frames()  # noqa: SLF001 - public
        # With the frame of this call it would be a cycle, and keep what the jobs have.
        for thread in self._ours:
            frames.pop(thread, None)
        main = frames.pop(self._main, None)
        stack = None if main is None else self._read_main(main)
        others = [
            other for frame in frames.values() if (other := self._read_other(frame))
        ]
        return stack, others

    def _read_main(self, frame: FrameType | None) -> Stack | None:
        calls: list[_Code] = []
        step: tuple[str, int] | None = None
        coroutine: Any = None
        while frame is not None:
            code = self._code_of(frame)
            if code.mark == _JOB:
                return self._of_job(_job_in(frame, code), calls, coroutine)
            if code.mark == _LANES:
                if step is not None and not _is_idle(calls[: step[1]]):
                    return step[0], _named(calls[: step[1]])
                return self._of_lanes(frame.f_locals["self"].lanes)
            if code.mark == _COROUTINE:
                coroutine = frame.f_locals["self"].shown
            elif code.mark == _STEP and step is None:
                step = (_job_in(frame, code), len(calls))
            calls.append(code)
            frame = frame.f_back
        return None

    def _of_job(self, function: str, calls: list[_Code], coroutine: Any) -> Stack:
        if not _is_idle(calls):
            return function, _named(calls)
        if coroutine is not None:
            return function, self._awaited(coroutine)
        # A function in C has no frame of its own.
        return function, () if calls and calls[0].is_call else (ASYNCPOOL,)

    def _of_lanes(self, lanes: Any) -> Stack | None:
        """Return where one of the jobs waits, each time another one; the loop runs none now."""
        waiting = [lane for lane in list(lanes.by_job.values()) if lane.shown]
        if not waiting:
            return None
        self._turn += 1
        lane = waiting[self._turn % len(waiting)]
        return _function_in(lane.context), self._awaited(lane.shown)

    def _awaited(self, coroutine: Any) -> tuple[str, ...]:
        codes = [self._code_of(frame) for frame in self._waiting_frames(coroutine)]
        return (*_named(codes[::-1], MAX_DEPTH - 1), AWAITING)

    def _read_other(self, frame: FrameType | None) -> Stack | None:
        calls: list[_Code] = []
        while frame is not None:
            calls.append(self._code_of(frame))
            frame = frame.f_back
        # A thread that waits for others would cover what computes.
        if calls[0].is_wait or _is_idle(calls):
            return None
        return NO_JOB, _named(calls)

    def _code_of(self, frame: FrameType) -> _Code:
        found = self._codes.get(frame.f_code)
        if found is None:
            if len(self._codes) >= _MOST_CODES:  # they are made up, without end
                self._codes.clear()
            module = frame.f_globals.get("__name__")
            name = module if type(module) is str else "?"
            found = self._codes[frame.f_code] = _Code(name, frame.f_code)
        return found


def _job_in(frame: FrameType, code: _Code) -> str:
    """Return the function of the job that *frame* runs, which has a mark."""
    # Only in these frames, which are ours: the dict that Python 3.11 and 3.12 make of the
    # variables keeps what they have until the call returns.
    context = frame.f_locals.get(code.variable)
    if code.attribute:
        context = getattr(context, code.attribute, None)
    return ASYNCPOOL if context is None else _function_in(context)


def _function_in(context: Context) -> str:
    job = context.get(running)
    if job is None:
        return NO_JOB
    function: Any = job[4]
    if function is None or type(function) is bytes:  # it is not unpickled yet
        return ASYNCPOOL
    name = as_name(function if type(function) is str else function_name(function))
    return ASYNCPOOL if name == _CHUNK else name


def _is_idle(calls: list[_Code]) -> bool:
    """Tell whether there is no call of a user's among *calls*."""
    return all(code.is_runner for code in calls)


def _named(calls: list[_Code], most: int = MAX_DEPTH) -> tuple[str, ...]:
    """Return the names of *calls*, the outermost first, from the first one that is a user's on."""
    end = len(calls)
    while end and calls[end - 1].is_runner:
        end -= 1
    names = [code.name for code in calls[:end]][::-1]
    if len(names) > most:
        names[most - 1 :] = [_DEEPER]
    return tuple(names)
