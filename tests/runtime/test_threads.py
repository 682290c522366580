"""What threads do for a pool: copies and pickles, in their order, beside each other, until its end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from asyncpool._core.figures.function_figures import FunctionTotals
from asyncpool._core.pickling.calls import pack_value
from asyncpool._core.pickling.functions import FunctionTable
from asyncpool._core.pickling.out_of_band import OutOfBandPickle, ReceivedPickle
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._runtime.base import threads
from asyncpool._runtime.base.threads import AbandonedError, Pause, Threads
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.traffic.large_jobs import Packer, Unpacker
from asyncpool.errors import JobNotPicklableError
from tests.helpers import large
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.owner import Owner
from tests.helpers.patience import PATIENCE, patience

pytestmark = BOTH_LOOPS

T = TypeVar("T")


class Clock:
    """Time that passes only when somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.computed = 5.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.computed

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.on_sleep()

    def compute(self, seconds: float) -> None:
        self.now += seconds
        self.computed += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(threads, "time", clock)
    return clock


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What calls wait at; it is open when the test is over, whatever became of it."""
    found = threading.Event()
    yield found
    found.set()


def new() -> Threads:
    return Threads(asyncio.get_running_loop())


def names() -> list[str]:
    """Return the names of the threads of pools that there are."""
    return sorted(
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("asyncpool")
    )


def thread_name(_: Pause | None = None) -> str:
    return threading.current_thread().name


def pickle(
    found: Threads, function: Callable[..., T], *args: object
) -> asyncio.Future[T]:
    """Have a call made that needs no pause."""
    return found.pickle(lambda _: function(*args), unwanted=lambda: False)


def copy_or_pickle(found: Threads, kind: str) -> Callable[..., asyncio.Future[Any]]:
    return found.copy if kind == "copy" else partial(pickle, found)


# Making way.


async def test_others_get_a_moment_each_millisecond(clock: Clock) -> None:
    pause = Pause(lambda: False)
    pause()
    assert clock.slept == [0.00005]
    for _ in range(9):
        clock.now += 0.0001
        pause()
    assert clock.slept == [0.00005]
    # A millisecond after the moment, not after its beginning.
    clock.now += 0.00007
    pause()
    assert clock.slept == [0.00005]
    clock.now += 0.00004
    pause()
    assert clock.slept == [0.00005] * 2
    clock.now += 0.00098
    pause()
    assert clock.slept == [0.00005] * 2
    # However long a piece took, one moment is enough.
    clock.now += 10
    pause()
    pause()
    assert clock.slept == [0.00005] * 3


async def test_work_that_nobody_wants_is_given_up(clock: Clock) -> None:
    unwanted = False
    pause = Pause(lambda: unwanted)
    pause()
    unwanted = True
    with pytest.raises(AbandonedError):
        pause()
    assert len(clock.slept) == 1
    # No "except Exception" of the user's is in its way.
    assert not issubclass(AbandonedError, Exception)


async def test_what_is_long_rests_while_it_is_not_the_first(clock: Clock) -> None:
    unwanted = False
    pause = Pause(lambda: unwanted)
    pause.second = True
    pause()
    clock.compute(0.019)
    pause()
    # Time in which others had the GIL is not its own.
    clock.now += 10
    pause()
    assert clock.slept == [0.00005] * 3
    clock.compute(0.002)

    def be_first() -> None:
        pause.second = len(clock.slept) < 7

    clock.on_sleep = be_first
    pause()
    assert clock.slept == [0.00005] * 4 + [0.005] * 3
    clock.compute(1)
    pause()
    assert clock.slept[7:] == [0.00005], "the first never rests"
    pause.second, clock.on_sleep = True, lambda: None
    unwanted = True
    clock.compute(1)
    with pytest.raises(AbandonedError):
        pause()


# The threads.


def _abandon() -> None:
    raise AbandonedError


async def test_two_copies_may_be_made_at_once_and_no_more(
    gate: threading.Event,
) -> None:
    found = new()
    both = threading.Barrier(2)

    def meet() -> str:
        both.wait(PATIENCE)
        gate.wait(PATIENCE)
        return thread_name()

    async with patience():
        calls = [found.copy(meet) for _ in range(2)]
        third = found.copy(thread_name)
        await asyncio.sleep(0)
        assert not third.done()
        assert len(names()) <= 2
        gate.set()
        assert len(set(await asyncio.gather(*calls))) == 2
        assert await third in await asyncio.gather(*calls)
        await found.close()


async def test_one_pickles_at_a_time_in_the_order_of_the_calls_while_they_are_short(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_LONG", 1000.0)
    found = new()
    order: list[int] = []

    def note(number: int) -> str:
        gate.wait(PATIENCE)
        order.append(number)
        return thread_name()

    async with patience():
        calls = [pickle(found, note, number) for number in range(10)]
        # Copies do not wait for them.
        await found.copy(thread_name)
        assert order == []
        gate.set()
        assert len(set(await asyncio.gather(*calls))) == 1
        await found.close()
    assert order == list(range(10))


class Shift:
    """Calls that are made until they are told to end, each with a pause of its own."""

    def __init__(self, found: Threads) -> None:
        self.pauses: dict[str, Pause] = {}
        self._found = found
        self._ends: dict[str, threading.Event] = {}
        self._calls: dict[str, asyncio.Future[None]] = {}

    def add(self, name: str) -> None:
        self._ends[name] = threading.Event()
        self._calls[name] = self._found.pickle(self._work, name, unwanted=lambda: False)

    def _work(self, name: str, pause: Pause) -> None:
        self.pauses[name] = pause
        self._ends[name].wait(PATIENCE)

    async def begun(self, *names: str) -> None:
        """Wait until these have begun, and no others."""
        while set(self.pauses) != set(names):  # noqa: ASYNC110 - they have no loop
            await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._calls[name]

    @property
    def second(self) -> str:
        return "".join(name for name, pause in self.pauses.items() if pause.second)

    def stop(self) -> None:
        for end in self._ends.values():
            end.set()


@pytest_asyncio.fixture
async def shift(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shift]:
    """Return calls that are long at once."""
    monkeypatch.setattr(threads, "_LONG", 1e-9)
    found = new()
    shift = Shift(found)
    yield shift
    shift.stop()
    async with patience():
        await found.close()
    assert names() == []


async def test_nobody_waits_for_what_is_long_but_three_are_enough(shift: Shift) -> None:
    async with patience():
        for name in "abcde":
            shift.add(name)
        await shift.begun("a", "b", "c")
        for _ in range(20):
            await asyncio.sleep(0)
        assert set(shift.pauses) == set("abc")
        await shift.end("b")
        await shift.begun("a", "b", "c", "d")
        await shift.end("a")
        await shift.begun(*"abcde")


async def test_whichever_has_begun_before_is_the_first(shift: Shift) -> None:
    async with patience():
        for name in "abcd":
            shift.add(name)
        await shift.begun("a", "b", "c")
        assert shift.second == "bc"
        await shift.end("b")
        await shift.begun(*"abcd")
        assert shift.second == "bcd"
        await shift.end("a")
        assert shift.second == "bd"
        await shift.end("c")
        assert shift.second == "b"
        await shift.end("d")
        shift.add("e")
        await shift.begun(*"abcde")
        assert shift.second == "b"


async def test_a_short_one_is_waited_for_behind_a_long_one(
    shift: Shift, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with patience():
        shift.add("a")
        await shift.begun("a")
        await asyncio.sleep(0)
        monkeypatch.setattr(shift._found._picklers, "_apart", 1000.0)
        shift.add("b")
        shift.add("c")
        await shift.begun("a", "b")
        # That the long one has ended is no reason to begin, that the short one has is.
        await shift.end("a")
        for _ in range(20):
            await asyncio.sleep(0)
        assert set(shift.pauses) == set("ab")
        await shift.end("b")
        await shift.begun(*"abc")


async def test_nobody_rests_behind_what_does_not_come_back(
    shift: Shift, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_GRACE", 0.01)
    async with patience():
        shift.add("a")
        shift.add("b")
        await shift.begun("a", "b")
        assert shift.second == "b"
        await shift._found.close()
        assert shift.second == ""
        await shift.end("a")
        await shift.end("b")
        while names():  # noqa: ASYNC110 - a thread tells nobody of its end
            await asyncio.sleep(0)


# When there may be no more of them.
def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("kind", ["copy", "pickle"])
async def test_without_a_thread_a_call_is_made_at_once_and_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = new()
    call = copy_or_pickle(found, kind)
    calls: list[str] = []

    def note() -> int:
        calls.append(thread_name())
        return len(calls)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        first = call(note)
        failed = call(divmod, 1, 0)
        given_up = call(_abandon)
        assert first.done()
    async with patience():
        assert await first == 1
        with pytest.raises(ZeroDivisionError):
            await failed
        with pytest.raises(AbandonedError):
            await given_up
        # Executors keep such calls, and would make them when there is a thread.
        assert await call(note) == 2
        await found.close()
    assert calls[0] == "MainThread"
    assert calls[1].startswith("asyncpool")
    assert names() == []


async def test_a_call_is_made_once_if_another_thread_takes_it_after_all(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread is there, a second one cannot start, and then the first one is free."""
    found = new()
    began, made = threading.Event(), threading.Event()
    calls: list[str] = []

    def wait() -> None:
        began.set()
        gate.wait(PATIENCE)

    def note() -> str:
        calls.append(thread_name())
        made.set()
        return "done"

    def refuse_late(_: threading.Thread) -> None:
        gate.set()
        made.wait(PATIENCE)
        raise RuntimeError("can't start new thread")

    async with patience():
        busy = found.copy(wait)
        while not began.is_set():  # noqa: ASYNC110 - it has no loop
            await asyncio.sleep(0)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse_late)
            second = found.copy(note)
        await found.close()
        await busy
        assert await second == "done"
    assert len(calls) == 1


# Their end.


@pytest.mark.parametrize("kind", ["copy", "pickle"])
async def test_a_close_waits_for_what_is_running(
    kind: str, gate: threading.Event
) -> None:
    found = new()
    began = threading.Event()

    def wait() -> str:
        began.set()
        gate.wait(PATIENCE)
        return "done"

    async with patience():
        call = copy_or_pickle(found, kind)(wait)
        told: list[str] = []
        call.add_done_callback(lambda call: told.append(call.result()))
        while not began.is_set():  # noqa: ASYNC110 - it has no loop
            await asyncio.sleep(0)
        close = asyncio.create_task(found.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not close.done()
        gate.set()
        await close
    # Whoever has asked for it knows.
    assert told == ["done"]
    assert names() == []


async def test_a_close_that_is_cancelled_ends_the_threads_as_well(
    gate: threading.Event,
) -> None:
    found = new()
    async with patience():
        call = pickle(found, gate.wait, PATIENCE)
        close = asyncio.create_task(found.close())
        await asyncio.sleep(0)
        close.cancel()
        with pytest.raises(asyncio.CancelledError):
            await close
        gate.set()
        assert await call
        while names():  # noqa: ASYNC110 - a thread tells nobody of its end
            await asyncio.sleep(0)


async def test_what_does_not_come_back_is_left_alone(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_GRACE", 0.01)
    found = new()
    async with patience():
        # As many as may be at work at once, if they have got as far by the close.
        stuck, *more = (
            pickle(found, gate.wait, PATIENCE) for _ in range(threads._PICKLERS)
        )
        behind = pickle(found, thread_name)
        await found.copy(thread_name)
        await found.close()
        assert not stuck.done()
        # It is not waited for, and what waits for it never begins.
        gate.set()
        assert await stuck
        await asyncio.wait(more)
        with pytest.raises(asyncio.CancelledError):
            await behind
        while names():  # noqa: ASYNC110 - a thread tells nobody of its end
            await asyncio.sleep(0)


@pytest.mark.parametrize("error", [AbandonedError(), LookupError()])
async def test_nobody_hears_how_a_call_ends_that_was_given_up(
    error: BaseException, gate: threading.Event
) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: complaints.append(context)
    )
    found = new()

    def fail() -> None:
        gate.wait(PATIENCE)
        raise error

    async with patience():
        call = pickle(found, fail)
        call.cancel()
        await asyncio.sleep(0)
        gate.set()
        await found.close()
        gc.collect()
    assert call.cancelled()
    assert complaints == []


# What is packed and unpacked there.


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


class Spoils:
    """Writes over the end of a stream that is being unpickled, from its beginning."""

    stream: memoryview

    def __reduce__(self) -> tuple[Any, ...]:
        return spoil, ()


def spoil() -> str:
    Spoils.stream[-1000:] = bytes(1000)
    return "spoilt"


class Desk:
    """Takes what was unpickled."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []

    def unpacked(self, _: Job[Any], outcome: Any) -> None:
        self.outcomes.append(outcome)


async def test_a_stream_may_change_under_the_eyes_of_who_reads_it() -> None:
    """It is in memory that the worker can write to; each piece of it is a copy."""
    desk, hands = Desk(), Hands()
    unpacker = Unpacker(hands, desk)  # type: ignore[arg-type] # a fake
    parcel = pack_value([*large.filler(200_000), Spoils(), *range(300)])
    assert isinstance(parcel, OutOfBandPickle)
    areas = [memoryview(bytearray().join(pieces)) for pieces in parcel.areas]
    found = ReceivedPickle(parcel.payload, areas)
    assert isinstance(found.stream, memoryview)
    Spoils.stream = found.stream
    job = Office().job(1)
    unpacker.add(job, Frame(FrameKind.VALUE, 1, 1, 0, found), lambda _: None)
    assert unpacker.unpacking == {1}
    await hands.work_all()
    assert desk.outcomes == [[*large.filler(200_000), "spoilt", *range(300)]]
    assert bytes(found.stream[-1000:]) == bytes(1000)
    assert unpacker.unpacking == set()
