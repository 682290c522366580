"""The leases of a pool's jobs: the keeper keeps each until no worker runs its job any more.

When a job is cancelled, or too late, it is done for its caller at once.  It may still run in
its worker: until it has cleaned up, until the worker is dead, or until its normal end.  If
another service got the lease meanwhile, both would do the same work at the same time.  So a
keeper does not keep the lease for the job, but for its *holder*.  The holder is done when the
job is settled and no worker has it in flight.

If a keeper knows how long a lease lasts, it tells the holder when the lease lapses, and the
holder tells the worker that has the job.  If the job still runs at that moment, the worker ends
itself.  It needs no other process for that, since it knows the moment before it gets the job.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from asyncpool._core.policies.job_options import Keeper
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.job.lease_holder import Holder


class Leases:
    """The holders of leases in one pool.

    Attributes:
        open: The holders whose jobs are open, by the jobs' numbers.
        coming: The holder for the job that is being submitted, if that has a lease.
        fence: Tells the worker in a slot until when it may run a job.
    """

    def __init__(self) -> None:
        self.open: dict[int, Holder] = {}
        self.coming: Holder | None = None
        self.fence: Callable[[Job[Any], int, float], None] = _nothing
        # Holders whose jobs are settled, each with the slot of the worker that still has the job.
        self._in_flight: dict[int, tuple[Holder, int]] = {}

    def submit(
        self, lease: tuple[Keeper, Hashable], submit: Callable[[], Job[Any]]
    ) -> Job[Any]:
        """Submit a job; the keeper takes its lease, or refuses it, before the job can begin."""
        keeper, name = lease
        holder = Holder(self._on_extended)
        keeper.keep(name, holder)
        self.coming = holder
        try:
            job = submit()
        except BaseException:
            holder.let_go()
            raise
        finally:
            self.coming = None
        if job.done():
            holder.let_go()
        return job

    def enter(self, job: Job[Any]) -> None:
        """Connect the holder with the job that is being submitted, before a worker gets it."""
        holder, self.coming = self.coming, None
        assert holder is not None
        holder.job = job
        self.open[job.id] = holder

    def before_sending(self, job: Job[Any], slot: int) -> None:
        """Tell the worker in *slot* until when it may run a job, if that is known."""
        holder = self.open.get(job.id)
        if holder is not None and holder.until is not None:
            self.fence(job, slot, holder.until)

    def settle(self, job: Job[Any]) -> None:
        """Note that an open job is settled; a worker may still have it."""
        holder = self.open.pop(job.id, None)
        if holder is None:
            return
        if job._slot is None:
            holder.let_go()
        else:
            self._in_flight[job.id] = holder, job._slot

    def give_back(self, number: int) -> None:
        """Note that no worker has this job any more, which was settled before."""
        if number in self._in_flight:
            holder, _ = self._in_flight.pop(number)
            holder.let_go()

    def worker_gone(self, slot: int) -> None:
        """Note that the worker in *slot* has nothing in flight any more."""
        for number, (_, where) in list(self._in_flight.items()):
            if where == slot:
                self.give_back(number)

    def close(self) -> None:
        """Note that there are no workers any more."""
        for number in list(self._in_flight):
            self.give_back(number)

    def _on_extended(self, holder: Holder) -> None:
        job, until = holder.job, holder.until
        if job is None or until is None:
            return
        slot = job._slot
        if job.id in self._in_flight:
            _, slot = self._in_flight[job.id]
        if slot is not None:
            self.fence(job, slot, until)


def _nothing(*_: object) -> None:
    pass
