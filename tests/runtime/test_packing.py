"""The contract of pickling elsewhere: in order, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncpool._core.figures.function_figures import FunctionTotals
from asyncpool._core.pickling.calls import pack_value
from asyncpool._core.pickling.errors import pack_error
from asyncpool._core.pickling.functions import FunctionTable
from asyncpool._core.pickling.out_of_band import OutOfBandPickle, ReceivedPickle
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._runtime.base.threads import AbandonedError, Pause
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.job.outcomes import Failed
from asyncpool._runtime.traffic.large_jobs import Packer, Unpacker
from asyncpool.errors import JobNotPicklableError
from tests.helpers import large, values
from tests.helpers.large import Passenger
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.owner import Owner

pytestmark = BOTH_LOOPS


class Hands:
    """Threads that do a call when they are told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []

    def pickle(
        self,
        function: Callable[..., Any],
        *args: Any,
        unwanted: Callable[[], bool],
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((future, lambda: function(*args, Pause(unwanted))))
        return future

    async def work(self) -> None:
        """Do the oldest call, and let whoever waits for it hear of that."""
        future, call = self.calls.pop(0)
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - as a thread does
            future.set_exception(error)
        else:
            future.set_result(result)
        await asyncio.sleep(0)

    async def work_all(self) -> int:
        """Do calls as long as there are any, and return how many there were."""
        count = 0
        while self.calls:
            await self.work()
            count += 1
        return count


class Office:
    """A packer, and what has come of its work."""

    def __init__(self, ahead: int = 2) -> None:
        self.hands = Hands()
        self.done: list[Job[Any]] = []
        self.refusals: list[tuple[Job[Any], JobNotPicklableError]] = []
        self.packer = Packer(
            self.hands,  # type: ignore[arg-type] # a fake
            self,
            ahead=ahead,
        )
        self._functions = FunctionTable(FunctionTotals())

    def packed(self, job: Job[Any], payload: bytes | OutOfBandPickle) -> None:
        """Take what is to travel."""
        job._payload = payload
        self.done.append(job)

    def refused(self, job: Job[Any], error: JobNotPicklableError) -> None:
        """Take what cannot be pickled."""
        self.refusals.append((job, error))

    def job(self, number: int = 0) -> Job[Any]:
        return Job(
            number,
            self._functions.find(large.same),
            JobOptions(),
            Owner(),
            asyncio.get_running_loop(),
        )

    def add(self, number: int = 0, value: object = None) -> Job[Any]:
        """Have a call pickled; it is a large one, unless a *value* says otherwise."""
        job = self.job(number)
        argument = large.filler(200_000) if value is None else value
        self.packer.add(job, (large.same, (argument,), {}))
        return job


# Arguments.


async def test_calls_are_pickled_in_their_order() -> None:
    office = Office(ahead=3)
    added = [office.add(number) for number in range(3)]
    for count in range(3):
        assert office.done == added[:count]
        assert len(office.hands.calls) == 3 - count
        await office.hands.work()
    assert office.done == added
    assert office.hands.calls == []
    assert all(isinstance(job._payload, OutOfBandPickle) for job in added)


async def test_no_more_are_pickled_ahead_than_was_said() -> None:
    office = Office(ahead=2)
    added = [office.add(number) for number in range(5)]
    # Those that are being pickled are ahead too.
    assert len(office.hands.calls) == 2
    await office.hands.work()
    assert len(office.hands.calls) == 1
    assert await office.hands.work_all() == 1
    assert office.done == added[:2]
    # One that has a worker is not ahead any more.
    added[0]._slot = 0
    office.packer.go_on()
    assert await office.hands.work_all() == 1
    office.packer.go_on()
    assert office.hands.calls == []
    # Nor is one that is done, or was given up.
    added[1]._payload = b""
    added[2]._payload = b""
    office.packer.go_on()
    assert await office.hands.work_all() == 2
    assert office.done == added


async def test_one_that_lost_its_worker_is_not_ahead_again() -> None:
    """It has been pickled already, and is sent again as it is."""
    office = Office(ahead=1)
    added = [office.add(number) for number in range(3)]
    await office.hands.work_all()
    added[0]._slot = 0
    office.packer.go_on()
    added[0]._slot = None
    assert await office.hands.work_all() == 1
    assert office.done == added[:2]


async def test_what_turns_out_to_be_small_is_not_ahead() -> None:
    office = Office(ahead=1)
    added = [office.add(number, "small") for number in range(5)]
    assert await office.hands.work_all() == 5
    assert office.done == added
    assert all(type(job._payload) is bytes for job in added)


async def test_a_job_that_was_given_up_is_not_pickled() -> None:
    office = Office(ahead=2)
    argument = [Passenger(), *large.filler(200_000)]
    added = [office.add(number, argument) for number in range(4)]
    with large.Stop() as stop:
        for job in added[1:3]:
            job.cancel()
        # One of them was to be pickled next.
        assert await office.hands.work_all() == 3
    assert office.done == [added[0], added[3]]
    assert stop.passed == [("pickled", "MainThread")] * 2


async def test_a_job_that_is_given_up_meanwhile_is_not_told_of() -> None:
    office = Office()
    first, second = office.add(1), office.add(2)
    first.cancel()
    # Its thread notices, and gives up.
    future, call = office.hands.calls[0]
    with pytest.raises(AbandonedError):
        call()
    await office.hands.work()
    assert isinstance(future.exception(), AbandonedError)
    # Or it has been a moment too late.
    office.hands.calls[0][0].set_result(b"small")
    office.hands.calls.pop()
    second.cancel()
    await asyncio.sleep(0)
    third = office.add(3)
    assert await office.hands.work_all() == 1
    assert office.done == [third]
    assert office.refusals == []


async def test_a_call_that_cannot_be_pickled_is_refused_and_the_next_one_is_not() -> (
    None
):
    office = Office()
    bad, good = office.add(1, [values.Unpicklable()]), office.add(2)
    assert await office.hands.work_all() == 2
    [(job, error)] = office.refusals
    assert job is bad
    assert str(error) == "args[0] cannot be pickled: TypeError: not for sale"
    assert (error.direction, error.name) == ("arguments", "args[0]")
    assert office.done == [good]


class Exits:
    def __reduce__(self) -> Any:
        raise SystemExit(3)


async def test_whatever_pickling_raises_is_the_jobs_own_error() -> None:
    office = Office()
    bad, good = office.add(1, [Exits()]), office.add(2)
    assert await office.hands.work_all() == 2
    [(job, error)] = office.refusals
    assert job is bad
    assert type(error) is JobNotPicklableError
    assert str(error) == "the call cannot be pickled: SystemExit: 3"
    assert (error.direction, error.name) == ("arguments", "the call")
    assert isinstance(error.__cause__, SystemExit)
    assert office.done == [good]


async def test_a_call_whose_thread_was_ended_is_left_to_the_pool() -> None:
    office = Office()
    office.add(1)
    office.hands.calls.pop()[0].cancel()
    await asyncio.sleep(0)
    assert (office.done, office.refusals) == ([], [])
    later = office.add(2)
    assert await office.hands.work_all() == 1
    assert office.done == [later]


# Values.


class Desk:
    """An unpacker, and what has come of its work."""

    def __init__(self) -> None:
        self.hands = Hands()
        self.outcomes: list[tuple[Job[Any], Any]] = []
        self.running: list[bool] = []
        self.unpacker = Unpacker(
            self.hands,  # type: ignore[arg-type] # a fake
            self,
        )
        self._office = Office()
        self.distrusted: list[str] = []

    def unpacked(self, job: Job[Any], outcome: Any) -> None:
        """Take what was unpickled."""
        self.running.append(job.id in self.unpacker.unpacking)
        self.outcomes.append((job, outcome))

    def add(
        self, number: int, payload: Any, kind: FrameKind = FrameKind.VALUE
    ) -> Job[Any]:
        job = self._office.job(number)
        frame = Frame(kind, number, 1, 0, payload)
        self.unpacker.add(job, frame, self.distrusted.append)
        return job


def bundle(value: object) -> ReceivedPickle:
    parcel = pack_value(value)
    assert isinstance(parcel, OutOfBandPickle)
    areas = [memoryview(bytearray().join(pieces)) for pieces in parcel.areas]
    return ReceivedPickle(parcel.payload, areas)


async def test_values_are_loaded_in_their_order() -> None:
    desk = Desk()
    value = large.filler(200_000)
    added = [desk.add(number, bundle([number, *value])) for number in range(3)]
    assert desk.unpacker.unpacking == {0, 1, 2}
    await desk.hands.work()
    assert desk.unpacker.unpacking == {1, 2}
    await desk.hands.work_all()
    assert desk.outcomes == [(job, [job.id, *value]) for job in added]
    # As long as it is being settled, a job is one that runs.
    assert desk.running == [True] * 3
    assert desk.unpacker.unpacking == set()


async def test_errors_are_loaded_too() -> None:
    desk = Desk()
    payload = memoryview(pack_error(LookupError("x" * 200_000), skip=0))
    job = desk.add(1, payload, FrameKind.ERROR)
    await desk.hands.work_all()
    [(told, loaded)] = desk.outcomes
    assert told is job
    assert isinstance(loaded, Failed)
    assert loaded.may_retry
    assert (type(loaded.error), loaded.error.args) == (LookupError, ("x" * 200_000,))


class Spoils:
    """Writes over the end of a stream that is being unpickled, from its beginning."""

    stream: memoryview

    def __reduce__(self) -> tuple[Any, ...]:
        return spoil, ()


def spoil() -> str:
    Spoils.stream[-1000:] = bytes(1000)
    return "spoilt"


async def test_a_stream_may_change_under_the_eyes_of_who_reads_it() -> None:
    """It is in memory that the worker can write to; each piece of it is a copy."""
    desk = Desk()
    found = bundle([*large.filler(200_000), Spoils(), *range(300)])
    assert isinstance(found.stream, memoryview)
    Spoils.stream = found.stream
    job = desk.add(1, found)
    await desk.hands.work_all()
    assert desk.outcomes == [(job, [*large.filler(200_000), "spoilt", *range(300)])]
    assert bytes(found.stream[-1000:]) == bytes(1000)


async def test_a_value_that_cannot_be_loaded_is_the_jobs_own_error() -> None:
    desk = Desk()
    job = desk.add(1, bundle([*large.filler(200_000), values.OnlyThere()]))
    await desk.hands.work_all()
    [(told, loaded)] = desk.outcomes
    assert told is job
    assert isinstance(loaded, Failed)
    assert not loaded.may_retry
    assert type(loaded.error) is JobNotPicklableError
    assert str(loaded.error) == (
        "the job's result cannot be unpickled here: ValueError: not here"
    )


async def test_a_value_that_nobody_wants_is_not_told_of() -> None:
    desk = Desk()
    jobs_ = [desk.add(number, bundle(large.filler(200_000))) for number in range(3)]
    jobs_[0].cancel()
    with large.Stop() as stop:
        jobs_[1].cancel()
        jobs_[1] = desk.add(4, bundle([*large.filler(200_000), Passenger()]))
        jobs_[1].cancel()
        await desk.hands.work_all()
    # It was not even loaded to its end.
    assert stop.passed == [("pickled", "MainThread")]
    assert [job for job, _ in desk.outcomes] == [jobs_[2]]
    assert desk.unpacker.unpacking == set()


async def test_a_value_whose_thread_was_ended_is_left_to_the_pool() -> None:
    desk = Desk()
    desk.add(1, bundle(large.filler(200_000)))
    desk.hands.calls.pop()[0].cancel()
    await asyncio.sleep(0)
    assert desk.outcomes == []
    assert desk.unpacker.unpacking == set()
