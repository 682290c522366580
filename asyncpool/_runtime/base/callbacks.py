"""Report crashes, so that no logger or callback of the user's can hurt the pool."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable

from asyncpool._core.base.tracebacks import users_own
from asyncpool.enums import CrashKind
from asyncpool.events import Crash

CrashCallback = Callable[[Crash], object] | Callable[[Crash], Awaitable[object]]

_LOGGER = logging.getLogger("asyncpool")

# Seconds that async callbacks have to return after the last worker has ended.  After that they
# are cancelled, and have as long again to end.
_GRACE = 1.0


class Reporter:
    """Reports crashes to the log, and to a callback, which may be sync or async.

    Args:
        loop: The pool's loop.
        title: What the log calls the pool.
        callback: What to call, or ``None``.
        traces: Whether the log shows the traceback of a failed start, and the stacks of a
            worker that hung.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        title: str,
        callback: CrashCallback | None,
        *,
        traces: bool = False,
    ) -> None:
        self._loop = loop
        self._title = title
        self._callback = callback
        self._traces = traces
        # Not a task group: a callback that never returns would keep the pool from closing.
        self._tasks: set[asyncio.Task[None]] = set()

    def report(self, crash: Crash, *, stacks: str = "") -> None:
        """Log the crash and call the callback, in the next turn of the loop.

        *stacks* are those of a worker that was killed since it had not ended in time.
        """
        # Not at once: the callback may submit, cancel or close, and the supervisor is in the
        # middle of a decision.  But still before the callbacks of the jobs.
        self._loop.call_soon(self._tell, crash, stacks)

    def report_late(self, end: Crash) -> None:
        """Log, in the next turn, that a worker was killed since it had not ended in time."""
        self._loop.call_soon(self._log_late, end)

    async def finish(self) -> None:
        """Wait for async callbacks, and cancel those that do not return.

        Cancellation:
            Safe: the callbacks go on.
        """
        late = self._tasks
        if late:
            _, late = await asyncio.wait(late, timeout=_GRACE)
        for task in late:
            task.cancel()
        if late:
            _, late = await asyncio.wait(late, timeout=_GRACE)
        if late:
            _LOGGER.warning(
                "%d callbacks of on_crash still run though the pool ends", len(late)
            )

    def _tell(self, crash: Crash, stacks: str) -> None:
        with contextlib.suppress(Exception):  # a handler or filter of the user's
            self._log(crash, stacks)
        if self._callback is None:
            return
        try:
            result = self._callback(crash)
            if inspect.isawaitable(result):
                task = self._loop.create_task(
                    self._await(result), name="asyncpool on_crash"
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception:
            _LOGGER.exception("on_crash raised; the pool goes on")

    def _log(self, crash: Crash, stacks: str) -> None:
        trace = ""
        if self._traces and crash.kind is CrashKind.FAILED_START:
            trace = users_own(crash.stack)
        elif crash.kind is CrashKind.HUNG:
            stacks = crash.stack
        args = self._title, crash, crash.next_step_text
        warn(_LOGGER, "%s: %s; %s", *args, stacks=stacks, trace=trace)

    def _log_late(self, end: Crash) -> None:
        text = "%s: worker %s in slot %d had not ended in time, and was killed by %s"
        args = self._title, end.pid, end.slot, end.signal
        with contextlib.suppress(Exception):  # a handler or filter of the user's
            warn(_LOGGER, text, *args, stacks=end.stack)

    @staticmethod
    async def _await(result: Awaitable[object]) -> None:
        try:
            await result
        except Exception:
            _LOGGER.exception("on_crash raised; the pool goes on")


def warn(
    logger: logging.Logger,
    text: str,
    *args: object,
    stacks: str = "",
    trace: str = "",
) -> None:
    """Log a warning in the caller's name, with the *stacks* of a worker, or its *trace*."""
    if not logger.isEnabledFor(logging.WARNING):
        return
    path, line, function, _ = logger.findCaller(stacklevel=2)
    record = logger.makeRecord(
        logger.name, logging.WARNING, path, line, text, args, None, function
    )
    record.exc_text, record.stack_info = trace or None, stacks or None
    logger.handle(record)
