"""What a trace of a pool or a cluster consists of: which event becomes which lines, and on which track.

Nothing here opens a file, and they work the same without it.
"""

from __future__ import annotations

import json
from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import fields
from typing import NamedTuple

from asyncpool.events import (
    Broken,
    Crash,
    Crashed,
    Event,
    JobEnded,
    JobQueued,
    JobStarted,
    Ready,
    TakenOver,
)

# How a file begins.  A file that begins otherwise is no trace of a pool.
HEAD = '[\n{"name":"process_name","ph":"M","cat":"asyncpool",'

# The track of what is about the whole pool.
POOL_TRACK = 1

# How far apart the first lanes of two slots are: no worker has more lanes.
_STRIDE = 10_000

_MOST_TEXT = 8192  # characters of a text in a crash
_MOST_NAMES = 1000


def track_of(slot: int, lane: int) -> int:
    """Return the number of a track, its ``tid``."""
    return (slot + 1) * _STRIDE + lane


def text_of(value: str) -> str:
    """Return a text as JSON, without what is no Unicode."""
    if len(value) > _MOST_TEXT:
        value = f"... {value[-_MOST_TEXT:]}"  # the end says what happened
    return json.dumps(value.encode(errors="replace").decode())


class Names:
    """The names of functions as JSON, each encoded once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return a name as JSON."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= _MOST_NAMES:  # they are made up, without end
                self._known.clear()
            found = self._known[name] = text_of(name)
        return found


class LineMaker:
    """Makes the lines of one pool.

    Args:
        number: What the trace calls the pool: its ``pid``.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._where = f'"pid":{number},'
        # A job is known by one id, to its waiting and to its arrows: 64 bits, the pool first.
        # Its digits are decimal, and read as hexadecimal ones: that is quicker, and as unique.
        pool = number & 0xFFFFFFF
        identity = f'"id":"0x{pool:07x}'
        self._bind = f'"bind_id":"0x{pool:07x}'
        common = f'"cat":"queue","name":"queued",{self._where}"tid":{POOL_TRACK},'
        self._queued = f'{{"ph":"b",{common}{identity}'
        self._dequeued = f'{{"ph":"e",{common}{identity}'
        self._job = f'{{"ph":"X","cat":"job",{self._where}"tid":'
        self._begun = f'{{"ph":"B","cat":"job",{self._where}"tid":'
        self._ended = f'{{"ph":"E","cat":"job",{self._where}"tid":'

    def head(self, name: str, service: int) -> str:
        """Return how the file begins: what the pool is called, and the track of all of it."""
        args = f'"args":{{"name":{text_of(name)},"service":{service}}}'
        return (
            f"{HEAD}{self._where}{args}}},\n{self.track_name(POOL_TRACK, 'the pool')}"
        )

    def track_name(self, track: int, name: str) -> str:
        """Return the lines that give a track its name, and its place among the others."""
        where = f'"ph":"M",{self._where}"tid":{track},'
        return (
            f'{{"name":"thread_name",{where}"args":{{"name":{text_of(name)}}}}},\n'
            f'{{"name":"thread_sort_index",{where}"args":{{"sort_index":{track}}}}},\n'
        )

    def tail(self, at: int) -> str:
        """Return how the file ends if the pool ends."""
        return (
            f'{{"name":"end of the trace","ph":"i","s":"p","cat":"pool",{self._where}'
            f'"tid":{POOL_TRACK},"ts":{at}}}\n]\n'
        )

    def queued(self, job: int, at: int, function: str, *, again: bool) -> str:
        """Return the line with which a job begins to wait.

        Args:
            job: Its number.
            at: When.
            function: Its name, as JSON.
            again: Whether there was an attempt before, whose arrow leads here.
        """
        flow = '"flow_in":true,"flow_out":true' if again else '"flow_out":true'
        return (
            f'{self._queued}{job}",{self._bind}{job}",{flow},"ts":{at},'
            f'"args":{{"job":{job},"function":{function}}}}},\n'
        )

    def dequeued(self, job: int, at: int, why: str) -> str:
        """Return the line with which a job waits no more: *why* is its outcome, or "begun"."""
        return f'{self._dequeued}{job}","ts":{at},"args":{{"then":"{why}"}}}},\n'

    def job(
        self,
        job: int,
        track: int,
        function: str,
        *,
        begin: int,
        run: int,
        details: str,
        again: bool,
    ) -> str:
        """Return the lines of an attempt that is over, with the end of its waiting.

        Args:
            job: Its job's number.
            track: The track that it gets.
            function: What was called, as JSON.
            begin: When.
            run: How long it ran.
            details: What else there is to tell, as the inside of a JSON object.
            again: Whether another attempt follows, to which an arrow leads.
        """
        flow = '"flow_in":true,"flow_out":true' if again else '"flow_in":true'
        return (
            f'{self._dequeued}{job}","ts":{begin},"args":{{"then":"begun"}}}},\n'
            f'{self._job}{track},"ts":{begin},"dur":{run},"name":{function},'
            f'{self._bind}{job}",{flow},"args":{{"job":{job},{details}}}}},\n'
        )

    def begun(
        self, job: int, track: int, function: str, begin: int, details: str
    ) -> str:
        """Return the lines of an attempt that still runs, with the end of its waiting."""
        return (
            f"{self.dequeued(job, begin, 'begun')}"
            f'{self._begun}{track},"ts":{begin},"name":{function},{self._bind}{job}",'
            f'"flow_in":true,"flow_out":true,"args":{{"job":{job},{details}}}}},\n'
        )

    def ended(self, track: int, function: str, end: int, details: str) -> str:
        """Return the line of the end of an attempt that :meth:`begun` has told of."""
        return (
            f'{self._ended}{track},"ts":{end},"name":{function},'
            f'"args":{{{details}}}}},\n'
        )

    def instant(
        self, name: str, at: int, args: Mapping[str, object], track: int | None
    ) -> str:
        """Return the line of what takes no time; without a *track* it is the pool's."""
        line = {
            "ph": "i",
            "s": "p" if track is None else "t",
            "cat": "pool" if track is None else "worker",
            "name": name,
            "pid": self._number,
            "tid": POOL_TRACK if track is None else track,
            "ts": at,
            "args": {key: _plain(value) for key, value in args.items()},
        }
        return f"{json.dumps(line, separators=(',', ':'))},\n"

    def counter(self, name: str, at: int, unit: str, value: float) -> str:
        """Return the line of a figure that has changed."""
        return (
            f'{{"ph":"C","cat":"pool","name":"{name}",{self._where}"ts":{at},'
            f'"args":{{"{unit}":{value}}}}},\n'
        )


def _plain(value: object) -> object:
    """Return *value* as something that JSON has."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return json.loads(text_of(str(value)))


# Which lines of a trace the events of a pool become.
#
# A job waits on the track of the queue, from an event "queued" on.  When an attempt is over, it
# is a slice on the track of its slot, which stays the same when the worker is replaced.
# An attempt that runs for longer than :data:`LONG` is told before it is over, so that the trace
# of a killed service shows it.  Arrows lead from the waiting to the attempt, and from there to
# the next waiting if there is another attempt.
#
# All times are microseconds of CLOCK_MONOTONIC, as whole numbers: text of floats takes longer,
# and has not the same end twice.

# What traces tell of events that are not about one job.


def told_of(event: Event) -> tuple[str, Mapping[str, object]]:
    """Return what the trace calls an event that is not about one job, and its data."""
    name = type(event).__name__.lower()
    if isinstance(event, Crashed):
        return name, _told_of_crash(event.crash)
    if isinstance(event, Broken):
        return name, {"reason": event.reason}
    told = {field.name: getattr(event, field.name) for field in fields(event)}
    return name, told


def _told_of_crash(crash: Crash) -> dict[str, object]:
    """Return what a trace tells of a crash."""
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
        self._free: list[
            tuple[int, int]
        ] = []  # until when each was in use, and its number
        self.count = 0

    def put(self, begin: int, run: int) -> tuple[int, int]:
        """Give a lane to an attempt that is over; return the lane, and when it begins there."""
        free = self._free
        if self._usual == 1 and len(free) == 1:  # which most pools have
            end, lane = free[0]
            begin = max(begin, end)
            free[0] = begin + run, lane
            return lane, begin
        lane, begin = self.take(begin)
        insort(free, (begin + run, lane))
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


# Microseconds after which an attempt is told although it is not over.
LONG = 1_000_000

_MICRO = 1e6


class _Shown(NamedTuple):
    """Where an attempt stands in the trace that is not over."""

    slot: int
    lane: int
    begin: int


class TraceBook:
    """What is known of the open jobs of a pool, and what is to be written of them.

    It keeps a number for each open job, and nothing of those that have ended.

    Args:
        name: What the pool is called.
        number: What the trace calls it; see :class:`LineMaker`.
        service: The process id of the service.
        concurrency: How many jobs each worker runs at once.

    Attributes:
        lines: What is to be written; whoever writes it takes it out.
    """

    def __init__(self, name: str, number: int, service: int, concurrency: int) -> None:
        self._make = LineMaker(number)
        self._names = Names()
        self._concurrency = concurrency
        self._queued: dict[int, int] = {}  # since when
        self._running: dict[int, JobStarted] = {}
        self._shown: dict[int, _Shown] = {}
        self._taken_over: int | None = None
        self._lanes: dict[int, SlotLanes] = {}
        self._tracks: dict[int, tuple[int, int]] = {}  # their slots and lanes
        self._pids: dict[int, int] = {}
        self._figures: dict[str, float] = {}
        self.lines = [self._make.head(name, service)]

    # Jobs: each of these is called for every job, so they are short.

    def queued(self, event: JobQueued) -> None:
        """Take note that a job waits."""
        job, at = event.job_id, int(event.at * _MICRO)
        again = job in self._queued
        if again:
            if not self._again(event, at):
                return
            at = self._queued[job]
        else:
            self._queued[job] = at
        function = self._names.find(event.function)
        self.lines.append(self._make.queued(job, at, function, again=again))

    def started(self, event: JobStarted) -> None:
        """Take note that an attempt has begun."""
        self._running[event.job_id] = event

    def ended(self, event: JobEnded) -> None:
        """Take note that a job has ended."""
        job = event.job_id
        queued = self._queued.pop(job, None)
        started = self._running.pop(job, None)
        if queued is None:  # it never was in the queue
            args = {"job": job, "function": event.function}
            at = int(event.at * _MICRO)
            self.lines.append(self._make.instant(event.outcome, at, args, None))
        elif started is None:
            at = max(queued, int(event.at * _MICRO))
            self.lines.append(self._make.dequeued(job, at, event.outcome))
        else:
            begin = queued + int(event.wait * _MICRO)
            run = int(event.run * _MICRO) or 1  # or nobody could see it
            self._over(started, begin, run, event.outcome, again=False)

    def _over(
        self, started: JobStarted, begin: int, run: int, outcome: str, *, again: bool
    ) -> int:
        """Write an attempt that is over, and return its end in the trace."""
        slot, job = started.slot, started.job_id
        function = self._names.find(started.function)
        if self._shown and job in self._shown:
            return self._end_shown(started, begin + run, outcome)
        lanes = self._lanes.get(slot)
        if lanes is None:
            lanes = self._add_lanes(slot)
        lane, begin = lanes.put(begin, run)
        if track_of(slot, lane) not in self._tracks:
            self._add_track(slot, lane)
        details = (
            f'"attempt":{started.attempt},"outcome":"{outcome}",'
            f'"worker":{self._pids.get(slot, 0)}'
        )
        self.lines.append(
            self._make.job(
                job,
                track_of(slot, lane),
                function,
                begin=begin,
                run=run,
                details=details,
                again=again,
            )
        )
        return begin + run

    def _again(self, event: JobQueued, at: int) -> bool:
        """Write what was before a job waits again; tell whether it begins to wait anew."""
        job = event.job_id
        started, before = self._running.pop(job, None), self._queued[job]
        if started is None and at <= before:
            return False
        if started is None:
            self.lines.append(self._make.dequeued(job, at, "lost"))
        elif event.attempts >= started.attempt:
            outcome = "taken over" if self._taken_over == job else "retry"
            self._taken_over = None
            begin = max(before, int(started.at * _MICRO))
            at = max(
                at, self._over(started, begin, max(1, at - begin), outcome, again=True)
            )
        elif job in self._shown:
            at = self._end_shown(started, at, "given back")
        else:
            return False  # it has not begun after all, and waits as before
        self._queued[job] = at
        return True

    # Attempts that take long.

    def look(self, now: float) -> None:
        """Write which attempts run, of those that have done so for long."""
        since = int(now * _MICRO) - LONG
        for job, started in self._running.items():
            if job not in self._shown and started.at * _MICRO <= since:
                self._show(started)

    def _show(self, started: JobStarted) -> None:
        job, slot = started.job_id, started.slot
        queued = self._queued.get(job)
        if queued is None:
            return
        begin = max(queued, int(started.at * _MICRO))
        lane, begin = (self._lanes.get(slot) or self._add_lanes(slot)).take(begin)
        self._add_track(slot, lane)
        self._shown[job] = _Shown(slot, lane, begin)
        details = f'"attempt":{started.attempt},"worker":{self._pids.get(slot, 0)}'
        function = self._names.find(started.function)
        track = track_of(slot, lane)
        self.lines.append(self._make.begun(job, track, function, begin, details))

    def _end_shown(self, started: JobStarted, end: int, outcome: str) -> int:
        # Where it was shown: its slot now is another one if the end of an attempt was not heard.
        slot, lane, begin = self._shown.pop(started.job_id)
        end = max(end, begin + 1)
        self._lanes[slot].give_back(lane, end)
        function = self._names.find(started.function)
        details, track = f'"outcome":"{outcome}"', track_of(slot, lane)
        self.lines.append(self._make.ended(track, function, end, details))
        return end

    def _add_lanes(self, slot: int) -> SlotLanes:
        lanes = self._lanes[slot] = SlotLanes(self._concurrency)
        return lanes

    def _add_track(self, slot: int, lane: int) -> None:
        key = track_of(slot, lane)
        if key not in self._tracks:
            self._tracks[key] = slot, lane
            self._name_track(slot, lane)

    def _name_track(self, slot: int, lane: int) -> None:
        name = f"slot {slot}, lane {lane}" if lane else f"slot {slot}"
        self.lines.append(self._make.track_name(track_of(slot, lane), name))

    # The pool and its workers.

    def happened(self, event: Event, now: float) -> None:
        """Take note of what is not about one job."""
        if isinstance(event, TakenOver):
            self._taken_over = event.job_id
            return
        if isinstance(event, Ready):
            self._pids[event.slot] = event.pid
        about = event.crash if isinstance(event, Crashed) else event
        slot: int | None = getattr(about, "slot", None)
        if slot is not None:
            self._add_track(slot, 0)
        name, args = told_of(event)
        track = None if slot is None else track_of(slot, 0)
        self.lines.append(self._make.instant(name, int(now * _MICRO), args, track))

    def count(
        self, now: float, *, queued: int, busy: int, memory: int, omitted: int
    ) -> None:
        """Write those of some figures that have changed.

        Args:
            now: When that is.
            queued: How many jobs wait.
            busy: How many workers run one.
            memory: Bytes that the workers have to themselves.
            omitted: How many jobs are not shown, up to now.
        """
        figures = (
            ("queued jobs", "jobs", queued),
            ("busy workers", "workers", busy),
            ("memory of the workers", "MB", round(memory / 1e6, 1)),
            ("jobs not shown", "jobs", omitted),
        )
        for name, unit, value in figures:
            if self._figures.get(name) != value:
                self._figures[name] = value
                at = int(now * _MICRO)
                self.lines.append(self._make.counter(name, at, unit, value))

    def lost(self, now: float, lines: int) -> None:
        """Write that so many lines are missing, since the disk was too slow for them."""
        at, args = int(now * _MICRO), {"lines": lines}
        self.lines.append(self._make.instant("lines are missing", at, args, None))
        self._figures.clear()
        for slot, lane in self._tracks.values():  # these may be among them
            self._name_track(slot, lane)

    def end(self, now: float) -> None:
        """Write the end of the trace."""
        self.lines.append(self._make.tail(int(now * _MICRO)))
