"""A job, as its caller sees it: a future that knows how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from asyncpool._core.attempts import AttemptPolicy
from asyncpool.events import Crash

__all__ = ["Job", "JobState"]

R = TypeVar("R")

JobState = Literal["queued", "running", "done", "cancelled"]


class Job(asyncio.Future[R], Generic[R]):
    """What :meth:`asyncpool.Pool.submit` returns: a future of the job's result.

    Await it, gather it, give it callbacks, cancel it.  It is settled by the pool,
    exactly once: with the result, with the exception that the job raised, or with
    an :exc:`asyncpool.AsyncPoolError`.

    Attributes:
        id: Its number in the pool, as shown in events, errors and logs.
        attempt: How many attempts have begun; 0 while it waits for the first one.
        worker: The pid of the worker that runs it, or ``None``.
    """

    # What belongs to the pool is in slots without a leading underscore too, since
    # the supervisor, another object, reads and writes it at each step.
    def __init__(
        self,
        number: int,
        policy: AttemptPolicy,
        on_cancel: Callable[[Job[Any]], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(loop=loop)
        self.id = number
        self.attempt = 0
        self.worker: int | None = None
        self.slot: int | None = None
        self.policy = policy
        self.payload = b""
        self.crashes: tuple[Crash, ...] = ()
        self.returns = 0
        self._on_cancel = on_cancel

    @property
    def state(self) -> JobState:
        """Where it is: ``"queued"``, ``"running"``, ``"done"`` or ``"cancelled"``."""
        if self.cancelled():
            return "cancelled"
        if self.done():
            return "done"
        return "queued" if self.worker is None else "running"

    def cancel(self, msg: Any | None = None) -> bool:
        """Give the job up, and return whether there was still something to give up.

        A queued job leaves the queue; one that runs costs its worker, which is
        killed with all that it has started, and replaced at once.  Cancelling the
        task that awaits the job does the same.
        """
        if not super().cancel(msg):
            return False
        self._on_cancel(self)
        return True

    def __repr__(self) -> str:
        attempt = f" attempt {self.attempt}" if self.attempt else ""
        return f"<Job {self.id} {self.state}{attempt}>"
