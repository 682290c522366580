"""Run coroutines of jobs in an event loop, which lives as long as the worker.

So all later jobs can use what an async initializer or a job has made, such as a session or a
pool of connections.  The loop runs only while a job runs: a task that a job leaves behind
continues with the next job.
"""

from __future__ import annotations

from itertools import islice
from time import perf_counter

from asyncpool._core.base.names import JOB_LOGGER
from asyncpool._core.logs import worker_messages as say
from asyncpool._core.wire.stacks import COROUTINE
from asyncpool._worker.api.context import NO_JOB, running
from asyncpool._worker.job_ending.interrupts import Interrupts
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterator
    from contextvars import Context
    from types import FrameType, TracebackType
    from typing import Any

# The longest stack that is reported, in frames, and its longest text.
_DEEPEST = 100
_LONGEST = 16_384


class Coroutines:
    """The event loop of one worker.

    Args:
        interrupts: End a running job.

    Attributes:
        kind: Of the loop: ``"asyncio"`` or ``"uvloop"``.
        shown: The coroutine that runs, or the part of it that is the user's.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self.kind = "asyncio"
        self._interrupts = interrupts
        self._loop: asyncio.AbstractEventLoop | None = None
        self.shown: Any = None

    def run(self, coroutine: Coroutine[Any, Any, Any], shown: Any = None) -> Any:
        """Run *coroutine* to its end and return its result.

        Args:
            coroutine: The coroutine to run.
            shown: The part of it whose stack is shown, if not the whole coroutine.

        Raises:
            BaseException: Whatever it raises; the traceback begins in the coroutine.
            JobCancelled: If the job was cancelled, and the coroutine did not catch that.
        """
        loop = self.loop()
        interrupts, asked = self._interrupts, False
        steps: Any = CoroutineSteps(coroutine, loop)  # what passes for a coroutine
        task = loop.create_task(steps, name="asyncpool job")
        self.shown = coroutine if shown is None else shown

        def end() -> None:
            nonlocal asked
            if interrupts.deliver():
                asked = task.cancel()

        interrupts.stacks = self._stacks
        interrupts.instead = lambda: loop.call_soon_threadsafe(end)
        end()  # it may have been asked to before that
        try:
            return loop.run_until_complete(task)
        except BaseException as error:
            # Also break a reference cycle: the outer frames know the task, and the task knows the
            # error.  Otherwise they, and all that the job had, would wait for the collector.
            error.__traceback__ = inner(error.__traceback__)
            outcome = outcome_of(error, asked=asked)
            try:
                if outcome is not error:
                    raise outcome from error
                raise
            finally:
                del outcome  # its traceback has this frame, and would be another cycle
        finally:
            interrupts.instead = interrupts.stacks = self.shown = None
            if task.done() and not task.cancelled():
                task.exception()  # else asyncio might complain that nobody has asked

    def show(self, stacks: Callable[[], str]) -> None:
        """Have what runs now shown in another way: as *stacks* tells."""
        self._interrupts.stacks = stacks

    def close(self) -> None:
        """End what is left in the loop, and the loop."""
        if self._loop is None:
            return
        from asyncio import all_tasks, gather  # noqa: PLC0415 - as above

        loop, left = self._loop, all_tasks(self._loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop."""
        return self._loop if self._loop is not None else self._open()

    def _open(self) -> asyncio.AbstractEventLoop:
        # Later jobs need the loop, and it must stay the current loop of this thread.
        self._interrupts.hold()
        try:
            import asyncio  # noqa: PLC0415 - as above

            if self.kind == "uvloop":
                import uvloop  # noqa: PLC0415 - an extra

                self._loop = uvloop.new_event_loop()
            else:
                self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
            return self._loop
        finally:
            self._interrupts.release()

    def _stacks(self) -> str:
        """Tell where the job waits; empty if it computes, which the thread's stack shows."""
        text = tell_waiting(self.shown)
        return f"\n{text[:_LONGEST]}\n" if text else ""


class CoroutineSteps:
    """A coroutine whose steps are timed, because a long step blocks all others.

    Args:
        coroutine: The coroutine to run.
        loop: The event loop; its ``slow_callback_duration`` says how long is too long.
    """

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._coroutine = coroutine
        self._limit = loop.slow_callback_duration

    def send(self, value: Any) -> Any:
        """Take a step."""
        return self._take(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Take a step that begins with an error."""
        return self._take(self._coroutine.throw, *error)

    def close(self) -> None:
        """End it."""
        self._coroutine.close()

    def __await__(self) -> Any:
        return self

    def _take(self, step: Callable[..., Any], *args: Any) -> Any:
        began = perf_counter()
        try:
            return step(*args)
        finally:
            if perf_counter() - began > self._limit:
                self._tell(perf_counter() - began)

    def _tell(self, seconds: float) -> None:
        job = running.get()
        who = "the initializer" if job is None else f"job {job[0]}"
        if job is not None and job[0] == NO_JOB:
            who = "a broadcast"
        where = getattr(self._coroutine, "__qualname__", "a coroutine")
        before = ""
        for frame in waiting_frames(self._coroutine):
            if "/asyncio/" in frame.f_code.co_filename:
                break
            before = f", before line {frame.f_lineno} of {frame.f_code.co_filename}"
        hint = ": submit code that computes as a plain function"
        warn(who, seconds, f"in {where}{before}", hint)


class InContext:
    """A coroutine that runs in *context*, as a part of whatever awaits this."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> None:
        self._coroutine = coroutine
        self._run = context.run

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._run(self._coroutine.send, None)

    def send(self, value: Any) -> Any:
        """Take a step."""
        return self._run(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Take a step that begins with an error."""
        return self._run(self._coroutine.throw, *error)

    def close(self) -> None:
        """End it."""
        self._coroutine.close()

    @property
    def cr_frame(self) -> FrameType | None:
        """Where it waits, for those who tell where a job waits."""
        return self._coroutine.cr_frame  # type: ignore[attr-defined,no-any-return]

    @property
    def cr_await(self) -> Any:
        """What it waits for."""
        return self._coroutine.cr_await  # type: ignore[attr-defined]


def tell_waiting(awaited: Any) -> str:
    """Tell where a coroutine waits, the innermost call first; nothing if it computes."""
    lines = [
        f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in '
        f"{frame.f_code.co_name}"
        for frame in islice(waiting_frames(awaited), _DEEPEST)
    ]
    return "\n".join([COROUTINE, *lines[::-1]]) if lines else ""


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


def warn(who: str, seconds: float, where: str, hint: str) -> None:
    """Warn that others had to wait for a job.  The warning cannot say why it took long.

    CPU time would not show it: a job that blocks uses no CPU time, and neither does a job
    that waits for a CPU.  And reading it costs 2 us at each step.
    """
    import logging  # noqa: PLC0415 - most jobs log nothing

    logger = logging.getLogger(JOB_LOGGER)
    say.JOB_BLOCKED_LOOP.log(
        logger, {"seconds": seconds}, who=who, where=where, hint=hint
    )


def outcome_of(error: BaseException, *, asked: bool) -> BaseException:
    """Return what a coroutine has raised, as the caller of its job is to see it.

    Args:
        error: What it has raised.
        asked: Whether the pool has asked the job to end, and the loop has cancelled it.
    """
    if not asked:
        return error
    from asyncio import CancelledError  # noqa: PLC0415 - most workers need none

    if not isinstance(error, CancelledError):
        return error
    cancelled = JobCancelled()
    cancelled.__cause__ = error
    return cancelled


def inner(tb: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that is the coroutine's own."""
    found = tb
    while found is not None:
        if found.tb_frame.f_code is CoroutineSteps._take.__code__:  # noqa: SLF001 - of this file
            return found.tb_next
        found = found.tb_next
    return tb


_NAMES = (
    ("cr_frame", "cr_await"),
    ("ag_frame", "ag_await"),
    ("gi_frame", "gi_yieldfrom"),
)
