"""Report crashes, so that no logger or callback of the user's can hurt the pool."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from asyncpool._core.logs import pool_messages as say
from asyncpool.events import Crash

if TYPE_CHECKING:
    from asyncpool._runtime.pool.life_log import LifeLog

CrashCallback = Callable[[Crash], object] | Callable[[Crash], Awaitable[object]]

_LOGGER = logging.getLogger("asyncpool")

# Seconds that async callbacks have to return after the last worker has ended.  After that they
# are cancelled, and have as long again to end.
_GRACE = 1.0


class Reporter:
    """Reports crashes to the log, and to a callback, which may be sync or async.

    Args:
        loop: The pool's loop.
        pool: The pool's name.
        callback: What to call, or ``None``.
        log: Logs them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: str,
        callback: CrashCallback | None,
        log: LifeLog,
    ) -> None:
        self._loop = loop
        self._pool = pool
        self._callback = callback
        self._log = log
        # Not a task group: a callback that never returns would keep the pool from closing.
        self._tasks: set[asyncio.Task[None]] = set()

    def report(self, crash: Crash, stack: str, report: str) -> None:
        """Log the crash and call the callback, in the next turn of the loop.

        Args:
            crash: The crash.
            stack: The stacks of a worker that was killed since it had not ended in time.
            report: What the interpreter has said of its own fatal error.
        """
        # Not at once: the callback may submit, cancel or close, and the supervisor is in the
        # middle of a decision.  But still before the callbacks of the jobs.
        self._loop.call_soon(self._tell, crash, stack, report)

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
            extra = {"pool": self._pool, "callbacks": len(late)}
            say.ON_CRASH_IS_SLOW.log(_LOGGER, extra)

    def _tell(self, crash: Crash, stack: str, report: str) -> None:
        self._log.crashed(crash, stack, report)
        if self._callback is None:
            return
        try:
            result = self._callback(crash)
            if inspect.isawaitable(result):
                task = self._loop.create_task(
                    self._await(result, crash), name="asyncpool on_crash"
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception as error:  # noqa: BLE001 - it is the user's code
            self._tell_failed(error, crash)

    async def _await(self, result: Awaitable[object], crash: Crash) -> None:
        try:
            await result
        except Exception as error:  # noqa: BLE001 - it is the user's code
            self._tell_failed(error, crash)

    def _tell_failed(self, error: Exception, crash: Crash) -> None:
        extra = {"pool": self._pool, "slot": crash.slot, "pid": crash.pid}
        say.ON_CRASH_FAILED.log(_LOGGER, extra, error=error)
