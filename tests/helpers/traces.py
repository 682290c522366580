"""A reader of trace files that is stricter than the viewers, which forgive much.

It holds a file to the description of the Trace Event Format, and to what Perfetto's importer
needs beyond that: slices of one track nest, and each arrow begins and ends at a slice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["PROCESS", "Slice", "Traced", "check", "read_trace"]

_UINT32 = PROCESS = 1 << 32
_FIELDS = {
    "M": {"name", "pid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "B": {"name", "cat", "pid", "tid", "ts"},
    "E": {"pid", "tid", "ts"},
    "b": {"name", "cat", "pid", "id", "ts"},
    "e": {"name", "cat", "pid", "id", "ts"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"},
    "C": {"name", "pid", "ts", "args"},
}


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took time; *end* is ``None`` if the file does not tell it."""

    name: str
    track: int
    begin: int
    end: int | None
    args: dict[str, Any]


@dataclass(slots=True)
class Traced:
    """What a trace shows.

    Attributes:
        processes: The names of the processes, in their order; the first one is the pool.
        names: The names of the tracks.  Those of other processes than the first have numbers
            from :data:`PROCESS` on.
        slices: What is on them.
        waits: What is on the track of the queue, by job.
        instants: What took no time.
        arrows: Pairs of times between which arrows lead, by job.
        counters: The values of each counter; those of other processes have their names in front.
        whole: Whether the file has an end.
    """

    processes: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    waits: dict[int, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    instants: list[dict[str, Any]] = field(default_factory=list)
    arrows: dict[str, list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    counters: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    whole: bool = False

    def of_job(self, job: int) -> list[Slice]:
        """Return the attempts at a job, in their order."""
        found = [slice_ for slice_ in self.slices if slice_.args["job"] == job]
        return sorted(found, key=lambda slice_: slice_.begin)


def read_trace(path: str | Path, *, killed: bool = False) -> Traced:
    """Return what a file shows; one without an end must have whole lines all the same.

    Args:
        path: The file.
        killed: Whether its last line may be cut: the kernel ends a write of a killed process
            between two pages.
    """
    text = Path(path).read_text()
    return check(text[: text.rindex("\n") + 1] if killed else text)


def check(text: str) -> Traced:
    """Return what a trace shows, and hold it to the format."""
    assert text.startswith("[\n")
    whole = text.endswith("\n]\n")
    body = text.removeprefix("[\n").removesuffix("]\n")
    assert body.endswith("\n"), "half a line"
    events = []
    lines = body.splitlines()
    for number, line in enumerate(lines):
        last = whole and number == len(lines) - 1
        assert line.endswith(",") is not last, line
        events.append(json.loads(line.removesuffix(",")))
    if whole:
        assert json.loads(text) == events
    for event in events:
        _check_fields(event)
    return _Reader(whole=whole).read(events)


def _check_fields(event: dict[str, Any]) -> None:
    kind = event["ph"]
    assert _FIELDS[kind] <= event.keys(), event
    for name in ("pid", "tid", "ts", "dur"):
        value = event.get(name, 1)
        assert type(value) is int, event
        assert value >= 0, event
    for name in ("pid", "tid"):
        assert 0 < event.get(name, 1) < _UINT32, event
    if kind == "i":
        assert event["s"] in {"p", "t"}
    if kind == "C":
        assert all(type(value) in {int, float} for value in event["args"].values())
    for name in ("id", "bind_id"):
        assert 0 < int(event.get(name, "0x1"), 16) < 1 << 64


class _Reader:
    def __init__(self, *, whole: bool) -> None:
        self._traced = Traced(whole=whole)
        self._sorted: set[int] = set()
        self._open: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self._waiting: dict[str, dict[str, Any]] = {}
        self._arrows: dict[str, int] = {}
        self._pids: list[int] = []

    def read(self, events: Iterable[dict[str, Any]]) -> Traced:
        # As importers do: by time, and what is of one time in the order of the file.
        for event in sorted(events, key=lambda event: event.get("ts", 0)):
            self._take(event)
            if "bind_id" in event:
                self._take_arrow(event)
        traced = self._traced
        for track, begun in self._open.items():
            for event in begun:
                self._add(event, track, None)
        for event in self._waiting.values():
            self._add_wait(event, None)
        assert not (traced.whole and any(self._open.values()))
        assert not (traced.whole and self._waiting)
        for track in {slice_.track for slice_ in traced.slices}:
            assert track in traced.names
            assert track in self._sorted
            _check_nesting([s for s in traced.slices if s.track == track])
        return traced

    def _take(self, event: dict[str, Any]) -> None:
        traced, args = self._traced, event.get("args", {})
        process = self._process(event["pid"])
        track = event.get("tid", 0) + PROCESS * process
        match event["ph"]:
            case "M" if event["name"] == "thread_name":
                traced.names[track] = args["name"]
            case "M" if event["name"] == "thread_sort_index":
                self._sorted.add(track)
            case "M":
                assert event["name"] == "process_name"
                traced.processes[process:] = [args["name"]]
            case "X":
                self._add(event, track, event["ts"] + event["dur"])
            case "B":
                self._open[track].append(event)
            case "E":
                self._end(event, track)
            case "b":
                assert event["id"] not in self._waiting, "it waits already"
                self._waiting[event["id"]] = event
            case "e":
                begun = self._waiting.pop(event["id"])
                assert begun["pid"] == event["pid"]
                begun["args"] |= args
                self._add_wait(begun, event["ts"])
            case "i":
                traced.instants.append(event)
            case kind:
                assert kind == "C"
                of = f"{traced.processes[process]}: " if process else ""
                traced.counters[f"{of}{event['name']}"] += args.values()

    def _process(self, pid: int) -> int:
        if pid not in self._pids:
            self._pids.append(pid)
        return self._pids.index(pid)

    def _end(self, event: dict[str, Any], track: int) -> None:
        begun = self._open[track].pop()
        assert begun["name"] == event["name"]
        begun["args"] |= event.get("args", {})
        self._add(begun, track, event["ts"])

    def _add(self, event: dict[str, Any], track: int, end: int | None) -> None:
        self._traced.slices.append(
            Slice(event["name"], track, event["ts"], end, event["args"])
        )

    def _add_wait(self, event: dict[str, Any], end: int | None) -> None:
        args = event["args"]
        wait = Slice(event["name"], event["tid"], event["ts"], end, args)
        self._traced.waits[args["job"]].append(wait)

    def _take_arrow(self, event: dict[str, Any]) -> None:
        """Follow the arrows, of which each but the first begins where another has ended."""
        job, at = event["bind_id"], event["ts"]
        assert event["ph"] in {"X", "B", "b"}, "it is bound to no slice"
        if event.get("flow_in"):
            self._traced.arrows[job].append((self._arrows.pop(job), at))
        if event.get("flow_out"):
            assert job not in self._arrows
            self._arrows[job] = at


def _check_nesting(slices: list[Slice]) -> None:
    """Check that of two slices one is inside the other, or they do not touch."""
    endless = 1 << 62
    spans = [(s.begin, -(endless if s.end is None else s.end)) for s in slices]
    stack: list[int] = []
    for begin, minus_end in sorted(spans):
        end = -minus_end
        while stack and stack[-1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1], f"{begin} to {end} crosses {stack[-1]}"
        stack.append(end)
