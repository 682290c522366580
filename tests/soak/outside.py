"""A system that is not the pool's, in which jobs have leases."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

from asyncpool import Job, LeaseKeeper, LeaseLostError, ThrottledError
from tests.soak.work import OwnError

__all__ = ["Lease", "Outside"]


class Lease(NamedTuple):
    """A lease.

    Attributes:
        number: Tells it from the others.
        beats: With which of its beats it is found to be gone; 0 for never.
    """

    number: int
    beats: int


class Outside:
    """The system, and who extends leases in it.

    Attributes:
        keeper: Who does.
        beats: How many each lease has had.
        gone: Those that were found to be gone.
        over: Those whose jobs have come to an end by themselves.
        troubles: What must not be.
    """

    def __init__(self) -> None:
        self.keeper: LeaseKeeper[Lease] = LeaseKeeper(
            self._send, max_rate=200, interval=0.5
        )
        self.beats: Counter[Lease] = Counter()
        self.gone: set[Lease] = set()
        self.over: set[Lease] = set()
        self.troubles: list[str] = []
        self._numbers = itertools.count(1)

    def grant(self, beats: int) -> Lease:
        """Return a new lease."""
        return Lease(next(self._numbers), beats)

    def watch(self, lease: Lease, job: Job[object]) -> None:
        """Have no beat any more when *job* has returned, or raised."""

        def on_done(job: Job[object]) -> None:
            if not job.cancelled() and isinstance(job.exception(), OwnError | None):
                self.over.add(lease)

        job.add_done_callback(on_done)

    async def _send(self, lease: Lease) -> None:
        if lease in self.over or lease in self.gone:
            self.troubles.append(f"{lease} is extended, and nobody has it")
        self.beats[lease] += 1
        count = self.beats[lease]
        if count == lease.beats:
            self.gone.add(lease)
            raise LeaseLostError
        if lease.number % 7 == 3 and count == 1:
            raise ThrottledError(retry_after=0.01)
        if lease.number % 11 == 5 and count == 2:
            raise ConnectionError("it cannot be reached")
