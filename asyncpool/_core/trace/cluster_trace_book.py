"""Which lines of a trace the events of a cluster become.

Each slot has a track, on which the life of its workers is a row of slices: a worker starts, serves
and drains.  What happened to it is an instant there, and reloads are slices of the whole
cluster.  A slice is written when it begins, so the trace of a killed master shows what was on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asyncpool._core.trace.trace_book import told_of
from asyncpool._core.trace.trace_lines import POOL_TRACK, LineMaker, track_of
from asyncpool.events import Crashed, Event, Exited, Ready, Retiring, Spawned

_MICRO = 1e6

# Seconds over which requests are counted: workers tell of them once a second.
_PERIOD = 2.0

_RELOAD = "reload"
STARTING, SERVING, DRAINING = "starting", "serving", "draining"


class Counted(NamedTuple):
    """The figures of a cluster at one moment.

    Attributes:
        connections: How many are open.
        answered: How many requests were answered, in all.
        open_requests: How many are being answered.
        memory: Bytes that the workers have to themselves.
    """

    connections: int
    answered: int
    open_requests: int
    memory: int


class ClusterTraceBook:
    """What is known of the workers of a cluster, and what is to be written of them.

    Args:
        name: What the cluster is called.
        number: What the trace calls it; see :class:`LineMaker`.
        master: The process id of the master.

    Attributes:
        lines: What is to be written; whoever writes it takes it out.
    """

    def __init__(self, name: str, number: int, master: int) -> None:
        self._make = LineMaker(number)
        self._phases: dict[int, tuple[str, int]] = {}  # what is on, and since when
        self._ends: dict[int, int] = {}  # when the last phase of a slot ended
        self._tracks: set[int] = set()
        self._figures: dict[str, float] = {}
        self._before: tuple[float, int] | None = None  # since when requests are counted
        self._rate = 0.0
        self._reloads = False
        self.lines = [self._make.head(name, master, "the cluster")]

    def happened(self, event: Event, now: float) -> None:
        """Take note of an event."""
        about = event.crash if isinstance(event, Crashed) else event
        slot: int | None = getattr(about, "slot", None)
        at = int(now * _MICRO)
        name, args = told_of(event)
        match event:
            case Spawned(slot=index):
                self._begin(index, STARTING, at, args)
                return
            case Ready(slot=index):
                self._begin(index, SERVING, at, args)
                return
            case Retiring(slot=index):
                self._begin(index, DRAINING, at, args)
                return
            case Crashed() | Exited() if slot is not None:
                self._end(slot, at, {"then": name})
            case _:
                pass
        track = None if slot is None else self._track(slot)
        self.lines.append(self._make.instant(name, at, args, track))

    def drains(self, slot: int, since: float) -> None:
        """Take note that a worker has been draining for some time, if that is news.

        Nobody tells it of the workers of a cluster that ends.
        """
        phase, began = self._phases.get(slot, ("", 0))
        if phase == SERVING:
            at = max(began, int(since * _MICRO))
            self._begin(slot, DRAINING, at, {"reason": "close"})

    def begin_reload(self, now: float) -> None:
        """Write that a reload begins."""
        self._reloads = True
        self.lines.append(self._make.phase(POOL_TRACK, _RELOAD, int(now * _MICRO), {}))

    def end_reload(self, now: float, replaced: int, reason: str) -> None:
        """Write that it is over: how many workers were replaced, and what was in the way."""
        self._reloads = False
        at, args = int(now * _MICRO), {"replaced": replaced, "reason": reason}
        self.lines.append(self._make.phase_over(POOL_TRACK, _RELOAD, at, args))

    def count(self, now: float, figures: Counted) -> None:
        """Write those of some figures that have changed."""
        then, answered = self._before = self._before or (now, figures.answered)
        if now - then >= _PERIOD:
            self._rate = round((figures.answered - answered) / (now - then), 1)
            self._before = now, figures.answered
        counters = (
            ("open connections", "connections", figures.connections),
            ("open requests", "requests", figures.open_requests),
            ("requests a second", "requests", self._rate),
            ("memory of the workers", "MB", round(figures.memory / 1e6, 1)),
        )
        for name, unit, value in counters:
            if self._figures.get(name) != value:
                self._figures[name] = value
                at = int(now * _MICRO)
                self.lines.append(self._make.counter(name, at, unit, value))

    def lost(self, now: float, lines: int) -> None:
        """Write that so many lines are missing, since the disk was too slow for them."""
        at, args = int(now * _MICRO), {"lines": lines}
        self.lines.append(self._make.instant("lines are missing", at, args, None))
        self._figures.clear()
        slots, self._tracks = sorted(self._tracks), set()
        for slot in slots:  # their names may be among them
            self._track(slot)

    def end(self, now: float) -> None:
        """Write the end of the trace, and of all that is on."""
        at = int(now * _MICRO)
        for slot in sorted(self._phases):
            self._end(slot, at, {})
        if self._reloads:
            self.end_reload(now, 0, "the cluster has ended")
        self.lines.append(self._make.tail(at))

    def _begin(
        self, slot: int, phase: str, at: int, args: Mapping[str, object]
    ) -> None:
        track = self._track(slot)
        at = self._end(slot, at, {})
        self._phases[slot] = phase, at
        self.lines.append(self._make.phase(track, phase, at, args))

    def _end(self, slot: int, at: int, args: Mapping[str, object]) -> int:
        """Write the end of what is on, if something is; return when that is."""
        on = self._phases.pop(slot, None)
        if on is not None:
            phase, began = on
            at = max(at, began + 1)  # what took no time at all could not be seen
            track = self._track(slot)
            self.lines.append(self._make.phase_over(track, phase, at, args))
            self._ends[slot] = at
        # Not before the end of the last phase, which may have been moved.
        return max(at, self._ends.get(slot, at))

    def _track(self, slot: int) -> int:
        track = track_of(slot, 0)
        if slot not in self._tracks:
            self._tracks.add(slot)
            self.lines.append(self._make.track_name(track, f"slot {slot}"))
        return track
