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

from asyncpool._core.pickling.calls import pack_value
from asyncpool._core.pickling.out_of_band import OutOfBandPickle, ReceivedPickle
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._runtime.base import threads
from asyncpool._runtime.base.threads import AbandonedError, Pause, Threads
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.traffic.large_jobs import Packer, Unpacker
from asyncpool.errors import JobNotPicklableError
from tests.helpers import large
from tests.helpers.functions import known_function
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


# Arguments.


class Hands:
    """A thread that does each call at once, and what comes of it."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def pickle(
        self, function: Callable[..., Any], *args: Any, unwanted: Callable[[], bool]
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(function(*args, Pause(unwanted)))
        except BaseException as error:  # noqa: BLE001 - as a thread does
            future.set_exception(error)
        return future

    def packed(self, _: Job[Any], payload: Any) -> None:
        self.found.append(payload)

    def refused(self, _: Job[Any], error: JobNotPicklableError) -> None:
        self.found.append(error)

    unpacked = packed


def job() -> Job[Any]:
    loop = asyncio.get_running_loop()
    return Job(1, known_function(), JobOptions(), Owner(), loop)


class Exits:
    def __reduce__(self) -> Any:
        raise SystemExit(3)


async def test_whatever_pickling_raises_is_the_jobs_own_error() -> None:
    hands: Any = Hands()
    Packer(hands, hands, ahead=2).add(job(), (large.same, ([Exits()],), {}))
    await asyncio.sleep(0)
    [error] = hands.found
    assert type(error) is JobNotPicklableError
    assert str(error) == "the call cannot be pickled: SystemExit: 3"
    assert isinstance(error.__cause__, SystemExit)


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
    hands: Any = Hands()
    parcel = pack_value([*large.filler(200_000), Spoils(), *range(300)])
    assert isinstance(parcel, OutOfBandPickle)
    areas = [memoryview(bytearray().join(pieces)) for pieces in parcel.areas]
    found = ReceivedPickle(parcel.payload, areas)
    assert isinstance(found.stream, memoryview)
    Spoils.stream = found.stream
    frame = Frame(FrameKind.VALUE, 1, 1, 0, found)
    Unpacker(hands, hands.unpacked).add(job(), frame, lambda _: None)
    await asyncio.sleep(0)
    assert hands.found == [[*large.filler(200_000), "spoilt", *range(300)]]
    assert bytes(found.stream[-1000:]) == bytes(1000)
