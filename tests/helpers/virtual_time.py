"""An event loop whose clock jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["DeadlockError", "VirtualLoop", "run"]

T = TypeVar("T")


class DeadlockError(AssertionError):
    """Every task waits and no timer is left: in real time it would hang for ever."""


class _JumpingSelector(selectors.DefaultSelector):
    """Polls for I/O first; if there is none, spends the timeout at once."""

    elapsed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if ready := super().select(0):
            return ready
        if timeout is None:
            raise DeadlockError("all tasks wait, and there is no timer")
        self.elapsed += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs timers in order, without waiting.

    Only for code whose I/O stays inside this process: a reply from elsewhere would lose
    the race against the jumping clock.
    """

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)
        self.reports: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.reports.append(context))

    def time(self) -> float:
        return self._clock.elapsed

    def stall(self, seconds: float) -> None:
        """Be blocked for some time."""
        self._clock.elapsed += seconds


async def _alone(main: Coroutine[Any, Any, T]) -> T:
    result = await main
    stray = asyncio.all_tasks() - {asyncio.current_task()}
    assert not stray, f"leaked tasks: {stray}"
    return result


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run *main* in virtual time; fail if it leaves a task or the loop has a report."""
    with asyncio.Runner(loop_factory=VirtualLoop, debug=True) as runner:
        result = runner.run(_alone(main))
        loop = runner.get_loop()
    gc.collect()
    assert isinstance(loop, VirtualLoop)
    assert not loop.reports, f"the loop reported: {loop.reports}"
    return result
