"""The contract of a pool's threads: they start when needed, and end with the pool."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from asyncpool._runtime.base import threads
from asyncpool._runtime.base.threads import AbandonedError, Pause, Threads
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
    pause = Pause(lambda: False)
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
    assert clock.slept[7:] == [0.00005]


async def test_the_first_never_rests(clock: Clock) -> None:
    pause = Pause(lambda: False)
    for _ in range(3):
        pause()
        clock.compute(1)
    assert clock.slept == [0.00005] * 3


async def test_what_rests_is_given_up_when_nobody_wants_it(clock: Clock) -> None:
    pause = Pause(lambda: len(clock.slept) > 3)
    pause.second = True
    pause()
    clock.compute(1)
    with pytest.raises(AbandonedError):
        pause()
    assert clock.slept == [0.00005] * 2 + [0.005] * 2


# The threads.


async def test_there_are_none_before_they_are_needed() -> None:
    found = new()
    assert names() == []
    await found.close()
    assert names() == []


async def test_copies_and_pickles_are_made_apart() -> None:
    found = new()
    async with patience():
        assert (await found.copy(thread_name)).startswith("asyncpool-copy")
        assert (await pickle(found, thread_name)).startswith("asyncpool-pickle")
        await found.close()
    assert names() == []


async def test_arguments_results_and_errors_are_passed_on() -> None:
    found = new()
    async with patience():
        assert await found.copy(divmod, 7, 2) == (3, 1)
        assert await pickle(found, divmod, 9, 4) == (2, 1)
        with pytest.raises(ZeroDivisionError):
            await found.copy(divmod, 7, 0)
        with pytest.raises(AbandonedError):
            await pickle(found, _abandon)
        await found.close()


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


async def test_a_close_waits_for_what_has_not_begun(gate: threading.Event) -> None:
    found = new()
    async with patience():
        calls = [pickle(found, gate.wait, PATIENCE) for _ in range(5)]
        close = asyncio.create_task(found.close())
        await asyncio.sleep(0)
        gate.set()
        await close
    assert [call.result() for call in calls] == [True] * 5
    assert names() == []


async def test_a_call_that_fails_does_not_keep_the_close_from_its_end() -> None:
    found = new()
    async with patience():
        call = pickle(found, divmod, 1, 0)
        await found.close()
    assert isinstance(call.exception(), ZeroDivisionError)
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


async def test_a_close_may_come_twice() -> None:
    found = new()
    async with patience():
        await found.copy(thread_name)
        await found.close()
        await found.close()
    assert names() == []


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


async def test_a_call_that_is_given_up_is_waited_for_all_the_same(
    gate: threading.Event,
) -> None:
    """Its thread is still at it, and ends with the pool."""
    found = new()
    began, ended = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        gate.wait(PATIENCE)
        ended.set()

    async with patience():
        call = found.copy(wait)
        while not began.is_set():  # noqa: ASYNC110 - it has no loop
            await asyncio.sleep(0)
        call.cancel()
        gate.set()
        await found.close()
    assert ended.is_set()
    assert names() == []
