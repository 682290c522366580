"""Large objects: they are the same there and back, and each belongs to one process."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from typing import Any

import pytest

from asyncpool import CloseSummary, Job, Pool
from asyncpool.errors import JobNotPicklableError, PoolClosedError, PoolFullError
from tests.helpers import jobs, large, values
from tests.helpers.gate import Gate
from tests.helpers.inside import (
    abandon_threads_after,
    pack_job,
    pack_value,
    pickle_one_at_a_time,
    pickled,
    pickling,
    segments_by_number,
    segments_of,
)
from tests.helpers.large import (
    Block,
    Crowd,
    Passenger,
    Stop,
    all_free,
    checksum,
    crowd,
    filler,
    pattern,
)
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, closing, idle, started, until

pytestmark = ONE_LOOP

KIB, MIB = 1 << 10, 1 << 20

# Around every size from which on something is done in another way.
SIZES = [
    64 * KIB - 1,
    64 * KIB,
    64 * KIB + 1,
    128 * KIB - 1,
    128 * KIB,
    128 * KIB + 1,
    MIB - 1,
    MIB,
    MIB + 1,
    7 * MIB + 13,
]


# There and back.


@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["shared", "sent"])
async def test_a_buffer_of_any_size_is_the_same_there_and_back(memory: int) -> None:
    async with patience(), Pool(1, max_shared_memory=memory) as pool:
        for size in SIZES:
            block = Block(pattern(size))
            assert await pool.submit(large.checksum, block) == checksum(block), size
            back = await pool.submit(large.same, block)
            assert back == block, size
            assert not back.data.readonly
            shared = "caller" in large.uses(pool)
            assert shared is (memory > 0 and size >= 64 * KIB), size
            assert await pool.submit(large.make, size, 0) == block, size
            del back
            await all_free(pool)


@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["shared", "sent"])
@pytest.mark.parametrize("kind", [bytes, bytearray, str, list, dict])
async def test_a_plain_object_is_the_same_there_and_back(
    kind: Any, memory: int
) -> None:
    async with patience(), Pool(1, max_shared_memory=memory) as pool:
        for size in SIZES:
            value = plain(kind, size)
            assert await pool.submit(large.same, value) == value, size
            assert await pool.submit(plain, kind, size) == value, size


def plain(kind: Any, size: int) -> Any:
    """Return something without buffers that has about *size* bytes when pickled."""
    if kind is str:
        return pattern(size // 2).decode("latin-1").replace("\0", "\u20ac")
    if kind is dict:
        return {number: str(number) * 10 for number in filler(size // 14)}
    return kind(filler(size) if kind is list else pattern(size))


async def test_many_buffers_and_much_else_in_one_argument(pool: Pool) -> None:
    blocks = [Block(pattern(60 * KIB + 100 * n, n)) for n in range(100)]
    value = {"blocks": blocks, "plain": {n: str(n) for n in filler(MIB)}, "none": None}
    assert await pool.submit(large.same, value) == value
    assert await pool.submit(large.make_many, 100, 70 * KIB) == [
        Block(pattern(70 * KIB, n)) for n in range(100)
    ]
    # One object twice is one object there.
    one, other = Block(pattern(MIB, 1)), Block(pattern(2 * MIB, 2))
    twice = await pool.submit(large.same, [one, one])
    assert twice[0] is twice[1]
    assert twice[0] == one
    # Keywords, and what a function brings along.
    plain = filler(MIB)
    sums = await pool.submit(large.checksums, one, second=other, third=one)
    assert sums == [checksum(one), checksum(other), checksum(one)]
    back = await pool.submit(lambda: (len(plain), plain[-1], other))
    assert back == (len(plain), plain[-1], other)
    assert await pool.submit(jobs.call, lambda block: block, one) == one
    # What is read-only stays so.
    constant = Block(bytes(pattern(MIB)))
    assert await pool.submit(large.is_readonly, constant)
    assert (await pool.submit(large.same, constant)).data.readonly
    assert not await pool.submit(large.is_readonly, one)


@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["shared", "sent"])
async def test_nobody_sees_what_another_one_changes(memory: int) -> None:
    async with patience(), Pool(1, max_shared_memory=memory) as pool:
        known: list[int] = []
        for size in (MIB, 3 * MIB):
            original = Block(pattern(size))
            before = checksum(original)
            for _ in range(3):
                # A worker changes its argument.
                assert await pool.submit(large.overwrite, original) == before
                assert checksum(original) == before
                # A caller changes its result.
                back = await pool.submit(large.same, original)
                back.data[:] = bytes(size)
                assert checksum(original) == before
            await pool.submit(large.keep, original)
            kept = await pool.submit(large.keep_and_return, size, 7)
            theirs = checksum(kept)
            kept.data[:] = bytes(size)
            again = await pool.submit(large.keep_and_return, size, 7)
            assert checksum(again) == theirs
            known += [before, theirs, theirs]
            assert await pool.submit(large.kept) == known
            assert checksum(kept) == checksum(Block(bytes(size)))


# What is kept is not overwritten.


async def test_what_a_job_keeps_is_not_overwritten_by_later_jobs(pool: Pool) -> None:
    blocks = [Block(pattern(MIB + 5, n)) for n in range(30)]
    for n in range(5):
        await pool.submit(large.keep, blocks[n])
    for block in blocks[5:]:
        assert await pool.submit(large.checksum, block) == checksum(block)
    expected = [checksum(block) for block in blocks[:5]]
    assert await pool.submit(large.kept) == expected
    assert large.uses(pool).count("worker") == 5
    # What it lets go of is told with the next outcome.
    for left in (4, 3):
        await pool.submit(large.let_go_of_one)
        assert large.uses(pool).count("worker") == left
    for block in blocks[5:]:
        assert await pool.submit(large.overwrite, block) == checksum(block)
    assert await pool.submit(large.kept) == expected[:3]


async def test_what_a_caller_keeps_is_not_overwritten_by_later_results(
    pair: Pool,
) -> None:
    kept = await asyncio.gather(
        *(pair.submit(large.make, MIB + n, n) for n in range(40))
    )
    last = kept.pop()
    part = last.data[1000:2000]
    del last
    for n in range(20):
        await pair.submit(large.make, MIB + n, 1000 + n)
    assert kept == [Block(pattern(MIB + n, n)) for n in range(39)]
    assert bytes(part) == pattern(MIB + 39, 39)[1000:2000]
    await used(pair, "caller", 40)
    del kept, part
    await all_free(pair)


async def test_results_outlive_their_pool() -> None:
    before = large.mapped()
    async with patience(), Pool(1) as pool:
        blocks = [await pool.submit(large.make, MIB, n) for n in range(5)]
        plain = await pool.submit(filler, MIB)
        assert large.mapped() >= before + 5
    assert blocks == [Block(pattern(MIB, n)) for n in range(5)]
    assert plain == filler(MIB)
    blocks[0].data[:] = bytes(MIB)
    assert blocks[1:] == [Block(pattern(MIB, n)) for n in range(1, 5)]
    assert large.mapped() == before + 5
    del blocks
    assert large.mapped() == before


async def used(pool: Pool, use: str, count: int) -> None:
    """Wait until so many segments are in this use."""
    while large.uses(pool).count(use) != count:  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0)


# Memory is used again.


@pytest.mark.parametrize("size", [MIB, 3 * MIB])
async def test_memory_is_used_again(size: int) -> None:
    block = Block(pattern(size))
    async with patience(), Pool(1) as pool:
        assert await pool.submit(large.same, block) == block
        await all_free(pool)
        there_are, total = large.numbers(pool), pool.stats().shared_memory
        assert 0 < len(there_are) <= 2
        for n in range(20):
            block.data[:] = pattern(size, n)
            assert await pool.submit(large.same, block) == block
            await all_free(pool)
            assert large.numbers(pool) == there_are
            assert pool.stats().shared_memory == segments_of(pool).total == total


async def test_what_is_dropped_or_done_gives_its_memory_back() -> None:
    async with patience(), Pool(1) as pool:
        result = await pool.submit(large.make, MIB)
        part = result.data[5:10]
        assert large.uses(pool) == ["caller"]
        del result
        await asyncio.sleep(0)
        assert large.uses(pool) == ["caller"]  # a part of it is left
        del part
        await all_free(pool)
        made = pool.submit(large.make, MIB)  # whose result nobody wants
        await made
        assert large.uses(pool) == ["caller"]
        del made
        await all_free(pool)
        # An argument, with the outcome.
        for fails in (False, True):
            function: Any = large.fail_with if fails else large.checksum
            job: Job[Any] = pool.submit(function, Block(pattern(MIB)))
            await asyncio.wait([job])
            assert (job.exception() is not None) is fails
            del job
            assert set(large.uses(pool)) == {"nobody"}


@pytest.mark.parametrize("bound", [0, 64 * KIB, MIB, 5 * MIB])
async def test_beyond_the_bound_all_is_well_and_slower(bound: int) -> None:
    arguments: list[Any] = [
        [Block(pattern(size, n)) for size in (100 * KIB, MIB, 64 * KIB)]
        for n in range(30)
    ]
    arguments += [Block(pattern(64 * KIB, n)) for n in range(30)]
    arguments += [filler(MIB), {"large": Block(pattern(6 * MIB)), "plain": filler(MIB)}]
    totals = []
    async with patience(), Pool(2, max_shared_memory=bound) as pool:
        open_jobs = [pool.submit(large.same, argument) for argument in arguments]
        for job in open_jobs:
            job.add_done_callback(lambda _: totals.append(segments_of(pool).total))
        results = await asyncio.gather(*open_jobs)
        assert results == arguments
        assert max(totals) <= bound
        assert (max(totals) > 0) is (bound > 0)
        for result in results[:30]:
            for block in result:
                block.data[:] = bytes(len(block.data))
        assert await pool.submit(large.same, arguments) == arguments


async def test_what_is_free_makes_room_for_what_is_needed() -> None:
    async with patience(), Pool(1, max_shared_memory=4 * MIB) as pool:
        for size in (MIB, 2 * MIB, 3 * MIB, MIB, 4 * MIB, 2 * MIB):
            block = Block(pattern(size, size))
            assert await pool.submit(large.checksum, block) == checksum(block)
            assert segments_of(pool).total <= 4 * MIB
            # There was room for it, so it did not go through the socket.
            assert size <= max(
                segment.memory.size for segment in segments_by_number(pool).values()
            )
        result = await pool.submit(large.make, 3 * MIB)
        # What the caller has makes no room.
        other = await pool.submit(large.make, 3 * MIB, 1)
        assert large.uses(pool).count("caller") == 1
        assert (result, other) == (large.make(3 * MIB), large.make(3 * MIB, 1))


# Errors.


async def test_exceptions_may_be_large(pool: Pool) -> None:
    text, data = "x" * (2 * MIB), bytes(pattern(2 * MIB))
    with pytest.raises(ValueError, match="xxx") as caught:
        await pool.submit(large.fail_with, text)
    assert caught.value.args == (text,)
    assert "fail_with" in str(caught.value.__cause__)
    with pytest.raises(ValueError, match="xfe") as caught:
        await pool.submit(large.fail_with, data, Block(pattern(MIB)))
    assert caught.value.args == (data, Block(pattern(MIB)))
    await assert_serves(pool)


async def test_a_job_that_raised_something_large_is_tried_again(pair: Pool) -> None:
    block, text = Block(pattern(3 * MIB)), "y" * (2 * MIB)
    view = pair.options(max_attempts=3, retry_on=[LookupError])
    job = view.submit(large.fail_until, 3, block, text)
    assert await job == checksum(block)
    assert job.attempt == 3
    job = view.submit(large.fail_until, 4, block, text)
    with pytest.raises(LookupError) as caught:
        await job
    assert caught.value.args == (text,)
    assert job.attempt == 3
    assert pair.stats().crashes == 0


@pytest.mark.parametrize("where", ["args", "kwargs"])
async def test_what_fails_late_to_pickle_is_named(where: str) -> None:
    bad = [*filler(MIB), values.Unpicklable()]
    async with patience(), Pool(1) as pool:
        name, job = (
            ("args[1]", pool.submit(jobs.take, 7, bad))
            if where == "args"
            else ("kwargs['value']", pool.submit(jobs.take, value=bad))
        )
        other = pool.submit(jobs.take, bad[:-1])
        with pytest.raises(JobNotPicklableError) as caught:
            await job
        where = f"at `{name}[{len(bad) - 1}]`"
        why = f"{name} cannot be pickled: TypeError: not for sale - {where}"
        assert str(caught.value) == why
        assert (caught.value.direction, caught.value.name) == ("arguments", name)
        assert (caught.value.job_id, caught.value.attempt) == (job.id, 0)
        assert await other == 1
        assert pool.stats().queued == 0
        assert (pool.stats().failed, pool.stats().completed) == (1, 1)


async def test_a_large_result_that_cannot_be_unpickled_here_is_said(pool: Pool) -> None:
    job = pool.submit(lambda: [*filler(MIB), values.OnlyThere()])
    with pytest.raises(JobNotPicklableError) as caught:
        await job
    assert str(caught.value) == (
        "the job's result cannot be unpickled here: ValueError: not here"
    )
    assert (caught.value.job_id, caught.value.attempt) == (job.id, 1)
    assert caught.value.direction == "result"
    await assert_serves(pool)


@pytest.mark.parametrize(
    "argument",
    [Block(pattern(300_000)), filler(300_000), [Block(pattern(100_000))] * 3],
    ids=["a buffer", "plain", "several"],
)
async def test_a_call_may_be_as_large_as_was_said_and_no_larger(argument: Any) -> None:
    size = len(pack_job(large.same, (argument,), {}, number=1))
    async with patience(), Pool(1, max_message_size=size) as pool:
        assert await pool.submit(large.same, argument) == argument
    text = f"the call has {size} bytes when pickled, and max_message_size is {size - 1}"
    await assert_too_large(size - 1, text, "arguments", large.same, argument)


@pytest.mark.parametrize("function", [large.make, filler], ids=["a buffer", "plain"])
async def test_a_result_may_be_as_large_as_was_said_and_no_larger(
    function: Any,
) -> None:
    size = len(pack_value(function(300_000)))
    for most in (size, None):
        async with patience(), Pool(1, max_message_size=most) as pool:
            assert await pool.submit(function, 300_000) == function(300_000)
    text = (
        f"the job's result has {size} bytes when pickled, and max_message_size is "
        f"{size - 1}"
    )
    await assert_too_large(size - 1, text, "result", function, 300_000)


async def assert_too_large(
    most: int, text: str, direction: str, function: Any, argument: Any
) -> None:
    async with patience(), Pool(1, max_message_size=most) as pool:
        job = pool.submit(function, argument)
        with pytest.raises(JobNotPicklableError) as caught:
            await job
        error = caught.value
        assert (str(error), error.direction) == (text, direction)
        assert error.name == ("the call" if direction == "arguments" else "")
        assert error.attempt == (0 if direction == "arguments" else 1)
        assert error.job_id == job.id
        assert large.numbers(pool) == set()
        await assert_serves(pool)


# What is built of small objects is pickled and unpickled elsewhere.


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
async def test_the_loops_thread_does_not_pickle_what_is_long(
    pool: Pool, at: float
) -> None:
    value = crowd(2 * MIB, at=at)
    with Stop() as stop:
        assert await pool.submit(large.same, value) == value
    ways = [way for way, _ in stop.passed]
    threads = [name for _, name in stop.passed]
    if at == 0.0:
        # It has to find out that it is long.
        assert ways == ["pickled", "pickled", "unpickled"]
        assert threads.pop(0) == "MainThread"
    else:
        assert ways == ["pickled", "unpickled"]
    assert all(name.startswith("asyncpool-pickle") for name in threads), threads
    with Stop() as stop:  # what is short is pickled at once
        short = [Passenger(), Block(pattern(MIB))]
        assert await pool.submit(large.same, short) == short
    assert stop.passed == [("pickled", "MainThread"), ("unpickled", "MainThread")]


WAYS: dict[str, tuple[Any, Any]] = {
    "pickled": (large.same, crowd(MIB)),
    "unpickled": (crowd, MIB),
}


def submit(pool: Pool, way: str) -> Job[Any]:
    """Submit what is made elsewhere for a moment, when it is sent or when it comes."""
    function, value = WAYS[way]
    return pool.submit(function, value)


EACH_WAY = pytest.mark.parametrize("way", WAYS)


@EACH_WAY
async def test_the_pool_goes_on_while_something_is_made_elsewhere(way: str) -> None:
    async with patience(), Pool(2, ready="all") as pool:
        with Stop(way, most=2) as stop:
            slow = [submit(pool, way) for _ in range(2)]
            await stop.reached(2)
            state = ("queued", 0, None) if way == "pickled" else ("running", 1, None)
            for job in slow:
                assert (job.state, job.attempt, job.worker_pid) == state
            stats = pool.stats()
            assert (stats.idle, stats.queued) == (2, 2 if way == "pickled" else 0)
            # Others do not wait for it.
            assert await pool.submit(jobs.square, 5) == 25
            block = Block(pattern(2 * MIB))
            assert await pool.submit(large.same, block) == block
            # One that computes for longer than 20 ms would rest until they are done.
            assert await pool.submit(large.same, crowd(MIB // 4)) == crowd(MIB // 4)
            assert not any(job.done() for job in slow)
            stop.release()
            assert await asyncio.gather(*slow) == [crowd(MIB)] * 2


async def test_no_more_is_pickled_ahead_than_there_are_workers_for(
    pair: Pool, gate: Gate
) -> None:
    held = [pair.submit(jobs.wait_at, gate.path, str(n)) for n in range(2)]
    visitors = [await gate.visitor(str(n)) for n in range(2)]
    with Stop() as stop:
        queued = [pair.submit(large.same, crowd(MIB)) for _ in range(10)]
        first = [job for job in queued if await settled(pair, queued, 3, job)]
        assert len(first) == 3
        assert first == queued[:3]
        assert len(stop.passed) == 3
    for visitor in visitors:
        visitor.release()
    await asyncio.gather(*held)
    assert await asyncio.gather(*queued) == [crowd(MIB)] * 10


async def settled(pool: Pool, queued: list[Any], count: int, job: Any) -> bool:
    """Wait until *count* of them are pickled, and tell whether *job* is."""
    while sum(map(pickled, queued)) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not pickling(pool)
    return pickled(job)


async def test_what_is_being_pickled_counts_as_waiting() -> None:
    async with patience(), Gate() as gate, Pool(1, max_queued=3) as pool:
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        with Stop("pickled") as stop:
            queued = [pool.submit(large.same, crowd(MIB)) for _ in range(3)]
            await stop.reached()
            assert pool.stats().queued == 3
            with pytest.raises(PoolFullError) as caught:
                pool.submit(large.same, crowd(MIB))
            assert (caught.value.waiting, caught.value.max_queued) == (3, 3)
            with pytest.raises(PoolFullError):
                pool.submit(jobs.square, 5)
            # One that is given up makes room.
            queued.pop().cancel()
            queued.append(pool.submit(large.same, crowd(MIB)))
            assert pool.stats().queued == 3
        visitor.release()
        assert await held == "go"
        assert await asyncio.gather(*queued) == [crowd(MIB)] * 3
        # It has no worker yet, but it will have the idle one.
        await idle(pool)
        queued.clear()
        with Stop("pickled") as stop:
            with suppress(PoolFullError):
                while len(queued) < 20:
                    queued.append(pool.submit(large.same, crowd(MIB)))
            stop.release()
            assert await asyncio.gather(*queued) == [crowd(MIB)] * len(queued)
        assert 3 <= len(queued) <= 4  # three wait, and one has a worker as good as


# The end of the pool.


@EACH_WAY
async def test_a_close_waits_for_what_is_made_elsewhere(way: str) -> None:
    async with patience():
        pool = await started(1)
        with Stop(way) as stop:
            queued = [submit(pool, way) for _ in range(3)]
            await stop.reached()
            close = await closing(pool)
            while pool.stats().busy:  # noqa: ASYNC110 - a planned end is no event
                await asyncio.sleep(0)
            for _ in range(50):
                await asyncio.sleep(0)
            assert pool.stats().state == "closing"
            assert not close.done()
            assert not any(job.done() for job in queued)
            stop.release()
            assert await close == CloseSummary(finished=3, failed=0, killed=0)
        assert [job.result() for job in queued] == [crowd(MIB)] * 3


async def test_a_job_that_is_tried_again_is_so_in_a_closing_pool_too() -> None:
    """Its exception is so large that a thread loads it when no worker is busy."""
    async with patience():
        pool = await started(1)
        view = pool.options(max_attempts=2, retry_on=[LookupError])
        job = view.submit(fail_crowded)
        with Stop("unpickled") as stop:
            await stop.reached()
            close = await closing(pool)
            stop.release()
            assert await job == 2
            assert await close == CloseSummary(finished=1, failed=0, killed=0)


def fail_crowded() -> int:
    import asyncpool

    if asyncpool.current_job().attempt == 1:
        raise LookupError(crowd(2 * MIB))
    return asyncpool.current_job().attempt


@pytest.mark.parametrize(
    ("way", "finish"),
    [("pickled", "none"), ("pickled", "running"), ("unpickled", "none")],
)
async def test_a_close_that_finishes_less_fails_what_is_made_elsewhere(
    way: str, finish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, no other one is pickled beside the first.
    pickle_one_at_a_time(monkeypatch)
    name = large.same.__qualname__ if way == "pickled" else crowd.__qualname__
    delivery = "never sent" if way == "pickled" else "started"  # even to its end
    async with patience():
        pool = await started(1)
        with Stop(way) as stop:
            count = 3 if way == "pickled" else 1
            queued = [submit(pool, way) for _ in range(count)]
            await stop.reached()
            close = await closing(pool, finish=finish)
            results = await asyncio.gather(*queued, return_exceptions=True)
            assert not close.done()  # the thread is still at it
            stop.release()
            assert await close == CloseSummary(finished=0, failed=count, killed=0)
        for job, error in zip(queued, results, strict=True):
            assert type(error) is PoolClosedError
            job_name = f"tests.helpers.large.{name}"
            text = f"the pool was closed before job {job.id} ({job_name}) was done"
            assert (str(error), error.delivery) == (text, delivery)
            assert error.job_id == job.id
        # Nobody wanted the others any more.
        assert len(stop.passed) == 1


@pytest.mark.parametrize("way", ["pickled", "unpickled"])
async def test_a_close_does_not_wait_for_ever_for_the_users_code(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandon_threads_after(monkeypatch, 0.01)
    async with patience():
        pool = await started(1)
        with Stop(way) as stop:
            job = pool.submit(large.same, crowd(MIB))
            await stop.reached()
            summary = await pool.close(timeout=0.0)
            assert (summary.finished, summary.failed) == (0, 1)
            error = job.exception()
            assert isinstance(error, PoolClosedError)
            assert error.delivery == ("started" if way == "unpickled" else "never sent")
            stop.release()


# Nothing is kept.


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["shared", "sent"])
async def test_nothing_is_kept_of_an_argument(memory: int) -> None:
    async with patience(), Pool(1, max_shared_memory=memory) as pool:
        for size in (100 * KIB, MIB, 3 * MIB):
            block: Any = Block(pattern(size))
            plain: Any = Crowd(filler(size))
            refs = [weakref.ref(block), weakref.ref(plain)]
            job: Job[Any] = pool.submit(large.same, (block, plain))
            del block, plain
            back_block, back_plain = await job
            assert [ref() for ref in refs] == [None, None], size
            refs = [weakref.ref(back_block), weakref.ref(back_plain)]
            del back_block, back_plain, job
            await all_free(pool)
            # A thread may still be on its way out of the call that has made them.
            while any(ref() for ref in refs):  # noqa: ASYNC110 - nobody is told of that
                await asyncio.sleep(0)
        failing: Any = Block(pattern(MIB))
        ref = weakref.ref(failing)
        raised: Job[Any] = pool.submit(large.fail_with, failing)
        del failing
        await asyncio.wait([raised])
        assert ref() is None
        [copy] = raised.exception().args  # type: ignore[union-attr] # it raised
        assert copy == Block(pattern(MIB))


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["shared", "sent"])
async def test_a_large_job_leaves_no_garbage(memory: int) -> None:
    async with patience(), Pool(1, max_shared_memory=memory) as pool:
        value = [Block(pattern(3 * MIB)), filler(MIB)]
        found = -1
        for _ in range(3):  # the first one starts threads and imports modules
            assert await pool.submit(large.same, value) == value
            await all_free(pool)
            found = gc.collect()
        assert found == 0


async def test_workers_hold_no_descriptors_of_what_they_have_used(pool: Pool) -> None:
    for n in range(5):
        await pool.submit(large.keep, Block(pattern(MIB, n)))
    results = [await pool.submit(large.make, MIB, n) for n in range(5)]
    assert await pool.submit(large.segment_descriptors) == []
    assert large.segment_descriptors() == []
    assert len(results) == 5
    await until(pool, lambda stats: stats.idle == 1)
