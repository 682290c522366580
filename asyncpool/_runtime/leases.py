"""The leases of a pool's jobs: each is kept until nobody works on its job any more.

A job that is cancelled, or was too late, is done for its caller at once, and may run on
in its worker: until it has cleaned up, until that worker is dead, or to its very end.
Whoever got its lease meanwhile would do the same work at the same time.  So what a
keeper keeps a lease for is not the job, but its *holder*, which is done when the job is
settled and no worker has it in hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

from asyncpool._core.limits import Keeper
from asyncpool._runtime.jobs import Job

__all__ = ["Leases"]


class _Holder(asyncio.Future[None]):
    """Who holds a lease: a job, and whichever worker still has it in hand."""

    __slots__ = ("job",)

    job: Job[Any]

    def cancel(self, msg: Any | None = None) -> bool:
        """Hear from the keeper that the lease is lost."""
        if not super().cancel(msg):
            return False
        self.job.cancel(msg)
        return True

    def let_go(self) -> None:
        """Need the lease no more, unless it is lost."""
        if not self.done():
            self.set_result(None)


class Leases:
    """Who holds leases, in one pool.

    Attributes:
        open: The holders whose jobs are open, by the jobs' numbers.
    """

    def __init__(self) -> None:
        self.open: dict[int, _Holder] = {}
        # Those whose jobs are settled, each with the slot of the worker that has it.
        self._in_hand: dict[int, tuple[_Holder, int]] = {}

    def submit(
        self, lease: tuple[Keeper, Hashable], submit: Callable[[], Job[Any]]
    ) -> Job[Any]:
        """Submit a job; before it can begin, its lease is kept, or refused."""
        keeper, name = lease
        holder = _Holder(loop=asyncio.get_running_loop())
        keeper.keep(name, holder)
        try:
            job = holder.job = submit()
        except BaseException:
            holder.let_go()
            raise
        if job.done():
            holder.let_go()
        else:
            self.open[job.id] = holder
        return job

    def settle(self, job: Job[Any]) -> None:
        """Take note that an open job is settled; it may be in a worker's hands."""
        holder = self.open.pop(job.id, None)
        if holder is None:
            return
        if job.slot is None:
            holder.let_go()
        else:
            self._in_hand[job.id] = holder, job.slot

    def give_back(self, number: int) -> None:
        """Take note that a job that was settled before has left its worker's hands."""
        if number in self._in_hand:
            holder, _ = self._in_hand.pop(number)
            holder.let_go()

    def worker_gone(self, slot: int) -> None:
        """Take note that the worker in *slot* has nothing in hand any more."""
        for number, (_, where) in list(self._in_hand.items()):
            if where == slot:
                self.give_back(number)

    def close(self) -> None:
        """Take note that there are no workers any more."""
        for number in list(self._in_hand):
            self.give_back(number)
