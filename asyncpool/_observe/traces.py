"""What a trace of a pool consists of: which jobs it shows, in which lines, and on which track.

A job waits on the track of the queue from an event "queued" on.  When an attempt is over, it is a
slice on the track of its slot, which stays the same when the worker is replaced.  An attempt that
runs for longer than :data:`LONG` is told before it is over, so that the trace of a killed service
shows it.  Arrows lead from the waiting to the attempt, and from there to the next waiting if there
is another attempt.

All times are microseconds of CLOCK_MONOTONIC, as whole numbers: text of floats takes longer, and
has not the same end twice.  Nothing here opens a file.
"""

from __future__ import annotations

import json
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import fields
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncpool._core.deadlines import RateLimit
from asyncpool.enums import JobOutcome
from asyncpool.events import Broken, Crash, Crashed, Event, Ready, TakenOver
from asyncpool.stats import PoolStats, SlotStats

if TYPE_CHECKING:
    from asyncpool._engine.hub import Attempt, PoolHub
    from asyncpool._engine.job import PoolJob

# How a file begins.  A file that begins otherwise is no trace of a pool.
HEAD = '[\n{"name":"process_name","ph":"M","cat":"asyncpool",'

# The track of what is about the whole pool.
POOL_TRACK = 1

# Microseconds after which an attempt is told although it is not over.
LONG = 1_000_000

# How far apart the first lanes of two slots are: no worker has more lanes.
_STRIDE = 10_000

_MOST_TEXT = 8192  # characters of a text in a crash
_MOST_NAMES = 1000
_MICRO = 1e6

_IN, _OUT = '"flow_in":true', '"flow_out":true'


def text_of(value: str) -> str:
    """Return a text as JSON, without what is no Unicode."""
    if len(value) > _MOST_TEXT:
        value = f"... {value[-_MOST_TEXT:]}"  # the end says what happened
    return json.dumps(value.encode(errors="replace").decode())


def _plain(value: object) -> object:
    """Return *value* as something that JSON has."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if value is None or isinstance(value, bool | int | float):
        return value
    return json.loads(text_of(str(value)))


def _told_of(event: Event) -> dict[str, object]:
    """Return the data of an event that is not about one job."""
    if isinstance(event, Crashed):
        return _told_of_crash(event.crash)
    if isinstance(event, Broken):
        return {"reason": event.reason}
    return {field.name: getattr(event, field.name) for field in fields(event)}


def _told_of_crash(crash: Crash) -> dict[str, object]:
    told = {
        "what": crash.how,
        "worker": crash.pid,
        "kind": crash.kind,
        "signal": crash.signal,
        "exit_code": crash.exit_code,
        "job": crash.job_id,
        "function": crash.function,
        "stderr": "\n".join(crash.stderr_tail),
        "stack": crash.stack,
        "next": crash.next_step_text,
    }
    return {name: value for name, value in told.items() if value not in {None, ""}}


# Which lane of a slot's tracks shows which attempt, so that the slices of a track nest.
#
# A viewer draws the slices of one track inside each other, so two of them may not overlap in
# part.  A worker with several lanes runs several jobs at once, and each gets a track of its
# own.  Attempts come here in the order of their ends.  The track that has been free for the
# shortest time gets the next one: so there are never more tracks than attempts at once.
#
# The pool hears of several short jobs together, and knows how long each ran but not when it
# began.  So an attempt may be too early for every track.  Then it moves behind the one before.

_LAST = 1 << 40  # more lanes than there are, to sort behind all of them


class SlotLanes:
    """The lanes of one slot.  All times are whole microseconds.

    Args:
        usual: How many attempts the worker runs at once.

    Attributes:
        count: How many lanes there are.
    """

    __slots__ = ("_free", "_usual", "count")

    def __init__(self, usual: int) -> None:
        self._usual = usual
        # Until when each was in use, and its number.
        self._free: list[tuple[int, int]] = []
        self.count = 0

    def put(self, begin: int, run: int) -> tuple[int, int]:
        """Give a lane to an attempt that is over; return the lane, and when it begins there."""
        lane, begin = self.take(begin)
        self.give_back(lane, begin + run)
        return lane, begin

    def take(self, begin: int) -> tuple[int, int]:
        """Give a lane to an attempt that still runs; return as :meth:`put` does."""
        free = self._free
        place = bisect_right(free, (begin, _LAST))
        if place:
            _, lane = free.pop(place - 1)
            return lane, begin
        if free and self.count >= self._usual:
            begin, lane = free.pop(0)
            return lane, begin
        self.count += 1
        return self.count - 1, begin

    def give_back(self, lane: int, end: int) -> None:
        """Take back a lane from an attempt that ended at *end*."""
        insort(self._free, (end, lane))


class _Shown(NamedTuple):
    """A running attempt that the trace shows."""

    slot: int
    lane: int
    begin: int
    function: str


class TraceBook:
    """Follows jobs as a :class:`JobTracer`, and makes the lines of a trace.

    It keeps a number for each open job that it shows, and nothing of those that have ended.

    Args:
        hub: What tells of the jobs.
        name: What the pool is called.
        number: What the trace calls the pool: its ``pid``.
        service: The process id of the service.
        concurrency: How many jobs each worker runs at once.
        most: How many jobs a second are shown; ``None`` for all.  What has failed is always
            shown, and so is what takes long: these jobs are followed from then on, and what was
            before is told with the times that it had.

    Attributes:
        lines: What is to be written; whoever writes it takes it out.
        limit: Which jobs are shown; it counts the others.
    """

    def __init__(
        self,
        hub: PoolHub,
        name: str,
        number: int,
        service: int,
        concurrency: int,
        most: int | None,
    ) -> None:
        self._hub, self._number = hub, number
        self.limit = RateLimit(most)
        # The open jobs that are shown, and since when they wait.
        self._waiting: dict[int, int] = {}
        self._shown: dict[int, _Shown] = {}
        self._taken_over: int | None = None
        self._lanes = defaultdict[int, SlotLanes](lambda: SlotLanes(concurrency))
        self._tracks: dict[tuple[int, int], str] = {}  # their names, by slot and lane
        self._pids: dict[int, int] = {}
        self._figures: dict[str, float] = {}
        self._name_of = lru_cache(_MOST_NAMES)(text_of)
        self._where = f'"pid":{number},"tid":'
        # A job is known by one id, to its waiting and to its arrows: 64 bits, the pool first.
        # Its digits are decimal, and read as hexadecimal ones: that is quicker, and as unique.
        pool = f"0x{number & 0xFFFFFFF:07x}"
        self._bind = f'"bind_id":"{pool}'
        self._queue = (
            f'"cat":"queue","name":"queued",{self._where}{POOL_TRACK},"id":"{pool}'
        )
        args = f'"args":{{"name":{text_of(name)},"service":{service}}}'
        self.lines = [f'{HEAD}"pid":{number},{args}}},\n']
        self._name_track(POOL_TRACK, "the pool")

    # What a tracer is told.  These are called for every job, so they are short.

    def queued(self, job: PoolJob[Any], /) -> None:
        """Show a new job, unless they are too many."""
        at, limit = job.queued_at, self.limit
        if at < limit.next_at:  # the same as take(), whose call takes 60 ns
            limit.refused += 1
            return
        limit.take(at)
        self._hub.trace(job.id)
        self._wait(job.id, job.title, int(at * _MICRO), _OUT)

    def sending(self, job: PoolJob[Any], slot: int, /) -> None:
        """Do nothing: how long a job waited is known when it ends."""

    def unassigned(self, job: PoolJob[Any], /) -> None:
        """Show that an attempt has not begun after all; one that was not shown waits as before."""
        if job.id in self._shown:
            at = self._end_shown(job.id, int(job.queued_at * _MICRO), "given back")
            self._wait(job.id, job.title, at, f"{_IN},{_OUT}")

    def attempt_failed(
        self, job: PoolJob[Any], _: BaseException, attempt: Attempt | None, /
    ) -> None:
        """Show an attempt that has failed, and that the job waits again."""
        before, at = self._wait_of(job, attempt), int(job.queued_at * _MICRO)
        if attempt is not None or job.id in self._shown:
            outcome = "taken over" if self._taken_over == job.id else "retry"
            self._taken_over = None
            at = max(at, self._over(job, attempt, at, outcome, f"{_IN},{_OUT}"))
        elif at > before:
            self.lines.append(self._dequeued(job.id, at, "lost"))
        else:
            return  # it waits as before
        self._wait(job.id, job.title, at, f"{_IN},{_OUT}")

    def ended(
        self,
        job: PoolJob[Any],
        outcome: JobOutcome,
        error: BaseException | None,
        attempt: Attempt | None,
        /,
    ) -> None:
        """Show the end of a job, and all of it if it has failed."""
        now = self._now()
        if error is None and job.id not in self._waiting:
            return
        # A call that was refused has never waited.
        if job.id not in self._waiting and outcome is JobOutcome.REFUSED:
            self._instant(outcome, now, {"job": job.id, "function": job.title})
            self._hand_over_many()
            return
        before = self._wait_of(job, attempt)
        if attempt is not None or job.id in self._shown:
            if attempt is not None and attempt.run is not None:
                now = int((attempt.began + attempt.run) * _MICRO)
            self._over(job, attempt, now, outcome, _IN)
        else:
            self.lines.append(self._dequeued(job.id, max(before, now), outcome))
        del self._waiting[job.id]
        self._hand_over_many()

    # The lines of a job.

    def _wait_of(self, job: PoolJob[Any], attempt: Attempt | None) -> int:
        """Return since when a job waits, which is shown from now on if it was not before."""
        if job.id not in self._waiting:
            at = job.queued_at if attempt is None else attempt.queued
            self._add(job.id, job.title, int(at * _MICRO))
        return self._waiting[job.id]

    def _add(self, job: int, function: str, at: int) -> None:
        self.limit.refused -= 1
        self._hub.trace(job)
        self._wait(job, function, at, _OUT)

    def _wait(self, job: int, function: str, at: int, flow: str) -> None:
        self._waiting[job] = at
        self.lines.append(
            f'{{"ph":"b",{self._queue}{job}",{self._bind}{job}",{flow},"ts":{at},'
            f'"args":{{"job":{job},"function":{self._name_of(function)}}}}},\n'
        )

    def _dequeued(self, job: int, at: int, why: str) -> str:
        """Return the line with which a job waits no more: *why* is its outcome, or "begun"."""
        return (
            f'{{"ph":"e",{self._queue}{job}","ts":{at},"args":{{"then":"{why}"}}}},\n'
        )

    def _over(
        self,
        job: PoolJob[Any],
        attempt: Attempt | None,
        end: int,
        outcome: str,
        flow: str,
    ) -> int:
        """Write an attempt that is over, and return its end in the trace."""
        if attempt is None or job.id in self._shown:
            return self._end_shown(job.id, end, outcome)
        begin = max(self._waiting[job.id], int(attempt.began * _MICRO))
        run = max(1, end - begin)  # or nobody could see it
        lane, begin = self._lanes[attempt.slot].put(begin, run)
        details = f'"attempt":{job.attempt},"outcome":"{outcome}"'
        where = attempt.slot, lane, begin, job.title
        self._slice(f'"X","dur":{run}', job.id, _Shown(*where), flow, details)
        return begin + run

    def _slice(
        self, kind: str, job: int, shown: _Shown, flow: str, details: str
    ) -> None:
        slot, lane, begin, function = shown
        track = self._track_of(slot, lane)
        self.lines.append(
            f"{self._dequeued(job, begin, 'begun')}"
            f'{{"ph":{kind},"cat":"job",{self._where}{track},"ts":{begin},'
            f'"name":{self._name_of(function)},{self._bind}{job}",{flow},'
            f'"args":{{"job":{job},{details},"worker":{self._pids.get(slot, 0)}}}}},\n'
        )

    def look(self, slots: Iterable[SlotStats]) -> None:
        """Show the attempts that have been running for long, and are not over."""
        for slot in slots:
            for job in slot.running:
                number, name, run = job.job_id, job.function, int(job.seconds * _MICRO)
                if run < LONG or number in self._shown:
                    continue
                begin = self._now() - run
                if number not in self._waiting:
                    # How long it has waited is not known any more.
                    self._add(number, name, begin)
                begin = max(begin, self._waiting[number])
                lane, begin = self._lanes[slot.slot].take(begin)
                shown = self._shown[number] = _Shown(slot.slot, lane, begin, name)
                details = f'"attempt":{job.attempt}'
                self._slice('"B"', number, shown, f"{_IN},{_OUT}", details)

    def _end_shown(self, job: int, end: int, outcome: str) -> int:
        # Where it was shown: its slot now is another one if the end of an attempt was not heard.
        slot, lane, begin, function = self._shown.pop(job)
        end = max(end, begin + 1)
        self._lanes[slot].give_back(lane, end)
        about = {"name": function, "args": {"outcome": outcome}}
        self._line("E", self._track_of(slot, lane), cat="job", ts=end, **about)
        return end

    def _track_of(self, slot: int, lane: int) -> int:
        """Return the number of a track, its ``tid``, which has a name from then on."""
        track = track_of(slot, lane)
        if (slot, lane) not in self._tracks:
            name = f"slot {slot}, lane {lane}" if lane else f"slot {slot}"
            self._tracks[slot, lane] = name
            self._name_track(track, name)
        return track

    # The pool and its workers.

    def happened(self, event: Event) -> None:
        """Take note of what is not about one job."""
        if isinstance(event, TakenOver):  # its attempt is about to be told as failed
            self._taken_over = event.job_id
            return
        if isinstance(event, Ready):
            self._pids[event.slot] = event.pid
        about = event.crash if isinstance(event, Crashed) else event
        slot: int | None = getattr(about, "slot", None)
        track = None if slot is None else self._track_of(slot, 0)
        name, at = type(event).__name__.lower(), self._now()
        self._instant(name, at, _told_of(event), track)

    def count(self, stats: PoolStats) -> None:
        """Write those of some figures that have changed."""
        memory = sum(slot.memory for slot in stats.slots)
        for name, unit, value in (
            ("queued jobs", "jobs", stats.queued),
            ("busy workers", "workers", stats.busy),
            ("memory of the workers", "MB", round(memory / 1e6, 1)),
            ("jobs not shown", "jobs", self.limit.refused),
        ):
            if self._figures.get(name) != value:
                self._figures[name] = value
                about = {"cat": "pool", "name": name, "ts": self._now()}
                self._line("C", None, **about, args={unit: value})

    def lost(self, lines: int) -> None:
        """Write that so many lines are missing, since the disk was too slow for them."""
        self._instant("lines are missing", self._now(), {"lines": lines})
        self._figures.clear()
        for where, name in self._tracks.items():  # these may be among them
            self._name_track(track_of(*where), name)

    def end(self) -> None:
        """Write the end of the trace."""
        self._instant("end of the trace", self._now(), {})
        self.lines[-1] = self.lines[-1].replace(",\n", "\n]\n")

    def _now(self) -> int:
        return int(monotonic() * _MICRO)

    def _hand_over_many(self) -> None:
        """Hand the lines over, if they are many."""

    def _instant(
        self, name: str, at: int, args: dict[str, object], track: int | None = None
    ) -> None:
        """Write what takes no time; without a *track* it is the pool's."""
        scope, cat = ("p", "pool") if track is None else ("t", "worker")
        about = {"s": scope, "cat": cat, "name": name, "ts": at}
        self._line("i", POOL_TRACK if track is None else track, **about, args=args)

    def _name_track(self, track: int, name: str) -> None:
        """Give a track its name, and its place among the others."""
        self._line("M", track, name="thread_name", args={"name": name})
        self._line("M", track, name="thread_sort_index", args={"sort_index": track})

    def _line(self, kind: str, track: int | None, **about: object) -> None:
        where = {"ph": kind, "pid": self._number}
        if track is not None:
            where["tid"] = track
        told = json.dumps(_plain(where | about), separators=(",", ":"))
        self.lines.append(f"{told},\n")


def track_of(slot: int, lane: int) -> int:
    """Return the number of a track, its ``tid``."""
    return (slot + 1) * _STRIDE + lane
