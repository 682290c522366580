"""What a lease keeper tells: its events, its figures, and its lines in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from typing import Generic, TypeVar

from asyncpool._core.leases.renewal_pace import RenewalResult
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
# system is down, that concerns every lease.  The events tell of each.
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
        """Return an iterator over the events from now on, with a buffer for *buffer* of them."""
        return self._hub.listen(buffer)

    def end(self) -> None:
        """End the iterators: no more events come."""
        self._hub.end()

    def stats(
        self, *, leases: int, capacity: int, saturated: bool, in_progress: int
    ) -> LeaseStats:
        """Return the figures; the keeper knows these four."""
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
        """Tell that there are too many leases, or no longer too many."""
        self._hub.publish(news)
        if isinstance(news, LeaseSaturated):
            _LOGGER.warning("a lease keeper is saturated: %s", news)
        else:
            _LOGGER.info("a lease keeper is saturated no more: %s", news)

    def tell_throttled(self, lease: L, pause: float) -> None:
        """Tell that the outside system took no renewal of *lease*."""
        self._hub.publish(LeaseThrottled(lease, pause))

    def tell_missed(self, lease: L, gap: float, problem: Problem) -> None:
        """Tell that *lease* was not extended for *gap* seconds; the log has a part of these."""
        self._missed += 1
        self._hub.publish(LeaseMissed(lease, gap, problem))
        now = asyncio.get_running_loop().time()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        why = f": {problem!r}" if problem is not None else ""
        others = f"; so were {self._unsaid} others before" if self._unsaid else ""
        _LOGGER.warning("lease %r not extended for %.3g s%s%s", lease, gap, why, others)
        self._quiet_until, self._unsaid = now + _QUIET, 0

    def tell_given_up(self, event: LeaseLapsed | LeaseLost, why: str) -> None:
        """Tell that a lease is given up, and *why*, as the predicate of a sentence."""
        self._hub.publish(event)
        _LOGGER.warning("lease %r %s", event.lease, why)
