"""Large objects where processes are copied, or parts of them fail."""

from __future__ import annotations

import ctypes

import pytest

from asyncpool import Pool, WorkerCrashedError
from tests.helpers import forks, large
from tests.helpers.large import Block, checksum, pattern
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves

pytestmark = BOTH_LOOPS

SIZE = 1 << 20


async def test_what_a_copy_of_a_worker_may_see_is_not_used_again() -> None:
    block = Block(pattern(SIZE))
    async with patience(), Pool(1) as pool:
        assert await pool.submit(forks.only_count, block) == checksum(block)
        kept = pool.stats().shared_memory
        assert kept >= SIZE, "it is warm, and used again"
        assert await pool.submit(forks.fork_and_count, block) == checksum(block)
        assert pool.stats().shared_memory == 0
        assert await pool.submit(forks.only_count, block) == checksum(block)
        assert pool.stats().shared_memory == kept


async def test_a_worker_that_is_deaf_does_not_live_on() -> None:
    async with patience(), Pool(1) as pool:
        await pool.submit(forks.deafen)
        with pytest.raises(WorkerCrashedError) as caught:
            await pool.submit(large.same, Block(pattern(SIZE)))
        assert any(
            "ZeroDivisionError: deaf" in line for line in caught.value.stderr_tail
        )
        await assert_serves(pool)
        block = Block(pattern(SIZE))
        assert await pool.submit(large.same, block) == block


async def test_nobody_can_take_the_page_away() -> None:
    async with patience(), Pool(1) as pool:
        with pytest.raises(PermissionError):
            await pool.submit(forks.truncate_page)
        await assert_serves(pool)
        assert pool.stats().crashes == 0


async def test_others_may_declare_the_same_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ctypes.pythonapi is everybody's, and so is what is said of its functions."""
    theirs = ctypes.pythonapi.PyObject_GetBuffer
    block = Block(pattern(SIZE))
    async with patience(), Pool(1) as pool:
        assert await pool.submit(large.same, block) == block
        monkeypatch.setattr(theirs, "argtypes", [ctypes.c_int])
        assert await pool.submit(large.same, block) == block
    assert theirs.argtypes == [ctypes.c_int]
