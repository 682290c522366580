"""What a lease keeper publishes: its events, its figures, and its lines in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from typing import Generic, TypeVar

from asyncpool._core.leases.renewal_pace import RenewalResult
from asyncpool._core.logs import pool_messages as say
from asyncpool._runtime.base.event_hub import EventHub, EventStream
from asyncpool._runtime.job.lease_renewals import Problem
from asyncpool.events import (
    LeaseEvent,
    LeaseLapsed,
    LeaseLost,
    LeaseMissed,
    LeaseRelieved,
    LeaseSaturated,
    LeaseStats,
    LeaseThrottled,
)

L = TypeVar("L", bound=Hashable)

_LOGGER = logging.getLogger("asyncpool")

# Seconds between two lines in the log about leases that were not extended.  If the outside
# system is down, that concerns every lease.  There is an event for each.
_QUIET = 10.0


class LeaseReports(Generic[L]):
    """The events, figures and log of one keeper.

    Attributes:
        lapsed: How many leases were given up, since their *ttl* was nearly over.
    """

    def __init__(self) -> None:
        self._hub: EventHub[LeaseEvent] = EventHub()
        self._results = dict.fromkeys(RenewalResult, 0)
        self._missed = 0
        self.lapsed = 0
        self._quiet_until, self._unsaid = 0.0, 0

    def listen(self, buffer: int) -> EventStream[LeaseEvent]:
        """Return an iterator over the events from now on, with room for *buffer* of them."""
        return self._hub.listen(buffer)

    def end(self) -> None:
        """End the iterators: no more events come."""
        self._hub.end()

    def stats(
        self, *, leases: int, capacity: int, saturated: bool, in_progress: int
    ) -> LeaseStats:
        """Return the figures; the arguments are those that the keeper knows."""
        return LeaseStats(
            leases=leases,
            capacity=capacity,
            saturated=saturated,
            in_progress=in_progress,
            renewals=in_progress + sum(self._results.values()),
            renewed=self._results[RenewalResult.EXTENDED],
            throttled=self._results[RenewalResult.THROTTLED],
            failed=self._results[RenewalResult.FAILED],
            lost=self._results[RenewalResult.LOST],
            missed=self._missed,
            lapsed=self.lapsed,
            dropped_events=self._hub.dropped,
        )

    def count(self, result: RenewalResult) -> None:
        """Count a renewal that has ended."""
        self._results[result] += 1

    def tell_load(self, news: LeaseSaturated | LeaseRelieved) -> None:
        """Publish that there are too many leases, or no longer too many."""
        self._hub.publish(news)
        if isinstance(news, LeaseSaturated):
            message = say.LEASES_SATURATED
        else:
            message = say.LEASES_RELIEVED
        extra = {"leases": news.leases, "capacity": news.capacity}
        message.log(_LOGGER, extra, news=news)

    def tell_throttled(self, lease: L, pause: float) -> None:
        """Publish that the outside system has throttled the renewal of *lease*."""
        self._hub.publish(LeaseThrottled(lease, pause))

    def tell_missed(self, lease: L, gap: float, problem: Problem) -> None:
        """Publish that *lease* was not extended for *gap* seconds, and log it now and then."""
        self._missed += 1
        self._hub.publish(LeaseMissed(lease, gap, problem))
        now = asyncio.get_running_loop().time()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        why = f": {problem!r}" if problem is not None else ""
        others = f"; so were {self._unsaid} others before" if self._unsaid else ""
        extra = {"lease": named(lease), "seconds": gap}
        say.LEASE_MISSED.log(_LOGGER, extra, of=lease, why=why, others=others)
        self._quiet_until, self._unsaid = now + _QUIET, 0

    def tell_given_up(self, event: LeaseLapsed | LeaseLost, why: str) -> None:
        """Publish that a lease is given up, and log *why*, a predicate such as "is lost"."""
        self._hub.publish(event)
        extra = {"lease": named(event.lease)}
        say.LEASE_GIVEN_UP.log(_LOGGER, extra, of=event.lease, why=why)


def named(lease: object) -> str:
    """Return what the records of a lease call it."""
    return lease if isinstance(lease, str) else repr(lease)
