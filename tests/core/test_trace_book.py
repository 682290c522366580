"""Which lines events become: every order of events makes a trace that viewers accept."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from dataclasses import replace

from hypothesis import given, strategies as st

from asyncpool._observe.traces import (
    POOL_TRACK,
    LineMaker,
    SlotLanes,
    TraceBook,
    text_of,
    track_of,
)
from asyncpool.enums import JobOutcome
from asyncpool.events import Event, JobEnded, JobEvent, JobQueued, JobStarted, TakenOver
from tests.helpers.traces import Traced, check

TRACK_0, TRACK_1 = 10_000, 20_000


def book(concurrency: int = 1) -> TraceBook:
    return TraceBook("pool shop", 7000, 7, concurrency)


def hear(book: TraceBook, *events: Event | JobEvent, now: float = 0.0) -> None:
    for event in events:
        match event:
            case JobQueued():
                book.queued(event)
            case JobStarted():
                book.started(event)
            case JobEnded():
                book.ended(event)
            case _:
                book.happened(event, now)


def shown(book: TraceBook) -> Traced:
    """Return what a trace shows that ends here."""
    return check("".join(book.lines))


def queued(job: int = 1, at: float = 1.0, attempts: int = 0) -> JobQueued:
    return JobQueued(job, "app.work", "submit", attempts, at)


def started(job: int = 1, at: float = 2.0, attempt: int = 1, slot: int = 0) -> JobEvent:
    return JobStarted(job, "app.work", attempt, slot, at)


def ended(
    job: int = 1,
    at: float = 3.0,
    *,
    wait: float = 1.0,
    run: float = 1.0,
    outcome: JobOutcome = JobOutcome.OK,
    slot: int | None = 0,
    attempts: int = 1,
) -> JobEnded:
    return JobEnded(job, "app.work", outcome, attempts, slot, wait, run, at)


def test_a_retry_after_a_takeover_is_told_as_one() -> None:
    it = book()
    hear(it, queued(), started(), TakenOver(1, 1), queued(at=2.5, attempts=1))
    hear(it, started(at=2.6, attempt=2), queued(at=2.7, attempts=2))
    hear(it, started(at=2.8, attempt=3), ended(wait=0.1, run=0.2))
    outcomes = [s.args["outcome"] for s in shown(it).of_job(1)]
    assert outcomes == ["taken over", "retry", "ok"]


def test_a_job_that_came_back_unbegun_waits_as_before() -> None:
    it = book()
    hear(it, queued(), started(), queued(), started(at=4.0, slot=1))
    hear(it, ended(at=5.0, wait=3.0, slot=1))
    trace = shown(it)
    assert [(w.begin, w.end) for w in trace.waits[1]] == [(1_000_000, 4_000_000)]
    assert [s.track for s in trace.of_job(1)] == [TRACK_1]


def test_a_long_attempt_is_told_before_its_end() -> None:
    it = book()
    hear(it, queued(), started())
    it.look(2.9)
    assert shown(it).slices == [], "it is not long yet"
    it.look(3.1)
    it.look(4.1)
    (job,) = shown(it).of_job(1)
    assert (job.begin, job.end) == (2_000_000, None)
    hear(it, ended(at=9.0, run=7.0), queued(2), started(2), ended(2, wait=8.0))
    job, other = shown(it).slices
    assert (job.end, job.args["outcome"]) == (9_000_000, "ok")
    assert (other.track, other.begin) == (job.track, 9_000_000)


def test_an_attempt_has_its_begin_before_its_end() -> None:
    """The pool hears of both from others, so neither may be where it should be."""
    it = book()
    hear(it, queued(at=2.5), started(at=2.0))
    it.look(9.0)
    hear(it, ended(at=9.0, wait=0.0, run=0.0))
    (job,) = shown(it).slices
    (wait,) = shown(it).waits[1]
    assert (wait.begin, wait.end) == (2_500_000, 2_500_000)
    assert (job.begin, job.end) == (2_500_000, 2_500_001)


def test_nothing_is_kept_of_jobs_that_have_ended() -> None:
    it = book()
    for job in range(1, 500):
        hear(it, queued(job), started(job))
        it.look(10.0)
        hear(it, ended(job))
    assert (it._queued, it._running, it._shown) == ({}, {}, {})


TIMES = st.integers(0, 5_000_000).map(lambda n: n / 1e6)
JOBS, SLOTS = st.integers(1, 4), st.integers(0, 1)
ANY_EVENT = st.one_of(
    st.builds(queued, JOBS, TIMES, st.integers(0, 2)),
    st.builds(started, JOBS, TIMES, st.integers(1, 3), SLOTS),
    st.builds(
        ended,
        JOBS,
        TIMES,
        wait=TIMES,
        run=TIMES,
        slot=SLOTS,
        outcome=st.sampled_from(JobOutcome),
    ),
    st.builds(TakenOver, JOBS, st.integers(0, 2)),
    TIMES,  # a look at what runs
)


def test_an_attempt_ends_in_the_slot_where_it_was_shown() -> None:
    """Although another one has begun elsewhere, and nobody has heard of the end of the first."""
    it = book()
    hear(it, queued(), started(slot=0))
    it.look(10.0)
    hear(it, started(slot=1), queued(at=11.0))
    (job,) = shown(it).of_job(1)
    assert (job.track, job.begin, job.end) == (TRACK_0, 2_000_000, 11_000_000)
    assert job.args["outcome"] == "given back"


@given(st.lists(ANY_EVENT, max_size=40), st.integers(1, 3))
def test_the_slices_of_a_track_nest_for_any_order_of_events(
    events: list[JobEvent | TakenOver | float], concurrency: int
) -> None:
    it, ends = book(concurrency), Counter[int]()
    for event in events:
        if isinstance(event, float):
            it.look(event)
            continue
        job = event.job_id  # no number is given twice
        number = job + 10 * ends[job]
        if isinstance(event, TakenOver):
            hear(it, replace(event, job_id=number))
        else:
            hear(it, event._replace(job_id=number))
        ends[job] += isinstance(event, JobEnded)
    shown(it)


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
    makers = [LineMaker(12_345_000 + pool) for pool in range(3)]
    lines = [m.queued(n, 1, '"f"', again=False) for m in makers for n in range(1, 30)]
    assert len({str(only(line)["id"]) for line in lines}) == len(lines)


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
