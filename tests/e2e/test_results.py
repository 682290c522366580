"""What comes back: results, the job's own exceptions, and what cannot be sent."""

from __future__ import annotations

import array
import asyncio
import ctypes
import functools
import math
import operator
import traceback
from typing import Any

import pytest

from asyncpool import CloseSummary, Job, Pool
from asyncpool.errors import (
    JobNotPicklableError,
    JobRaisedError,
    PoolClosedError,
    RemoteTraceback,
)
from tests.helpers import jobs, values
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.values import Point

pytestmark = ONE_LOOP


async def test_functions_of_every_kind(pair: Pool) -> None:
    factor = 3

    def closure(number: int) -> int:
        return number * factor

    point = Point(1, 2)
    assert await pair.submit(math.factorial, 20) == math.factorial(20)
    assert await pair.submit(int, "ff", base=16) == 255
    assert await pair.submit(lambda n: n + 1, 1) == 2
    assert await pair.submit(closure, 5) == 15
    assert await pair.submit(functools.partial(pow, 2), 10) == 1024
    assert await pair.submit(point.scaled, 2) == Point(2, 4)
    assert await pair.submit(Point.origin) == Point(0, 0)
    assert await pair.submit(Point.dimensions) == 2
    assert await pair.submit(point) == 3
    assert await pair.submit("-".join, ["a", "b"]) == "a-b"
    assert await pair.submit(operator.itemgetter(1), [4, 5]) == 5


async def test_results_come_back_whole(pair: Pool) -> None:
    large = bytes(range(256)) * 40_000
    whole: tuple[object, ...] = (
        None,
        0,
        "",
        b"",
        [],
        {"a": (1, 2)},
        math.inf,
        "ä\0€",
        large,
    )
    for value in whole:
        assert await pair.submit(jobs.call, operator.itemgetter(0), [value]) == value
    assert await pair.submit(len, large) == len(large)
    many = [pair.submit(jobs.square, n) for n in range(2000)]
    assert await asyncio.gather(*many) == [n * n for n in range(2000)]


async def test_a_view_keeps_its_format_and_shape(pool: Pool) -> None:
    numbers = memoryview(array.array("i", range(6)))
    for view in (numbers, numbers[::2], numbers.cast("B").cast("i", (2, 3))):
        there = await pool.submit(jobs.call_or_return, view)
        assert (there.format, there.tolist()) == (view.format, view.tolist())
    odd = memoryview((ctypes.c_int * 3)())
    with pytest.raises(JobNotPicklableError, match="a memoryview of '<i' cannot be"):
        await pool.submit(jobs.call_or_return, odd)


async def test_an_exception_arrives_as_itself_with_the_workers_traceback(
    pool: Pool,
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        await pool.submit(jobs.divide, 1, 0)
    assert await pool.submit(jobs.divide, 1, 2) == 0.5
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    text = "".join(traceback.format_exception(caught.value))
    assert "return one / other  # the line that fails" in text
    assert "in divide" in text
    # The worker's own frames are of no interest to anybody.
    assert "_worker" not in str(cause)


async def test_awkward_exceptions_arrive_too(pool: Pool) -> None:
    with pytest.raises(values.NeedsTwoError) as two:
        await pool.submit(values.raise_needs_two)
    assert (str(two.value), two.value.left) == ("salt and pepper", "salt")
    with pytest.raises(values.NeedsKeywordError) as keyword:
        await pool.submit(values.raise_needs_keyword)
    assert keyword.value.code == 7
    with pytest.raises(values.SlottedError, match="failed") as slotted:
        await pool.submit(values.raise_slotted)
    assert (slotted.value.code, slotted.value.__notes__) == (7, ["noted"])
    assert not hasattr(slotted.value, "unset")
    with pytest.raises(ExceptionGroup) as group:
        await pool.submit(values.raise_group)
    assert [str(error) for error in group.value.exceptions] == ["one", "two"]
    with pytest.raises(RuntimeError, match="outer") as outer:
        await pool.submit(values.raise_from_cause)
    assert "ValueError: could not convert string to float: 'inner'" in str(
        outer.value.__cause__
    )
    with pytest.raises(StopAsyncIteration):
        await pool.submit(jobs.fail, StopAsyncIteration())
    assert pool.stats().crashes == 0


KEPT = values.Unpicklable()


@pytest.mark.parametrize(
    ("call", "direction", "name", "text"),
    [
        ((jobs.take, 1, KEPT), "arguments", "args[1]", "not for sale"),
        ((jobs.take, 1, [{"deep": KEPT}]), "arguments", "args[1]", "not for sale"),
        ((functools.partial(jobs.take, KEPT),), "arguments", "fn", "not for sale"),
        ((jobs.take, values.FailsTwice()), "arguments", "the call", "not yet"),
        ((values.make_lock,), "result", "lock", "cannot pickle"),
        ((values.make_only_there,), "result", "", "not here"),
        ((values.raise_holds_lock,), "exception", "HoldsLockError", "the lock is mine"),
        (
            (values.raise_hostile,),
            "exception",
            "HostileError",
            "__str__ raised ValueError",
        ),
    ],
)
async def test_what_cannot_be_sent_is_named_and_fails_its_own_job(
    pool: Pool, call: tuple[Any, ...], direction: str, name: str, text: str
) -> None:
    before = pool.submit(jobs.square, 2)
    job = pool.submit(*call)
    after = pool.submit(jobs.square, 3)
    with pytest.raises(JobNotPicklableError, match=text) as caught:
        await job
    assert (await before, await after) == (4, 9)
    error = caught.value
    attempt = int(direction != "arguments")
    assert (error.job_id, error.attempt) == (job.id, attempt)
    assert error.direction == direction
    assert error.name.endswith(name)


async def test_a_keyword_that_cannot_be_sent_is_named(pool: Pool) -> None:
    with pytest.raises(JobNotPicklableError, match="not for sale") as caught:
        await pool.submit(jobs.take, key=KEPT)
    assert caught.value.name == "kwargs['key']"


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        SystemExit(),
        KeyboardInterrupt("no"),
        GeneratorExit(),
        StopIteration(1),
        asyncio.CancelledError("not yours"),
    ],
    ids=repr,
)
async def test_what_must_not_be_raised_in_the_caller_is_wrapped(
    pool: Pool, error: BaseException
) -> None:
    pid = await pool.submit(jobs.pid)
    job: Job[Any] = pool.submit(jobs.fail, error)
    with pytest.raises(JobRaisedError) as caught:
        await job
    assert type(caught.value.exception) is type(error)
    assert caught.value.exception.args == error.args
    assert caught.value.__cause__ is caught.value.exception
    assert (caught.value.job_id, caught.value.attempt) == (job.id, 1)
    assert await pool.submit(jobs.pid) == pid


async def test_an_argument_that_raises_in_the_worker_fails_its_job(pool: Pool) -> None:
    with pytest.raises(LookupError, match="over there"):
        await pool.submit(jobs.take, values.ExplodesThere(LookupError("over there")))
    with pytest.raises(JobRaisedError):
        await pool.submit(jobs.take, values.ExplodesThere(SystemExit(1)))
    with pytest.raises(ModuleNotFoundError):
        await pool.submit(jobs.take, values.ExplodesThere(ModuleNotFoundError("gone")))
    assert await pool.submit(jobs.square, 2) == 4
    assert pool.stats().crashes == 0


async def test_what_is_too_large_is_refused_by_either_side() -> None:
    async with patience(), Pool(1, max_message_size=100_000) as pool:
        pid = await pool.submit(jobs.pid)
        with pytest.raises(
            JobNotPicklableError, match="max_message_size is 100000"
        ) as call:
            await pool.submit(len, bytes(100_001))
        with pytest.raises(JobNotPicklableError, match="max_message_size") as result:
            await pool.submit(bytes, 100_001)
        with pytest.raises(JobNotPicklableError, match="max_message_size") as error:
            await pool.submit(jobs.fail, ValueError("x" * 60_000))
        assert await pool.submit(bytes, 99_000) == bytes(99_000)
        assert await pool.submit(jobs.pid) == pid
    assert call.value.direction == "arguments"
    assert result.value.direction == "result"
    assert error.value.direction == "exception"


async def test_what_is_no_function_is_refused(pool: Pool) -> None:
    with pytest.raises(TypeError, match=r"submit\(\) takes a callable first, not 3"):
        pool.submit(3)  # type: ignore[call-overload]
    assert await pool.submit(jobs.square, 3) == 9


async def test_a_pool_that_never_started_closes_for_good() -> None:
    pool = Pool(1)
    with pytest.raises(PoolClosedError, match="was not started: use 'async with pool'"):
        pool.submit(jobs.square, 2)
    assert await pool.close() == CloseSummary(finished=0, failed=0, killed=0)
    with pytest.raises(PoolClosedError):
        await pool.start()
    with pytest.raises(PoolClosedError, match=r"^the pool is closed$"):
        pool.submit(jobs.square, 2)
