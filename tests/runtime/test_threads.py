"""What threads do for a pool: copies and pickles, beside each other, until its end."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

import pytest

from asyncpool._engine import loop
from asyncpool._engine.loop import AbandonedError, Pause, Threads
from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle
from asyncpool._wire.pickling import load_value, pack_value
from tests.helpers import large
from tests.helpers.loops import BOTH_LOOPS
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
    monkeypatch.setattr(loop, "time", clock)
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
    pause.yields = True
    pause()
    clock.compute(0.019)
    pause()
    # Time in which others had the GIL is not its own.
    clock.now += 10
    pause()
    assert clock.slept == [0.00005] * 3
    clock.compute(0.002)

    def be_first() -> None:
        pause.yields = len(clock.slept) < 7

    clock.on_sleep = be_first
    pause()
    assert clock.slept == [0.00005] * 4 + [0.005] * 3
    clock.compute(1)
    pause()
    assert clock.slept[7:] == [0.00005], "the first never rests"
    pause.yields, clock.on_sleep = True, lambda: None
    unwanted = True
    clock.compute(1)
    with pytest.raises(AbandonedError):
        pause()


# The threads.


def _abandon() -> None:
    raise AbandonedError


async def test_nobody_waits_for_what_is_long_but_three_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "_LONG", 1e-9)  # they are long at once
    found, begun = new(), list[int]()
    ends = [threading.Event() for _ in range(5)]

    def work(number: int) -> None:
        begun.append(number)
        ends[number].wait(PATIENCE)

    async def until(count: int) -> None:
        while len(begun) < count:  # noqa: ASYNC110 - they have no loop
            await asyncio.sleep(0)

    async with patience():
        calls = [pickle(found, work, number) for number in range(5)]
        try:
            await until(3)
            for _ in range(20):
                await asyncio.sleep(0)
            assert sorted(begun) == [0, 1, 2]
            for number, count in ((1, 4), (0, 5)):
                ends[number].set()
                await calls[number]
                await until(count)
        finally:
            for end in ends:
                end.set()
        await found.close()
    assert names() == []


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


async def test_what_fails_there_is_in_no_cycle(no_collector: None) -> None:
    found, failing = new(), Spoils()
    left, wrong = weakref.ref(failing), cast("Any", spoil)
    with pytest.raises(TypeError, match="positional"):
        await found.copy(wrong, failing)
    del failing
    await found.close()  # the thread lets go as it ends, and the loop a turn later
    await asyncio.sleep(0)
    assert left() is None


# What is unpacked there.


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
    parcel = pack_value([*large.filler(200_000), Spoils(), *range(300)])
    assert isinstance(parcel, OutOfBandPickle)
    areas = [memoryview(bytearray().join(pieces)) for pieces in parcel.areas]
    found = ReceivedPickle(parcel.payload, areas)
    assert isinstance(found.stream, memoryview)
    Spoils.stream = found.stream
    loaded = load_value(found, Pause(lambda: False))
    assert loaded == [*large.filler(200_000), "spoilt", *range(300)]
    assert bytes(found.stream[-1000:]) == bytes(1000)
