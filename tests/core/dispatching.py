"""Dispatchers for tests, and what they know of functions."""

from __future__ import annotations

from asyncpool._core.base.job_traits import BUDGET, UNKNOWN, JobTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.dispatch.in_flight import InFlight

__all__ = ["idle_pool", "known", "one_worker_with_a_place"]


def known(cost: float) -> JobTraits:
    """Return what is known of a function that takes *cost* thousandths of a budget."""
    traits = JobTraits()
    if cost != UNKNOWN:
        traits.cost = cost * BUDGET / 1000
    return traits


def idle_pool(workers: int) -> tuple[Dispatcher, list[InFlight]]:
    dispatcher, flights = Dispatcher(), [InFlight() for _ in range(workers)]
    for slot, in_flight in enumerate(flights):
        assert dispatcher.refill(slot, in_flight) == []
    return dispatcher, flights


def one_worker_with_a_place() -> tuple[Dispatcher, InFlight]:
    dispatcher, [in_flight] = idle_pool(1)
    dispatcher.assign_buckets({0: 0})
    assert dispatcher.submit(0, JobTraits()) == 0
    return dispatcher, in_flight
