"""Call the user's ``on_crash`` so that nothing it does can hurt the pool."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from asyncpool.events import Crash

__all__ = ["CrashCallback", "Reporter"]

CrashCallback = Callable[[Crash], object] | Callable[[Crash], Awaitable[object]]

_LOGGER = logging.getLogger("asyncpool")


class Reporter:
    """Reports crashes to a callback, sync or async.

    Args:
        loop: The pool's loop.
        callback: What to call, or ``None``.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, callback: CrashCallback | None
    ) -> None:
        self._loop = loop
        self._callback = callback

    def report(self, crash: Crash, tasks: asyncio.TaskGroup) -> None:
        """Have the callback called soon; if it is async, in a task of *tasks*."""
        if self._callback is not None:
            # Not from here: it may submit, cancel or close, and the supervisor is
            # in the middle of a decision.  Before the job's own callbacks, though.
            self._loop.call_soon(self._call, crash, tasks)

    def _call(self, crash: Crash, tasks: asyncio.TaskGroup) -> None:
        assert self._callback is not None
        try:
            result = self._callback(crash)
            if inspect.isawaitable(result):
                tasks.create_task(self._finish(result))
        except Exception:
            _LOGGER.exception("on_crash raised; the pool goes on")

    @staticmethod
    async def _finish(result: Awaitable[object]) -> None:
        try:
            await result
        except Exception:
            _LOGGER.exception("on_crash raised; the pool goes on")
