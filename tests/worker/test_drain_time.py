"""Tests of asyncpool/_worker/cluster/drain_time.py: when the time of a worker that drains is over."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from asyncpool._worker.cluster.drain_time import DrainTime
from tests.helpers import virtual_time

# Seconds that a worker has if all ends, and if others serve on.
AT_END, REPLACED = 5.0, 60.0


def over_after(story: Coroutine[Any, Any, DrainTime]) -> float:
    """Return how long a worker waits that has begun to drain when *story* is over."""

    async def main() -> float:
        time = await story
        loop = asyncio.get_running_loop()
        began = loop.time()
        await time.bound(asyncio.Event().wait())
        return loop.time() - began

    return virtual_time.run(main())


@pytest.mark.parametrize(
    ("others_serve", "seconds"), [(False, AT_END), (True, REPLACED)]
)
def test_who_is_replaced_has_a_time_of_its_own(
    others_serve: bool,  # noqa: FBT001 - a parameter of the test
    seconds: float,
) -> None:
    async def story() -> DrainTime:
        time = DrainTime(AT_END, REPLACED)
        time.begin()
        if others_serve:
            time.others_serve()
        assert time.limit == seconds
        return time

    assert over_after(story()) == seconds


def over_after_calls(**calls: float) -> float:
    """Return how long it takes if these are called so many seconds after the beginning."""

    async def story() -> DrainTime:
        time = DrainTime(AT_END, REPLACED)
        time.begin()
        for name, seconds in calls.items():
            asyncio.get_running_loop().call_later(seconds, getattr(time, name))
        return time

    return over_after(story())


def test_that_others_serve_may_be_known_later() -> None:
    assert over_after_calls(others_serve=2.0) == REPLACED


def test_the_end_of_the_cluster_leaves_what_the_end_has() -> None:
    assert over_after_calls(others_serve=1.0, cluster_ends=20.0) == 20.0 + AT_END


def test_nobody_has_longer_since_the_cluster_ends() -> None:
    assert over_after_calls(others_serve=1.0, cluster_ends=58.0) == REPLACED
    assert over_after_calls(cluster_ends=2.0) == AT_END


def test_what_is_done_is_not_waited_for() -> None:
    async def main() -> float:
        time = DrainTime(AT_END, REPLACED)
        time.begin()
        done, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.call_later(1.0, done.set)
        await time.bound(done.wait())
        return loop.time()

    assert virtual_time.run(main()) == 1.0  # which begins at 0


def test_it_is_called_by_the_option_that_counts() -> None:
    async def main() -> list[tuple[str, float]]:
        time = DrainTime(AT_END, REPLACED)
        found: list[tuple[str, float]] = []
        for hear in (time.begin, time.others_serve, time.cluster_ends):
            hear()
            found.append((time.applied.name, time.applied.seconds))
        return found

    assert virtual_time.run(main()) == [
        ("drain_timeout", AT_END),
        ("reload_drain_timeout", REPLACED),
        ("drain_timeout", AT_END),
    ]
