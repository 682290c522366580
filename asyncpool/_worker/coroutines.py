"""Run coroutines of jobs in an event loop, which lives as long as the worker.

So all later jobs can use what an async initializer or a job has made, such as a session or a
pool of connections.  The loop runs only while a job runs: a task that a job leaves behind
continues with the next job.
"""

from __future__ import annotations

from time import perf_counter

from asyncpool._wire import log_records as say
from asyncpool._wire.text import JOB_LOGGER
from asyncpool._worker.api import NO_JOB, running
from asyncpool._worker.stacks import Stacks, waiting_frames

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Generator, Iterator
    from contextvars import Context
    from types import FrameType, TracebackType
    from typing import Any

    from asyncpool._worker.interrupts import Interrupts


class Coroutines:
    """The event loop of one worker.

    Args:
        interrupts: End a running job.
        stacks: Tell where a coroutine waits.

    Attributes:
        kind: Of the loop: ``"asyncio"`` or ``"uvloop"``.
        stacks: As above.
    """

    def __init__(self, interrupts: Interrupts, stacks: Stacks) -> None:
        self.kind = "asyncio"
        self._interrupts = interrupts
        self.stacks = stacks
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run *coroutine*, which is no job's, to its end and return its result.

        Raises:
            BaseException: Whatever it raises.
        """
        loop = self.loop()
        steps: Any = CoroutineSteps(coroutine, loop)  # what passes for a coroutine
        task = loop.create_task(steps, name="asyncpool job")
        self.stacks.shown = coroutine
        try:
            return loop.run_until_complete(task)
        finally:
            self.stacks.shown = None
            if task.done() and not task.cancelled():
                task.exception()  # else asyncio might complain that nobody has asked

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


class CoroutineSteps:
    """A coroutine whose steps are timed, because a long step blocks all others.

    Args:
        coroutine: The coroutine to run.
        loop: The event loop; its ``slow_callback_duration`` says how long is too long.

    Attributes:
        shown: The coroutine, or the part of it that is the user's.
    """

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._coroutine = coroutine
        self.shown: Any = coroutine
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
        where = getattr(self.shown, "__qualname__", "a coroutine")
        before = ""
        for frame in waiting_frames(self.shown):
            if "/asyncio/" in frame.f_code.co_filename:
                break
            before = f", before line {frame.f_lineno} of {frame.f_code.co_filename}"
        hint = ": submit code that computes as a plain function"
        warn(who, seconds, f"in {where}{before}", hint)


class Pause:
    """Is awaited once: the loop has a turn."""

    def __await__(self) -> Generator[None]:
        yield


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


def inner(tb: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that is the coroutine's own."""
    found = tb
    while found is not None:
        if found.tb_frame.f_code is CoroutineSteps._take.__code__:  # noqa: SLF001 - of this file
            return found.tb_next
        found = found.tb_next
    return tb
