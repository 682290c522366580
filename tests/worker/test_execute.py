"""The contract of an executor: every job has one outcome, whatever it does."""

from __future__ import annotations

import functools
import gc
import operator
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import asyncpool
from asyncpool import JobNotPicklableError, JobRaisedError
from asyncpool._core.pickling.calls import load_value, pack_job
from asyncpool._core.pickling.errors import load_error
from asyncpool._core.pickling.out_of_band import OutOfBandPickle, ReceivedPickle
from asyncpool._core.pickling.reducers import LARGE
from asyncpool._core.wire.frames import MAX_NUMBER, Frame, FrameKind
from asyncpool._worker.channel.large_buffers import LargeBuffers
from asyncpool._worker.job.coroutines import Coroutines
from asyncpool._worker.job.execute import JobRunner
from asyncpool._worker.job.streams import Streams
from asyncpool._worker.job_ending.interrupts import Interrupts
from tests.helpers import jobs, values
from tests.helpers.parcels import Array, arrived, plain

LIMIT = 1 << 20


class Uninterrupted(Interrupts):
    """Jobs in this process go on to their end."""

    def __init__(self) -> None:
        self.running = self.fences = None
        self._wanted = set()
        self._held = False


class Aside(LargeBuffers):
    """Has what comes beside jobs, if a test has put it there.

    Attributes:
        cargo: What comes beside the next job, or is raised for it.
    """

    def __init__(self) -> None:
        self.cargo: list[object] = []

    def complete(
        self, payload: bytes | memoryview
    ) -> bytes | memoryview | ReceivedPickle:
        """Return what the next job is made of."""
        if not self.cargo:
            return payload
        found = self.cargo.pop()
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, ReceivedPickle)
        assert found.stream == payload
        return found


def executor_of(limit: int) -> JobRunner:
    """Return an executor of jobs with which nothing else has come."""
    return make_executor(limit, Aside())


def make_executor(limit: int, large_buffers: LargeBuffers) -> JobRunner:
    interrupts = Uninterrupted()
    coroutines = Coroutines(interrupts)
    no_channel: Any = None
    streams = Streams(no_channel, no_channel, interrupts, coroutines)
    executor = JobRunner(large_buffers, interrupts, coroutines, streams)
    executor.max_payload = limit
    return executor


def run(function: Callable[..., Any], *args: Any, limit: int = LIMIT) -> Any:
    """Return the value of a job, or raise what it raised."""
    frame = Frame(FrameKind.JOB, 7, 3, 0, plain(pack_job(function, args, {})))
    return opened(executor_of(limit).run(frame, 1))


def call(executor: JobRunner, number: int, *args: Any, **kwargs: Any) -> Any:
    """Return the value of a job that calls a function by its number, or raise."""
    payload = plain(pack_job(jobs.take, args, kwargs, number=number))
    return opened(executor.run(Frame(FrameKind.JOB, 7, 3, number, payload), 1))


def opened(outcome: tuple[FrameKind, bytes | OutOfBandPickle, int]) -> Any:
    kind, payload, duration = outcome
    assert 0 <= duration <= MAX_NUMBER
    if kind is FrameKind.VALUE:
        return load_value(arrived(payload))
    assert kind is FrameKind.ERROR
    raise load_error(plain(payload))


def learn(executor: JobRunner, number: int, function: object) -> None:
    payload = pickle.dumps(function)
    executor.learn(Frame(FrameKind.FUNCTION, 0, 0, number, payload))


def test_a_value() -> None:
    assert run(jobs.square, 12) == 144
    assert run(lambda: None) is None


def test_a_job_knows_its_number_and_attempt_and_nobody_else_does() -> None:
    assert run(jobs.attempt) == (7, 3)
    with pytest.raises(RuntimeError):
        asyncpool.current_job()


def test_the_number_is_forgotten_after_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError):
        run(jobs.divide, 1, 0)
    with pytest.raises(RuntimeError):
        asyncpool.current_job()


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr
)
def test_what_would_end_a_program_is_an_outcome(error: BaseException) -> None:
    with pytest.raises(JobRaisedError) as caught:
        run(jobs.fail, error)
    assert type(caught.value.exception) is type(error)


def test_the_traceback_begins_in_the_job() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run(jobs.divide, 1, 0)
    text = str(caught.value.__cause__)
    assert text.count("  File ") == 1
    assert "the line that fails" in text


@pytest.mark.parametrize("size", [LIMIT - 100, LIMIT + 1])
def test_a_result_above_the_limit_is_an_error(size: int) -> None:
    if size < LIMIT:
        assert run(bytes, size) == bytes(size)
    else:
        with pytest.raises(JobNotPicklableError, match=f"max_message_size is {LIMIT}"):
            run(bytes, size)


def test_an_error_above_the_limit_is_named() -> None:
    with pytest.raises(JobNotPicklableError, match="ValueError"):
        run(functools.partial(jobs.fail, ValueError("x" * 600)), limit=1024)


def test_arguments_that_cannot_be_unpickled_are_the_jobs_error() -> None:
    with pytest.raises(LookupError, match="there"):
        run(jobs.take, values.ExplodesThere(LookupError("there")))


_alive: list[weakref.ref[Any]] = []


def _remember(argument: object) -> values.Point:
    """Note an argument, a local value and a result."""
    local, result = values.Point(1, 2), values.Point(3, 4)
    _alive.extend(map(weakref.ref, (argument, local, result)))
    return result


def test_nothing_of_a_job_is_kept() -> None:
    _alive.clear()
    executor = executor_of(LIMIT)
    learn(executor, 1, _remember)
    assert call(executor, 1, values.Point(5, 6)) == values.Point(3, 4)
    gc.collect()
    assert [ref() for ref in _alive] == [None, None, None]


# What travels beside the frames.


def executor_and_cargo(limit: int) -> tuple[JobRunner, list[object]]:
    """Return an executor, and where to put what comes beside its next job."""
    aside = Aside()
    return make_executor(limit, aside), aside.cargo


def test_what_came_beside_a_job_is_part_of_its_arguments() -> None:
    executor, cargo = executor_and_cargo(LIMIT)
    call = pack_job(operator.attrgetter("data"), (Array(bytearray(b"x") * LARGE),), {})
    assert isinstance(call, OutOfBandPickle)
    cargo.append(arrived(call))
    kind, payload, _ = executor.run(Frame(FrameKind.JOB, 7, 3, 0, call.payload), 1)
    assert kind is FrameKind.VALUE
    assert load_value(arrived(payload)) == b"x" * LARGE


def test_what_cannot_be_had_is_the_jobs_error() -> None:
    executor, cargo = executor_and_cargo(LIMIT)
    cargo.append(OSError(24, "no descriptors"))
    payload = plain(pack_job(jobs.square, (3,), {}))
    with pytest.raises(OSError, match="no descriptors") as caught:
        opened(executor.run(Frame(FrameKind.JOB, 7, 3, 0, payload), 1))
    assert caught.value.errno == 24
    cargo.append(ReceivedPickle(payload, []))
    assert opened(executor.run(Frame(FrameKind.JOB, 7, 3, 0, payload), 1)) == 9


@pytest.mark.parametrize("excess", [0, 1])
def test_the_limit_counts_what_travels_beside_a_result(excess: int) -> None:
    _, payload, _ = executor_of(LIMIT).run(array_frame(LARGE), 1)
    assert isinstance(payload, OutOfBandPickle)
    limit = len(payload) - excess
    assert limit > LARGE
    outcome = executor_of(limit).run(array_frame(LARGE), 1)
    if not excess:
        assert opened(outcome) == Array(bytes(LARGE))
        return
    with pytest.raises(JobNotPicklableError) as caught:
        opened(outcome)
    assert str(caught.value) == (
        f"the job's result has {limit + 1} bytes when pickled, and "
        f"max_message_size is {limit}"
    )


def array_frame(size: int) -> Frame:
    return Frame(FrameKind.JOB, 7, 3, 0, plain(pack_job(make_array, (size,), {})))


def make_array(size: int) -> Array:
    return Array(bytearray(size))


# Functions that are called by their numbers.


def test_functions_are_called_by_their_numbers() -> None:
    executor = executor_of(LIMIT)
    learn(executor, 7, jobs.take)
    learn(executor, 4_000_000_000, jobs.square)
    assert call(executor, 7, "a", "b", c="d") == 3
    assert call(executor, 4_000_000_000, 12) == 144
    assert call(executor, 7) == 0


def test_one_executor_takes_calls_of_both_kinds() -> None:
    executor = executor_of(LIMIT)
    learn(executor, 1, jobs.attempt)
    assert call(executor, 1) == (7, 3)
    payload = plain(pack_job(lambda: "along", (), {}))
    assert opened(executor.run(Frame(FrameKind.JOB, 8, 1, 0, payload), 1)) == "along"


def test_the_traceback_of_such_a_call_begins_in_the_job() -> None:
    executor = executor_of(LIMIT)
    learn(executor, 1, jobs.divide)
    with pytest.raises(ZeroDivisionError) as caught:
        call(executor, 1, 1, 0)
    text = str(caught.value.__cause__)
    assert text.count("  File ") == 1
    assert "the line that fails" in text


_lookups: list[str] = []


class _Looked:
    """Stands for a function, and notes when it is looked up."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _look_up, ()


def _look_up() -> Callable[..., int]:
    _lookups.append("looked up")
    return jobs.square


def test_a_function_is_looked_up_once_and_not_before_its_first_call() -> None:
    _lookups.clear()
    executor = executor_of(LIMIT)
    learn(executor, 1, _Looked())
    assert _lookups == []
    assert [call(executor, 1, n) for n in (2, 3)] == [4, 9]
    assert _lookups == ["looked up"]


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (pickle.dumps(values.ExplodesThere(LookupError("there"))), LookupError),
        (b"cno_such_module\nfunction\n.", ModuleNotFoundError),
        (b"ctests.helpers.jobs\nno_such_function\n.", AttributeError),
        (b"rubbish", pickle.UnpicklingError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_function_that_is_not_found_is_the_error_of_each_call(
    payload: bytes, error: type[Exception]
) -> None:
    executor = executor_of(LIMIT)
    executor.learn(Frame(FrameKind.FUNCTION, 0, 0, 1, payload))
    learn(executor, 2, jobs.square)
    for _ in range(2):
        with pytest.raises(error) as caught:
            call(executor, 1)
        assert type(caught.value) is error
        assert call(executor, 2, 5) == 25


def test_the_257th_function_makes_it_forget_the_first() -> None:
    executor = executor_of(LIMIT)
    for number in range(1, 257):
        learn(executor, number, jobs.square)
    # Neither a call nor the first lookup makes it any younger.
    assert [call(executor, n, 3) for n in (1, 2, 256, 1)] == [9, 9, 9, 9]
    learn(executor, 257, jobs.take)
    with pytest.raises(KeyError) as caught:
        call(executor, 1, 3)
    assert caught.value.args == (1,)
    assert [call(executor, n, 3) for n in (2, 3, 256, 257)] == [9, 9, 9, 1]
    learn(executor, 258, jobs.take)
    with pytest.raises(KeyError) as caught:
        call(executor, 2, 3)
    assert caught.value.args == (2,)
    assert [call(executor, n, 3) for n in (3, 257, 258)] == [9, 1, 1]


# How long a job takes.


Timed = Callable[..., tuple[FrameKind, int]]


class Clock:
    """Time that passes only when somebody spends it."""

    def __init__(self) -> None:
        self.now = 123_456_789

    def __call__(self) -> int:
        return self.now


_clock = Clock()


def spend(nanoseconds: int, result: object = None) -> object:
    _clock.now += nanoseconds
    return result


def spend_and_fail(nanoseconds: int) -> None:
    spend(nanoseconds)
    raise LookupError


class Costly:
    """Costs time where it is unpickled, and where its copy is pickled."""

    def __init__(self, there: int, back: int) -> None:
        self.there = there
        self.back = back

    def __reduce__(self) -> tuple[Any, ...]:
        if self.there:
            return _arrive, (self.there, self.back)
        spend(self.back)
        return Costly, (0, 0)


def _arrive(there: int, back: int) -> Costly:
    spend(there)
    return Costly(0, back)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    """Run a job, and return what it was and how long it took."""
    monkeypatch.setattr("asyncpool._worker.job.execute.perf_counter_ns", _clock)

    def run(function: Callable[..., Any], *args: Any) -> tuple[FrameKind, int]:
        frame = Frame(FrameKind.JOB, 7, 3, 0, plain(pack_job(function, args, {})))
        kind, _, duration = executor_of(LIMIT).run(frame, 1)
        return kind, duration

    return run


@pytest.mark.parametrize(
    ("nanoseconds", "microseconds"),
    [
        (0, 0),
        (999, 0),
        (1000, 1),
        (4_566_999, 4566),
        (MAX_NUMBER * 1000 - 1, MAX_NUMBER - 1),
        (MAX_NUMBER * 1000, MAX_NUMBER),
        (MAX_NUMBER * 1000 + 1000, MAX_NUMBER),
        (10**18, MAX_NUMBER),
    ],
)
def test_a_duration_is_in_microseconds_and_fits_in_a_header(
    nanoseconds: int, microseconds: int, timed: Timed
) -> None:
    assert timed(spend, nanoseconds) == (FrameKind.VALUE, microseconds)
    assert timed(spend_and_fail, nanoseconds) == (FrameKind.ERROR, microseconds)


def test_a_duration_is_all_that_others_waited_for(timed: Timed) -> None:
    # To unpickle the arguments, to make the call, and to pickle the result.
    costly = Costly(1_000_000, 4_000_000)
    assert timed(spend, 2_000_000, costly) == (FrameKind.VALUE, 7000)
