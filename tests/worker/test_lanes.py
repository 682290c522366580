"""The contract of the lanes: each job that runs beside others has an outcome of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from contextvars import ContextVar
from mmap import mmap
from typing import Any

import pytest

from asyncpool import JobCancelled, JobNotPicklableError, JobRaisedError
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._core.wire.page import LANE_OUTCOME_SIZE, NOTED, PageLayout
from asyncpool._worker.lanes.lanes import Lane, Lanes
from tests.worker.in_process import Loops, Quiet, SharedPage, call_of, opened

WIDTH = 3

colour: ContextVar[str] = ContextVar("colour", default="none")


class Road:
    """Three lanes, and what has come of the jobs in them.

    Attributes:
        lanes: The lanes.
        sent: Each outcome: the job's number, and its value or exception.
        seen: How many jobs ran when each was sent, and whether all lanes were taken.
        page: What is noted.
        interrupts: Which jobs are to end.
    """

    def __init__(self, page: SharedPage, memory: mmap, coroutines: Loops) -> None:
        self.sent: list[tuple[int, Any]] = []
        self.seen: list[tuple[int, bool]] = []
        self.page = page.seen
        self.interrupts = Quiet()
        self.lanes = Lanes(
            memory, PageLayout(WIDTH), coroutines, self.interrupts, self._send
        )
        self.interrupts.lanes = self.lanes
        self.lanes.max_payload = 1 << 20

    def _send(self, lane: Lane, kind: FrameKind, payload: Any, duration: int) -> None:
        assert duration >= 0
        self.sent.append((lane.frame.job, opened(kind, payload)))
        self.seen.append((len(self.lanes.by_job), self.lanes.full))

    def full(self) -> bool:
        """Tell whether no other job can begin."""
        return self.lanes.full

    def running(self) -> tuple[int, int] | None:
        """Return whose code it is that does not know."""
        return self.lanes.running

    def begin(self, job: int) -> Lane:
        """Have a job begin, in the place of the same number."""
        return self.lanes.begin(call_of(job, abs), job)

    def go(self, job: int, coroutine: Any) -> Lane:
        """Have a job begin that is a coroutine."""
        lane = self.begin(job)
        self.lanes.go(lane, coroutine)
        return lane

    def run(self) -> None:
        """Run the loop until no job is left."""
        self.lanes.on_free = self._stop
        while self.lanes.by_job:
            self.lanes.loop.run_forever()

    def turn(self) -> None:
        """Have everything that is ready take a step."""
        self.lanes.loop.call_soon(self.lanes.loop.stop)
        self.lanes.loop.run_forever()

    def _stop(self) -> None:
        if not self.lanes.by_job:
            self.lanes.loop.stop()


@pytest.fixture
def road() -> Iterator[Road]:
    coroutines = Loops(Quiet())
    with (
        closing(SharedPage(WIDTH)) as page,
        mmap(page.fd, PageLayout(WIDTH).stacks) as memory,
        closing(coroutines),
    ):
        yield Road(page, memory, coroutines)


# Lanes are taken and given back.


def test_a_job_is_noted_in_a_lane_of_its_own(road: Road) -> None:
    found = [road.begin(job) for job in (7, 8, 9)]
    assert [lane.index for lane in found] == [0, 1, 2]
    assert all(road.page.begun(job, 1) for job in (7, 8, 9))
    assert not road.page.begun(8, 2)
    assert road.full()
    road.lanes.finish(found[1], None)
    assert not road.full()
    assert road.begin(10).index == 1, "the lane that is free"
    assert not road.page.begun(8, 1)
    assert road.page.begun(10, 1)


def test_an_outcome_is_sent_before_its_lane_is_free(road: Road) -> None:
    freed: list[tuple[int, bool]] = []
    road.lanes.on_free = lambda: freed.append((len(road.sent), road.lanes.full))
    one, *others = [road.begin(job) for job in (1, 2, 3)]
    road.lanes.finish(one, "value")
    road.lanes.fail(others[0], LookupError("missing"))
    assert road.seen == [(3, True), (2, False)]
    assert freed == [(1, False), (2, False)]
    assert road.sent[0] == (1, "value")
    job, error = road.sent[1]
    assert (job, type(error), error.args) == (2, LookupError, ("missing",))


def test_a_lane_is_free_though_its_outcome_cannot_be_sent(road: Road) -> None:
    def refuse(*_: object) -> None:
        raise BrokenPipeError

    road.lanes._send = refuse
    lane = road.begin(1)
    with pytest.raises(BrokenPipeError):
        road.lanes.finish(lane, None)
    assert road.lanes.by_job == {}
    assert road.begin(2).index == 0


def test_what_cannot_be_pickled_is_the_jobs_error(road: Road) -> None:
    road.lanes.finish(road.begin(1), threading.Lock())
    # An error's traceback has the paths of this checkout, and counts, too.
    road.lanes.max_payload = 1 << 16
    road.lanes.finish(road.begin(2), bytes(1 << 16))
    for job, error in road.sent:
        assert type(error) is JobNotPicklableError, job
        assert error.direction == "result"
    assert road.lanes.by_job == {}


# Coroutines.


async def give(value: Any, after: asyncio.Event | None = None) -> Any:
    if after is not None:
        await after.wait()
    return value


async def throw(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


def test_an_outcome_is_sent_in_the_step_in_which_it_is_there(road: Road) -> None:
    before: list[int] = []

    async def look() -> None:
        before.append(len(road.sent))

    road.go(1, give("one"))
    road.go(2, look())
    road.go(3, throw(LookupError("three")))
    road.turn()
    assert before == [1], "the other had begun and ended"
    road.run()
    assert [job for job, _ in road.sent] == [1, 2, 3]
    assert road.sent[:2] == [(1, "one"), (2, None)]
    assert repr(road.sent[2][1]) == "LookupError('three')"


def test_coroutines_wait_side_by_side(road: Road) -> None:
    road.lanes.open()
    event = asyncio.Event()
    road.go(1, give("late", event))
    road.go(2, give("soon"))
    road.turn()
    assert road.sent == [(2, "soon")]
    event.set()
    road.run()
    assert road.sent == [(2, "soon"), (1, "late")]


def test_each_has_a_context_of_its_own(road: Road) -> None:
    async def paint(new: str) -> tuple[str, str]:
        before = colour.get()
        colour.set(new)
        await asyncio.sleep(0)
        return before, colour.get()

    road.go(1, paint("red"))
    road.go(2, paint("blue"))
    road.run()
    assert road.sent == [(1, ("none", "red")), (2, ("none", "blue"))]
    assert road.lanes.context.get(colour) is None
    assert colour.get() == "none"


def test_a_coroutine_sees_what_was_set_where_it_was_made(road: Road) -> None:
    async def look() -> str:
        return colour.get()

    lane = road.begin(1)
    lane.context.run(colour.set, "red")
    road.lanes.go(lane, look())
    road.run()
    assert road.sent == [(1, "red")]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_whatever_is_raised_is_an_outcome(road: Road, error: BaseException) -> None:
    road.go(1, throw(error))
    road.go(2, give("other"))
    road.run()
    assert dict(road.sent)[2] == "other"
    raised = dict(road.sent)[1]
    assert type(raised) is JobRaisedError
    assert repr(raised.exception) == repr(error)


def test_a_traceback_begins_in_the_job(road: Road) -> None:
    road.go(1, throw(LookupError()))
    road.run()
    text = str(road.sent[0][1].__cause__)
    assert "in throw" in text
    assert "asyncpool/_worker" not in text


# Jobs that are to end.


def end(road: Road, *sequences: int) -> None:
    """Have jobs end, as the control thread does."""
    for sequence in sequences:
        road.interrupts.ask(sequence)


async def linger(log: list[str]) -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        log.append("asked")
        raise
    return "never"


def test_one_ends_and_no_other(road: Road) -> None:
    log: list[str] = []
    road.lanes.open()
    event = asyncio.Event()
    road.go(1, give("one", event))
    road.go(2, linger(log))
    road.go(3, give("three", event))
    road.turn()
    end(road, 2, 9)  # there is no ninth
    for _ in range(3):
        road.turn()
    assert log == ["asked"]
    [(job, error)] = road.sent
    assert (job, type(error)) == (2, JobRaisedError)
    assert type(error.exception) is JobCancelled
    event.set()
    road.run()
    assert road.sent[1:] == [(1, "one"), (3, "three")]
    assert not road.interrupts.wants(2)


def test_one_that_has_not_begun_ends_when_it_does(road: Road) -> None:
    log: list[str] = []
    road.lanes.open()
    end(road, 1)
    road.turn()
    road.go(1, linger(log))
    road.run()
    assert type(road.sent[0][1].exception) is JobCancelled
    assert log == ["asked"]


def test_a_wish_is_forgotten_with_its_job(road: Road) -> None:
    lane = road.begin(1)  # a plain one, which nobody interrupts here
    end(road, 1)
    assert road.interrupts.wants(1)
    road.lanes.finish(lane, None)
    assert not road.interrupts.wants(1)


def test_the_wish_of_one_that_is_over_is_not_the_next_ones(road: Road) -> None:
    road.go(1, give("one"))
    end(road, 1)  # heard by the loop when it has ended
    road.run()
    assert road.begin(2).index == 0
    road.lanes.go(road.lanes.by_job[2, 1], give("two"))
    road.run()
    assert road.sent == [(1, "one"), (2, "two")]


def test_who_takes_no_notice_has_a_value(road: Road) -> None:
    async def refuse() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "no"
        return "never"

    road.go(1, refuse())
    road.turn()
    end(road, 1)
    road.run()
    assert road.sent == [(1, "no")]


def test_a_cancellation_of_the_jobs_own_stays_one(road: Road) -> None:
    road.go(1, throw(asyncio.CancelledError("mine")))
    road.run()
    error = road.sent[0][1]
    assert type(error.exception) is asyncio.CancelledError
    assert error.exception.args == ("mine",)


# What the pool finds on the page.


def test_an_outcome_is_noted_if_there_is_room(road: Road) -> None:
    one, other = road.begin(1), road.begin(2)
    most = LANE_OUTCOME_SIZE - NOTED.size
    assert road.lanes.note(one, FrameKind.VALUE, b"x" * most, 17)
    assert not road.lanes.note(other, FrameKind.ERROR, b"y" * (most + 1), 18)
    assert road.page.outcomes() == {
        (1, 1): Frame(FrameKind.VALUE, 1, 1, 17, b"x" * most)
    }
    assert road.lanes.note(other, FrameKind.ERROR, b"z", 19)
    assert road.page.outcomes()[2, 1] == Frame(FrameKind.ERROR, 2, 1, 19, b"z")


def test_half_an_outcome_is_nobodys(road: Road) -> None:
    lane = road.begin(1)
    assert road.lanes.note(lane, FrameKind.VALUE, b"before", 1)
    road.lanes.finish(lane, None)
    again = road.begin(2)
    assert again.index == lane.index
    with pytest.raises(IndexError):
        road.lanes.note(again, FrameKind.VALUE, Short(b"after"), 1)
    assert (1, 1) not in road.page.outcomes()
    assert (2, 1) not in road.page.outcomes()


class Short(bytes):
    """Says that it is longer than it is, so that to write it fails."""

    def __len__(self) -> int:
        return super().__len__() + 1


def test_a_stack_is_that_of_the_job_that_was_asked_for(road: Road) -> None:
    for job in (1, 2):
        road.go(job, linger([]))
    road.turn()
    road.lanes.write_stack(2, 1)
    road.lanes.write_stack(3, 1)  # there is none
    assert road.page.stack(1, 1) == ""
    assert "in linger" in road.page.stack(2, 1)
    end(road, 1, 2)
    road.run()


def test_a_stack_of_one_that_computes_is_that_of_its_thread(road: Road) -> None:
    async def compute() -> None:
        road.lanes.write_stack(1, 1)

    road.go(1, compute())
    road.turn()
    heading, call = road.page.stack(1, 1).splitlines()
    assert heading == "Main thread (most recent call first):"
    assert call.endswith(" in compute")
    road.run()


# Whose code runs.


def test_code_that_knows_of_no_job_is_that_of_the_only_one(road: Road) -> None:
    assert road.running() is None
    one = road.begin(1)
    assert road.running() == (1, 1)
    road.begin(2)
    assert road.running() is None
    road.interrupts.running = 2
    assert road.running() == (2, 1)
    road.lanes.finish(one, None)
    road.interrupts.running = None
    assert road.running() == (2, 1)


@pytest.mark.parametrize(
    ("others", "slow", "warned"), [(0, True, 0), (1, False, 0), (2, True, 1)]
)
def test_a_plain_function_that_holds_up_others_is_warned_of(
    road: Road,
    caplog: pytest.LogCaptureFixture,
    others: int,
    *,
    slow: bool,
    warned: int,
) -> None:
    road.lanes.open().slow_callback_duration = 0.0 if slow else 3600.0
    lane = road.begin(1)
    for job in range(2, 2 + others):
        road.begin(job)
    with caplog.at_level(logging.WARNING):
        road.lanes.blocked(lane)
    assert len(caplog.records) == warned
    if warned:
        assert "; other jobs there: 2" in caplog.text


def test_a_copy_of_the_worker_is_mute(road: Road) -> None:
    class Beats:
        mute = False

    beats: Any = Beats()
    road.lanes.beats = beats
    road.lanes.become_nobody()
    assert (road.lanes.mute, beats.mute) == (True, True)
