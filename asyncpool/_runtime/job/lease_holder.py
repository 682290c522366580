"""The holder of a lease; ``registry.py`` says why a job does not hold its lease itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncpool._runtime.job.job import Job


class Holder(asyncio.Future[None]):
    """What holds a lease: a job, together with the worker that still has it in flight.

    Args:
        tell: Called when it is known that the lease lasts longer.

    Attributes:
        job: The job, once there is one.
        until: When the lease lapses, on the loop's clock, if that is known.
    """

    __slots__ = ("_tell", "job", "until")

    job: Job[Any] | None

    def __init__(self, tell: Callable[[Holder], None]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.job = None
        self.until: float | None = None
        self._tell = tell

    def cancel(self, msg: Any | None = None) -> bool:
        """Hear from the keeper that the lease is lost."""
        if not super().cancel(msg):
            return False
        assert self.job is not None
        self.job.cancel(msg)
        return True

    def extended(self, until: float) -> None:
        """Hear from the keeper when the lease lapses if it is not renewed."""
        self.until = until
        self._tell(self)

    def let_go(self) -> None:
        """Let the keeper give the lease up, unless it is lost already."""
        if not self.done():
            self.set_result(None)
