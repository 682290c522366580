"""Which lines jobs become: every order of what is told makes a trace that viewers accept."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, strategies as st

from asyncpool._engine.hub import Attempt, PoolHub
from asyncpool._observe.traces import (
    POOL_TRACK,
    SlotLanes,
    TraceBook,
    text_of,
    track_of,
)
from asyncpool.enums import JobOutcome
from asyncpool.events import TakenOver
from asyncpool.stats import RunningJob
from tests.helpers.told_pool import SLOT
from tests.helpers.traces import Traced, check

TRACK_0, TRACK_1 = 10_000, 20_000


@dataclass
class Told:
    """What is read of a job."""

    id: int = 1
    queued_at: float = 1.0
    attempt: int = 1
    title: str = "app.work"


class Book(TraceBook):
    """A book at a time that is given."""

    def __init__(self, number: int = 7000, concurrency: int = 1) -> None:
        self.now = 3.0
        super().__init__(PoolHub(), "pool shop", number, 7, concurrency, None)

    def _now(self) -> int:
        return int(self.now * 1e6)

    def fails(self, job: Any, attempt: Attempt | None, at: float) -> None:
        """Have an attempt fail, and the next one wait since *at*."""
        job.queued_at = at
        self.attempt_failed(job, LookupError(), attempt)
        job.attempt += 1

    def looks(self, job: Any, slot: int, began: float, now: float) -> None:
        """Look at a job that has been running since *began*."""
        runs = RunningJob(
            job_id=job.id,
            function=job.title,
            attempt=job.attempt,
            seconds=now - began,
        )
        self.now = now
        self.look([replace(SLOT, slot=slot, running=(runs,))])

    def shows(self) -> Traced:
        """Return what a trace shows that ends here."""
        return check("".join(self.lines))


def test_a_retry_after_a_takeover_is_told_as_one() -> None:
    it, job = Book(), Told()
    tell: Any = job
    it.queued(tell)
    it.happened(TakenOver(1, 1))
    it.fails(job, Attempt(0, 1.0, 2.0, None), 2.5)
    it.fails(job, Attempt(0, 2.5, 2.6, 0.1), 2.7)
    it.ended(tell, JobOutcome.OK, None, Attempt(0, 2.7, 2.8, 0.2))
    outcomes = [s.args["outcome"] for s in it.shows().of_job(1)]
    assert outcomes == ["taken over", "retry", "ok"]


def test_a_job_that_came_back_unbegun_waits_as_before() -> None:
    it, job = Book(), Told()
    tell: Any = job
    it.queued(tell)
    it.unassigned(tell)
    it.ended(tell, JobOutcome.OK, None, Attempt(1, 1.0, 4.0, 1.0))
    trace = it.shows()
    assert [(w.begin, w.end) for w in trace.waits[1]] == [(1_000_000, 4_000_000)]
    assert [s.track for s in trace.of_job(1)] == [TRACK_1]


def test_a_long_attempt_is_told_before_its_end() -> None:
    it, job, other = Book(), Told(), Told(2)
    tell: Any = job
    it.queued(tell)
    it.looks(job, 0, 2.0, 2.9)
    assert it.shows().slices == [], "it is not long yet"
    it.looks(job, 0, 2.0, 3.1)
    it.looks(job, 0, 2.0, 4.1)
    (long,) = it.shows().of_job(1)
    assert (long.begin, long.end) == (2_000_000, None)
    it.ended(tell, JobOutcome.OK, None, Attempt(0, 1.0, 2.0, 7.0))
    tell = other
    it.queued(tell)
    it.ended(tell, JobOutcome.OK, None, Attempt(0, 1.0, 9.0, 1.0))
    long, short = it.shows().slices
    assert (long.end, long.args["outcome"]) == (9_000_000, "ok")
    assert (short.track, short.begin) == (long.track, 9_000_000)


def test_an_attempt_ends_in_the_slot_where_it_was_shown() -> None:
    """Although another one has begun elsewhere, and nobody has heard of the end of the first."""
    it, job = Book(), Told(queued_at=2.5)
    tell: Any = job
    it.queued(tell)
    it.looks(job, 0, 2.0, 10.0)
    job.queued_at = 11.0
    it.unassigned(tell)
    (shown,) = it.shows().of_job(1)
    # The pool hears of both from others, so the begin may not be where it should be.
    assert (shown.track, shown.begin, shown.end) == (TRACK_0, 2_500_000, 11_000_000)
    assert shown.args["outcome"] == "given back"


TIMES = st.integers(0, 5_000_000).map(lambda n: n / 1e6)
JOBS, SLOTS = st.integers(1, 4), st.integers(0, 1)
ATTEMPTS = st.none() | st.builds(Attempt, SLOTS, TIMES, TIMES, st.none() | TIMES)
STEPS = st.tuples(
    st.sampled_from(["queued", "given_back", "fails", "ended", "looks"]),
    JOBS,
    SLOTS,
    TIMES,
    ATTEMPTS,
    st.sampled_from(JobOutcome),
)


@given(st.lists(STEPS, max_size=40), st.integers(1, 3))
def test_the_slices_of_a_track_nest_for_any_order_of_events(
    steps: list[tuple[str, int, int, float, Attempt | None, JobOutcome]],
    concurrency: int,
) -> None:
    it, jobs = Book(concurrency=concurrency), dict[int, Any]()
    numbers = itertools.count(1)
    for step, place, slot, at, attempt, outcome in steps:
        if place not in jobs:
            jobs[place] = Told(next(numbers), at)
            it.queued(jobs[place])
        it.now, job = at, jobs[place]
        if step == "given_back":
            it.unassigned(job)
        elif step == "fails":
            it.fails(job, attempt, at)
        elif step == "looks":
            it.looks(job, slot, at, at + 1.5)
        elif step == "ended":
            it.ended(jobs.pop(place), outcome, LookupError(), attempt)
    it.shows()
    for job in jobs.values():
        it.ended(job, JobOutcome.OK, None, None)
    assert (it._waiting, it._shown) == ({}, {}), "nothing is kept of what has ended"


# Lines.


def only(line: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(line.removesuffix(",\n"))
    return found


@given(st.text(st.characters(), max_size=30))
def test_any_text_can_be_told(text: str) -> None:
    told = json.loads(text_of(text))
    assert told == text.encode(errors="replace").decode()
    assert text_of(text).isascii()
    assert "\n" not in text_of(text)


def test_of_a_long_text_the_end_is_told() -> None:
    told = json.loads(text_of("x" * 9000 + "the reason"))
    assert told.endswith("the reason")
    assert len(told) < 8200


def test_tracks_of_slots_are_their_own() -> None:
    tracks = [track_of(slot, lane) for slot in range(4) for lane in range(1100)]
    assert len({POOL_TRACK, *tracks}) == 4 * 1100 + 1
    assert tracks == sorted(tracks)


def test_jobs_and_pools_have_ids_of_their_own() -> None:
    books = [Book(12_345_000 + pool) for pool in range(3)]
    for book in books:
        for number in range(1, 30):
            job: Any = Told(number)
            book.queued(job)
    lines = [only(line) for book in books for line in book.lines if '"ph":"b"' in line]
    assert len({str(line["id"]) for line in lines}) == len(lines) == 3 * 29


# The lanes of a slot: never two attempts at once in one.

SPANS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 60), st.booleans()), max_size=60
)


@given(spans=SPANS, usual=st.integers(1, 4))
def test_no_two_attempts_of_a_lane_overlap(
    spans: list[tuple[int, int, bool]], usual: int
) -> None:
    lanes, drawn = SlotLanes(usual), defaultdict[int, list[tuple[int, int]]](list)
    running: list[tuple[int, int, int]] = []
    for begin, run, long in spans:
        if long:
            lane, at = lanes.take(begin)
            running.append((lane, at, at + run))
        else:
            lane, at = lanes.put(begin, run)
            drawn[lane].append((at, at + run))
        assert at >= begin
        if len(running) > 2:
            lane, at, end = running.pop(0)
            lanes.give_back(lane, end)
            drawn[lane].append((at, end))
    for lane, at, end in running:
        drawn[lane].append((at, end))
    for spans_of_one in drawn.values():
        ordered = sorted(spans_of_one)
        for (_, end), (begin, _) in itertools.pairwise(ordered):
            assert end <= begin


def test_one_lane_has_one_after_the_other() -> None:
    lanes = SlotLanes(1)
    assert lanes.put(10, 5) == (0, 10)
    assert lanes.put(12, 5) == (0, 15), "it moves behind the one before"
    assert lanes.put(30, 5) == (0, 30)
    assert lanes.count == 1


def test_a_lane_in_use_is_given_to_nobody() -> None:
    lanes = SlotLanes(1)
    assert lanes.take(10) == (0, 10)
    assert lanes.put(11, 1) == (1, 11)
    lanes.give_back(0, 50)
    assert lanes.take(60) == (0, 60), "the one that was free for the shortest time"
