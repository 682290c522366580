"""What comes back: results, the job's own exceptions, and what cannot be sent."""

from __future__ import annotations

import asyncio
import functools
import math
import multiprocessing
import operator
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from asyncpool import (
    Job,
    JobNotPicklableError,
    JobRaisedError,
    Pool,
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


@pytest.mark.parametrize(
    ("function", "name", "text"),
    [
        (values.raise_holds_lock, "HoldsLockError", "the lock is mine"),
        (values.raise_hostile, "HostileError", "__str__ raised ValueError"),
    ],
)
async def test_an_exception_that_cannot_be_sent_is_named(
    pool: Pool, function: Callable[[], Any], name: str, text: str
) -> None:
    job = pool.submit(function)
    with pytest.raises(JobNotPicklableError, match=name) as caught:
        await job
    assert await pool.submit(jobs.square, 2) == 4
    error = caught.value
    assert (error.direction, error.job_id, error.attempt) == ("exception", job.id, 1)
    assert error.name.endswith(name)
    assert text in error.text
    assert name in str(error.__cause__)


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


async def test_leaving_politely_kills_nothing(pool: Pool) -> None:
    pid = await pool.submit(jobs.pid)
    for status in (None, 0, 3, "bye"):
        with pytest.raises(JobRaisedError) as caught:
            await pool.submit(jobs.leave, status)
        assert isinstance(caught.value.exception, SystemExit)
        assert caught.value.exception.code == status
    assert await pool.submit(jobs.pid) == pid


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        ((1, values.Unpicklable()), {}, "args[1]"),
        ((1, [{"deep": values.Unpicklable()}]), {}, "args[1]"),
        ((), {"key": values.Unpicklable()}, "kwargs['key']"),
    ],
)
async def test_an_argument_that_cannot_be_sent_fails_its_own_submit(
    args: tuple[object, ...], kwargs: dict[str, object], name: str
) -> None:
    async with patience(), Pool(1) as pool:
        before = pool.submit(jobs.square, 2)
        job = pool.submit(jobs.take, *args, **kwargs)
        after = pool.submit(jobs.square, 3)
        with pytest.raises(JobNotPicklableError, match="not for sale") as caught:
            await job
        assert await before == 4
        assert await after == 9
        assert pool.stats().failed == 1
    assert (caught.value.name, caught.value.direction) == (name, "arguments")
    assert caught.value.job_id == job.id


async def test_a_function_that_cannot_be_sent_is_named(pool: Pool) -> None:
    bound = values.Unpicklable()
    with pytest.raises(JobNotPicklableError) as caught:
        await pool.submit(functools.partial(jobs.take, bound))
    assert caught.value.name == "fn"


async def test_a_result_that_cannot_be_sent_is_named(pool: Pool) -> None:
    job = pool.submit(values.make_lock)
    with pytest.raises(JobNotPicklableError, match="lock") as there:
        await job
    with pytest.raises(JobNotPicklableError, match="not here") as here:
        await pool.submit(values.make_only_there)
    assert await pool.submit(jobs.square, 2) == 4
    stats = pool.stats()
    for caught in (there, here):
        assert caught.value.direction == "result"
        assert caught.value.attempt == 1
    assert there.value.name == "lock"
    assert there.value.job_id == job.id
    assert stats.crashes == 0


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


async def test_connections_cross_in_neither_direction(pool: Pool) -> None:
    """A copy would have the number of the descriptor, and close what has it there."""
    one, other = multiprocessing.Pipe()
    with one, other:
        async with patience():
            with pytest.raises(JobNotPicklableError, match=r"args\[1\] cannot") as sent:
                await pool.submit(print, "to", one)
            assert (sent.value.direction, sent.value.name) == ("arguments", "args[1]")
            with pytest.raises(JobNotPicklableError, match="a descriptor of") as made:
                await pool.submit(multiprocessing.Pipe)
            assert (made.value.direction, made.value.name) == ("result", "tuple")
            assert await pool.submit(jobs.square, 3) == 9
            assert pool.stats().crashes == 0
