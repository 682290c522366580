"""These tests run in an event loop, which must have nothing to report."""

from __future__ import annotations

from tests.helpers.collecting import no_collector
from tests.helpers.executors import (
    clock,
    executor,
    make,
    one_executor,
    own_executor,
    room,
    standard_or_ours,
)
from tests.helpers.faces import faced
from tests.helpers.one_pool import (
    gate,
    one_loop,
    one_loop_each_test,
    one_pair,
    one_pool,
    pair,
    pool,
)
from tests.helpers.reports import quiet_loop, resource_tracked

__all__ = [
    "clock",
    "executor",
    "faced",
    "gate",
    "make",
    "no_collector",
    "one_executor",
    "one_loop",
    "one_loop_each_test",
    "one_pair",
    "one_pool",
    "own_executor",
    "pair",
    "pool",
    "quiet_loop",
    "resource_tracked",
    "room",
    "standard_or_ours",
]
