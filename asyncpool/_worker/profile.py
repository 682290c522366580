"""Sample a worker, in a thread of its own and for a bounded time.

A thread waits for the GIL like any other.  While code in C holds the GIL, the thread takes no
sample.  It gets the GIL when that code returns, and finds its caller.  So all looks that were
due meanwhile count for what it finds then, and the profile says how many they are.

Nothing is noted while jobs run about which job a stack belongs to.  The frames of a few functions
of the worker say it: each of them has the context of the job, in which the job's function is noted
anyway.  The functions are known by their names here, since this module is below theirs.
"""

from __future__ import annotations

import _thread  # threading would do, see _worker/__init__.py
import sys
from contextlib import suppress
from time import monotonic

from asyncpool._wire.profile import (
    MAX_DEPTH,
    NO_JOB,
    ProfileRequest,
    SampleChunk,
    as_name,
    count_stack,
    sampling_times,
)
from asyncpool._wire.records import Record
from asyncpool._worker.api import current, name_in
from asyncpool._worker.stacks import start_thread, waiting_frames

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context
    from types import CodeType, FrameType
    from typing import Any

    from asyncpool._wire.profile import Stack

    Send = Callable[[bytes, bool], None]

# How many different stacks are counted until the next report, and the seconds between two.
_MOST_STACKS = 2000
_REPORT_EVERY = 1.0

# Seconds after which the sampler makes Python code give up the GIL, in place of Python's 5 ms.
# In 5 ms a short job has come to its end and releases the GIL there, so hardly any sample would
# fall into it; see docs/decisions/observability.md.
_SWITCH_INTERVAL = 0.0001


class _Switching:
    """Has Python code give up the GIL sooner while there are samplers."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        # One that was told to end may not have done so when the next one begins.
        self._samplers = 0
        self._before = self._set = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._samplers:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(_SWITCH_INTERVAL)
                self._set = sys.getswitchinterval()  # in whole microseconds
            self._samplers += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._samplers -= 1
            # A job may have set another one meanwhile.
            if not self._samplers and sys.getswitchinterval() == self._set:
                sys.setswitchinterval(self._before)


_SWITCHING = _Switching()


class Sampler:
    """Samples this worker from now on, and sends what it finds.

    Args:
        request: What to sample.
        main: The thread that jobs run in.
        send: Sends the payload of a frame, and whether it is the last one.

    Raises:
        RuntimeError: If no thread can be started.
    """

    def __init__(self, request: ProfileRequest, main: int, send: Send) -> None:
        self._request, self._main, self._send = request, main, send
        self._control = _thread.get_ident()
        self._stacks: dict[Stack, int] = {}
        self._idle = self._skipped = self._missed = 0
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        start_thread(self._run)

    def stop(self) -> None:
        """End, and send nothing more."""
        if self._ended.locked():
            self._ended.release()

    def _run(self) -> None:
        try:
            with _SWITCHING:
                self._sample_all()
        except Exception as error:
            with suppress(Exception):  # it must not cost the worker
                self._report(f"{type(error).__name__}: {error}", last=True)

    def _sample_all(self) -> None:
        request, now = self._request, monotonic()
        reader = StackReader(self._main, self._control)
        times = sampling_times(request.rate, request.seconds, now)
        due, report_at = next(times, None), now + _REPORT_EVERY
        while due is not None:
            if self._ended.acquire(timeout=max(0.0, due - now)):
                return  # nobody wants it any more
            now, looks = monotonic(), 0
            while due is not None and due <= now:  # all but one are late
                looks, due = looks + 1, next(times, None)
            if looks:
                self._missed += looks - 1
                stack, others = reader.read()
                if stack is None:
                    self._idle += looks
                elif request.wants(stack[0]):
                    count_stack(self._stacks, stack, looks, _MOST_STACKS)
                else:
                    self._skipped += looks
                for other in others if request.wants(NO_JOB) else ():
                    count_stack(self._stacks, other, looks, _MOST_STACKS)
            if now >= report_at:
                report_at = now + _REPORT_EVERY
                self._report()
        self._report(last=True)

    def _report(self, error: str = "", *, last: bool = False) -> None:
        figures = self._idle, self._skipped, self._missed
        chunk = SampleChunk(self._stacks, figures, error)
        self._idle = self._skipped = self._missed = 0
        self._stacks = {}
        *payloads, final = chunk.pack()
        for payload in payloads:
            self._send(payload, False)
        self._send(final, last)


# The innermost call of a job that waits in its event loop, and what the worker does for a job.
AWAITING = "(awaiting)"
ASYNCPOOL = "(asyncpool)"

_JOB, _STEP, _LOOP, _CALL = range(1, 5)

# The frames that say what runs, and which of their variables has the context of the job, or is
# that context.
_RUNNER = "asyncpool._worker.runner"
_TELLING_FRAMES = {
    (_RUNNER, "JobRunner._run"): (_JOB, "context", ""),
    (_RUNNER, "JobRunner._run_loop"): (_LOOP, "", ""),
    (_RUNNER, "Lane._step"): (_STEP, "self", "context"),
    ("asyncio.events", "Handle._run"): (_STEP, "self", "_context"),
    (_RUNNER, "JobRunner._call"): (_CALL, "", ""),
}

# What stands for the function of a map until that is unpickled.
_CHUNK = "asyncpool._worker.api.run_chunk"

# What runs the calls of users: the outermost calls from there are left out.
_RUNNERS = ("asyncpool.", "asyncio.", "concurrent.futures.", "selectors.", "threading.")
# If a thread is in one of these, it waits.
_WAITS = ("concurrent.futures.", "queue.", "selectors.", "threading.")

_MOST_CODES = 20_000
_DEEPER = "(deeper)"


class _Code(Record):
    """What is known of a code object."""

    name: str
    mark: int
    variable: str
    attribute: str
    is_runner: bool
    is_wait: bool


def _known_of(module: str, code: CodeType) -> _Code:
    telling = _TELLING_FRAMES.get((module, code.co_qualname), (0, "", ""))
    dotted = f"{module}."
    if module == "__mp_main__":  # what workers call the script
        module = "__main__"
    return _Code(
        as_name(f"{module}.{code.co_qualname}:{code.co_firstlineno}"),
        *telling,
        dotted.startswith(_RUNNERS),
        dotted.startswith(_WAITS),
    )


class StackReader:
    """Reads the stacks of the threads of this worker.

    Args:
        main: The thread that jobs run in.
        control: The control thread; like this one it belongs to no job.
    """

    def __init__(self, main: int, control: int) -> None:
        self._main = main
        self._ours = {control, _thread.get_ident()}
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
        while frame is not None:
            code = self._code_of(frame)
            if code.mark == _JOB:
                return _of_job(_job_in(frame, code), calls)
            if code.mark == _LOOP:
                if step is not None and not _is_idle(calls[: step[1]]):
                    return step[0], _named(calls[: step[1]])
                return self._of_lanes(frame.f_locals["self"])
            if code.mark == _STEP and step is None:
                step = (_job_in(frame, code), len(calls))
            calls.append(code)
            frame = frame.f_back
        return None

    def _of_lanes(self, runner: Any) -> Stack | None:
        """Return where one of the jobs waits, each time another one; the loop runs none now."""
        lanes = [(lane.context, lane.shown) for lane in list(runner.by_job.values())]
        waiting = [(context, shown) for context, shown in lanes if context is not None]
        if not waiting:
            return None
        self._turn += 1
        context, shown = waiting[self._turn % len(waiting)]
        return _function_in(context), self._awaited(shown)

    def _awaited(self, coroutine: Any) -> tuple[str, ...]:
        codes = [self._code_of(frame) for frame in waiting_frames(coroutine)]
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
            found = self._codes[frame.f_code] = _known_of(name, frame.f_code)
        return found


def _of_job(function: str, calls: list[_Code]) -> Stack:
    if not _is_idle(calls):
        return function, _named(calls)
    # A function in C has no frame of its own.
    return function, () if calls and calls[0].mark == _CALL else (ASYNCPOOL,)


def _job_in(frame: FrameType, code: _Code) -> str:
    """Return the function of the job that *frame* runs, which has a mark."""
    # Only in these frames, which are ours: the dict that Python 3.11 and 3.12 make of the
    # variables keeps what they have until the call returns.
    context = frame.f_locals.get(code.variable)
    if code.attribute:
        context = getattr(context, code.attribute, None)
    return ASYNCPOOL if context is None else _function_in(context)


def _function_in(context: Context) -> str:
    job = context.get(current)
    if job is None:
        return NO_JOB
    name = as_name(name_in(job))
    return ASYNCPOOL if name in {"", _CHUNK} else name


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
