"""A forked worker begins as a fresh interpreter does, whatever its launcher has done."""

from __future__ import annotations

import gc
import signal
import sys
from typing import Any

import pytest

from asyncpool import Pool
from tests.helpers import jobs
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import launcher_of

pytestmark = BOTH_LOOPS


async def test_a_forked_worker_has_what_a_spawned_one_has() -> None:
    async with (
        patience(),
        Pool(1, launcher="forkserver") as forking,
        Pool(1, launcher="spawn") as spawning,
    ):
        forked = await forking.submit(jobs.surroundings)
        spawned = await spawning.submit(jobs.surroundings)
    for found in (forked, spawned):
        del found["modules"]  # a fork has the launcher's, too
    assert forked == spawned
    # What an interpreter inherits as ignored stays so: both could have it wrong.
    handlers: Any = forked["handlers"]
    assert handlers["SIGINT"] == repr(signal.default_int_handler).split(" at ")[0]
    assert handlers["SIGTERM"] == repr(signal.SIG_DFL)
    assert handlers["SIGCHLD"] == repr(signal.SIG_DFL)
    assert handlers["SIGHUP"] == repr(signal.SIG_DFL)
    assert forked["argv"] == sys.argv


async def test_no_collection_of_a_forked_worker_copies_what_it_shares() -> None:
    async with patience(), Pool(1) as pool:
        assert await pool.submit(gc.get_freeze_count) > 0


async def test_two_forked_workers_have_dice_of_their_own() -> None:
    preload = ["random", "secrets", "tests.helpers.jobs"]
    async with (
        patience(),
        Pool(1, preload=preload) as one,
        Pool(1, preload=preload) as two,
    ):
        assert await launcher_of(one) == await launcher_of(two)
        assert await one.submit(jobs.dice) != await two.submit(jobs.dice)
        token = await one.submit(eval, "__import__('secrets').token_hex()")
        assert await two.submit(eval, "__import__('secrets').token_hex()") != token


async def test_two_forked_workers_have_numpy_dice_of_their_own() -> None:
    pytest.importorskip("numpy")
    preload, roll = ["numpy.random"], "__import__('numpy').random.random()"
    async with (
        patience(),
        Pool(1, preload=preload) as one,
        Pool(1, preload=preload) as two,
    ):
        assert await launcher_of(one) == await launcher_of(two)
        assert await one.submit(eval, roll) != await two.submit(eval, roll)
