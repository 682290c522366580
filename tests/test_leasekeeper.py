"""The lease keeper on a loop whose clock jumps: whom it extends, and when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextvars import ContextVar

import anyio
import pytest

from asyncpool import LeaseKeeper
from asyncpool.errors import LeaseLostError
from asyncpool.events import (
    LeaseLapsed,
    LeaseLost,
    LeaseMissed,
    LeaseRelieved,
    LeaseSaturated,
)
from tests.helpers.virtual_time import VirtualLoop, run


class Outside:
    """An outside system: writes down its visitors, and answers as it was told.

    Args:
        answers: For each lease what it does in turn: an exception to raise, or the
            seconds that it takes.  The last one is for ever.
    """

    def __init__(self, **answers: Sequence[float | BaseException]) -> None:
        self.answers = {name: list(each) for name, each in answers.items()}
        self.log: list[str] = []
        self.inside: list[str] = []
        self.most = 0

    async def extend(self, lease: str) -> None:
        assert lease not in self.inside, "two renewals of one lease overlap"
        self.log.append(f"{lease}{now():g}")
        self.inside.append(lease)
        self.most = max(self.most, len(self.inside))
        try:
            answers = self.answers.get(lease, [0.0])
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, BaseException):
                raise answer
            if answer:
                await reach(now() + answer)
        finally:
            self.inside.remove(lease)


def now() -> float:
    return asyncio.get_running_loop().time()


async def reach(moment: float) -> None:
    """Let virtual time pass."""
    reached = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_at(moment, reached.set_result, None)
    await reached


def job() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def test_each_lease_has_a_beat_in_each_cycle_until_it_is_removed() -> None:
    async def main() -> None:
        outside = Outside()
        async with LeaseKeeper(outside.extend, interval=10.0) as keeper:
            keeper.add("a")
            keeper.add("b")
            await reach(5)
            keeper.add("c")
            await reach(15)
            assert keeper.remove("b")
            assert not keeper.remove("b")
            await reach(25)
            assert keeper.stats().leases == 2
        assert outside.log == ["a0", "b1", "c5", "a10", "b11", "c12", "a20", "c21"]

    run(main())


@pytest.mark.parametrize("again", [False, True])
def test_no_beat_begins_after_a_lease_was_removed(*, again: bool) -> None:
    async def main() -> None:
        outside = Outside()
        async with LeaseKeeper(outside.extend, interval=10.0) as keeper:
            await reach(1)
            keeper.add("a")
            for _ in range(2):
                await asyncio.sleep(0)
            # Its renewal is decided, and begins in the next turn.
            assert keeper.stats().in_progress == 1
            keeper.remove("a")
            if again:
                keeper.add("a")
            await reach(9)
            assert outside.log == (["a2"] if again else [])
            assert keeper.stats().renewals == len(outside.log)

    run(main())


def test_renewals_are_made_in_the_context_of_whoever_has_started_the_keeper() -> None:
    whose, seen = ContextVar("whose", default="keeper"), list[str]()

    async def extend(lease: str) -> None:
        seen.append(f"{lease} {whose.get()}")

    async def main() -> None:
        async with LeaseKeeper(extend, interval=10.0) as keeper:
            whose.set("user")
            keeper.add("a")
            await reach(15)
        assert seen == ["a keeper"] * 2

    run(main())


def test_a_lease_is_kept_as_long_as_its_job_is_not_done() -> None:
    async def main() -> None:
        outside = Outside()
        done, failed, cancelled = job(), job(), job()
        async with LeaseKeeper(outside.extend, max_rate=10.0, interval=10.0) as keeper:
            for name, each in (("a", done), ("b", failed), ("c", cancelled)):
                keeper.keep(name, each)
            await reach(15)
            done.set_result(None)
            failed.set_exception(OSError())
            cancelled.cancel()
            await asyncio.sleep(0)
            assert keeper.stats().leases == 0
            await reach(50)
        assert isinstance(failed.exception(), OSError)
        assert outside.log == ["a0", "b0.1", "c0.2", "a10", "b10.1", "c10.2"]

    run(main())


def test_the_next_job_may_take_a_lease_over_in_the_turn_in_which_the_last_one_ends() -> (
    None
):
    async def main() -> None:
        outside, first, second = Outside(), job(), job()
        async with LeaseKeeper(outside.extend, interval=10.0) as keeper:
            keeper.keep("a", first)
            first.set_result(None)
            keeper.keep("a", second)
            await reach(15)
            assert keeper.stats().leases == 1
            second.set_result(None)
            await asyncio.sleep(0)
            assert keeper.stats().leases == 0
        assert outside.log == ["a0", "a10"]

    run(main())


def test_a_lease_that_is_gone_costs_its_job() -> None:
    async def main() -> None:
        outside = Outside(a=[0.0, LeaseLostError()])
        lost, safe = job(), job()
        async with LeaseKeeper(outside.extend, interval=10.0) as keeper:
            events = keeper.events()
            keeper.keep("a", lost)
            keeper.keep("b", safe)
            with pytest.raises(asyncio.CancelledError, match="lease 'a' is gone"):
                await lost
            assert now() == 10
            assert await anext(events) == LeaseLost("a")
            await reach(29)
            assert (keeper.stats().leases, keeper.stats().lost) == (1, 1)
            safe.set_result(None)
            await asyncio.sleep(0)
        assert outside.log == ["a0", "b1", "a10", "b11", "b20"]

    run(main())


@pytest.mark.logs("lease-given-up")
def test_a_job_is_cancelled_before_its_lease_lapses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        down = OSError("down")
        outside = Outside(a=[0.0, 0.0, down], b=[down])
        lost, late = job(), list[str]()
        async with LeaseKeeper(outside.extend, interval=10.0, ttl=40.0) as keeper:
            events = keeper.events()
            keeper.keep("a", lost)
            keeper.add("b", on_lost=late.append)
            keeper.add("c")
            # Nine tenths after it came, or was extended at 10.
            await reach(36.5)
            assert (late, lost.done()) == (["b"], False)
            said = "lease 'a' has lapsed: not extended for 36 s"
            with pytest.raises(asyncio.CancelledError, match=f"^{said}$"):
                await lost
            assert now() == 46
            told = [await anext(events) for _ in range(keeper.stats().missed + 2)]
            lapsed = [event for event in told if isinstance(event, LeaseLapsed)]
            assert lapsed == [LeaseLapsed("b", 36.0), LeaseLapsed("a", 36.0)]
            assert (keeper.stats().leases, keeper.stats().lapsed) == (1, 2)
            log = len(outside.log)
            await reach(70)
        assert [each[0] for each in outside.log[log:]] == ["c", "c"]

    run(main())
    assert "lease 'b' has lapsed: not extended for 36 s" in caplog.text


def test_who_hears_of_a_lapsed_lease_may_remove_others() -> None:
    async def main() -> None:
        gone: list[str] = []

        def on_lost(lease: str) -> None:
            gone.append(lease)
            for other in "ab":
                if keeper.remove(other):
                    keeper.add(other)

        outside = Outside(a=[OSError("down")], b=[OSError("down")])
        async with LeaseKeeper(outside.extend, interval=10.0, ttl=40.0) as keeper:
            keeper.add("a", on_lost=on_lost)
            keeper.add("b", on_lost=on_lost)
            await reach(40)
            assert gone == ["a"]
            assert (keeper.stats().leases, keeper.stats().lapsed) == (1, 1)

    run(main())


def test_a_loop_that_stalled_for_too_long_gives_its_leases_up_before_any_beat() -> None:
    async def main() -> None:
        outside, lost = Outside(), job()
        async with LeaseKeeper(outside.extend, interval=10.0, ttl=40.0) as keeper:
            keeper.keep("a", lost)
            await reach(5)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.stall(60)
            with pytest.raises(asyncio.CancelledError, match="'a' has lapsed"):
                await lost
        assert outside.log == ["a0"]

    run(main())


@pytest.mark.logs("lease-missed")
@pytest.mark.parametrize("down", [OSError("down"), BaseException("down")])
def test_an_unknown_error_is_retried_and_then_told(
    down: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        outside = Outside(a=[down])
        async with LeaseKeeper(outside.extend, 1.0, 20.0, 2) as keeper:
            events = keeper.events()
            keeper.add("a")
            keeper.add("b")
            assert await anext(events) == LeaseMissed("a", 7.5, down)
            assert (keeper.stats().failed, keeper.stats().missed) == (3, 1)
            await reach(21.5)
        # The pauses are an eighth and a quarter of the cycle.
        assert outside.log == ["a0", "b1", "a2.5", "a7.5", "b20", "a21"]

    run(main())
    assert f"lease 'a' not extended for 7.5 s: {down!r}" in caplog.text


def test_an_outside_system_that_is_down_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        outside = Outside(**{f"{n}": [OSError("down")] for n in range(40)})
        async with LeaseKeeper(outside.extend, 4.0, 10.0, 0) as keeper:
            for n in range(40):
                keeper.add(f"{n}")
            await reach(20.5)
            assert keeper.stats().missed > 80

    run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "lease '0' not extended for 0 s: OSError('down')",
        *(
            f"lease '0' not extended for {gap} s: OSError('down'); so were 39 others "
            "before"
            for gap in (10, 20)
        ),
    ]


def test_a_beat_that_hangs_ends_in_time_for_its_retries() -> None:
    async def main() -> None:
        outside = Outside(a=[9e9])
        async with LeaseKeeper(outside.extend, interval=120.0) as keeper:
            events = keeper.events()
            keeper.add("a")
            keeper.add("b")
            missed = await anext(events)
            assert isinstance(missed, LeaseMissed)
            assert isinstance(missed.error, TimeoutError)
            assert (missed.lease, missed.gap) == ("a", 112.5)
            await reach(121.5)
        # Each of four attempts has 15 s, and the pauses are 7.5, 15 and 30.
        assert outside.log == ["a0", "b1", "a22.5", "a52.5", "a97.5", "b120", "a121"]

    run(main())


@pytest.mark.logs("leases-saturated", "leases-relieved")
def test_more_leases_than_a_cycle_has_beats_are_told_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "asyncpool")

    async def main() -> None:
        outside = Outside()
        async with LeaseKeeper(outside.extend, interval=3.0) as keeper:
            events = keeper.events()
            for name in "abcd":
                keeper.add(name)
            assert keeper.stats().saturated
            # One event of all that came together.
            assert await anext(events) == LeaseSaturated(
                leases=4, capacity=3, interval=3.0, rate=1.0, worst_gap=4.0
            )
            assert now() == 0
            await reach(7.5)
            keeper.remove("d")
            told = [await anext(events) for _ in range(keeper.stats().missed + 1)]
            assert told[-1] == LeaseRelieved(leases=3, capacity=3)
            assert now() == 7.5
        assert outside.log == [f"{'abcd'[n % 4]}{n}" for n in range(8)]

    run(main())
    assert (
        "4 leases, but 1 renewals/s * 3 s = 3: each is extended every 4" in caplog.text
    )


@pytest.mark.logs("keeper-ends-early")
def test_its_end_interrupts_what_is_under_way(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        outside, orphan = Outside(a=[99.0], b=[99.0]), job()
        keeper = LeaseKeeper(outside.extend)
        async with keeper:
            events = keeper.events()
            keeper.add("a")
            keeper.keep("b", orphan)
            await reach(3)
            assert outside.inside == ["a", "b"]
            assert keeper.stats().renewals == keeper.stats().in_progress == 2
            assert repr(keeper) == "<LeaseKeeper running: 2 leases of 120>"
        assert now() == 3
        assert outside.inside == []
        assert [event async for event in events] == []
        assert not orphan.done()
        assert keeper.stats().in_progress == keeper.stats().leases == 0
        assert repr(keeper) == "<LeaseKeeper not running: 0 leases of 120>"
        orphan.set_result(None)

    run(main())
    assert "a lease keeper ends before 1 of its jobs" in caplog.text


@pytest.mark.parametrize("by", ["task", "scope"])
def test_whoever_cancels_its_end_still_waits_for_it(by: str) -> None:
    ended = []

    async def stubborn(lease: str) -> None:
        try:
            await job()
        finally:
            await reach(now() + 5)
            ended.append(lease)

    async def use() -> None:
        async with LeaseKeeper(stubborn) as keeper:
            keeper.add("a")
            await reach(2)

    async def main() -> None:
        if by == "task":
            user = asyncio.create_task(use())
            await reach(3)
            user.cancel()
            await asyncio.wait({user})
            assert user.cancelled()
        else:
            with anyio.move_on_at(anyio.current_time() + 3) as scope:
                await use()
                await asyncio.sleep(0)
            assert scope.cancelled_caught
        assert (ended, now()) == (["a"], 7)

    run(main())


def test_a_keeper_is_used_where_it_runs_and_only_once() -> None:
    async def main() -> None:
        keeper = LeaseKeeper(Outside().extend)
        not_running = "the lease keeper is not running: use 'async with'"
        with pytest.raises(RuntimeError, match=not_running):
            keeper.add("a")
        async with keeper:
            keeper.add("a")
            with pytest.raises(ValueError, match="lease 'a' is kept already"):
                keeper.keep("a", job())
            with pytest.raises(TypeError, match=r"keep\(\) takes a future of asyncio"):
                keeper.keep("b", reach(1))  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"^on_lost must be callable, not 3$"):
                keeper.add("a", on_lost=3)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="buffer must be at least 1, not 0"):
                keeper.events(buffer=0)
        with pytest.raises(RuntimeError, match=not_running):
            keeper.keep("a", job())
        with pytest.raises(RuntimeError, match="can be used only once"):
            await keeper.__aenter__()

    with pytest.warns(RuntimeWarning, match="never awaited"):
        run(main())
