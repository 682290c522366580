"""What a pool counts and measures: durations, and how the jobs of each function end.

Nothing here decides anything, and the pool works the same without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import islice

from asyncpool._dataclass import dataclass
from asyncpool.enums import JobOutcome
from asyncpool.errors import ProtocolError
from asyncpool.events import Via
from asyncpool.stats import NO_DURATIONS, FunctionStats, Histogram

# A count for each number of binary digits that a duration of microseconds may have.
BUCKETS = 64


class Durations:
    """A histogram that is being filled.

    Attributes:
        counts: How many there were, by the binary digits of their microseconds.
        total: Their sum, in microseconds, in which workers tell their run times.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * BUCKETS
        self.total: float = 0

    def note(self, seconds: float) -> None:
        """Count one more; what is below 0, since clocks differ, counts as 0."""
        if seconds > 0:
            microseconds = seconds * 1e6
            self.counts[int(microseconds).bit_length()] += 1
            self.total += microseconds
        else:
            self.counts[0] += 1

    def histogram(self) -> Histogram:
        """Return what was counted until now."""
        counts = self.counts
        used = [digits for digits, count in enumerate(counts) if count]
        if not used:
            return NO_DURATIONS
        among = range(used[0], used[-1] + 1)
        return Histogram(
            bounds=tuple((1 << digits) / 1e6 for digits in among),
            counts=tuple(counts[digits] for digits in among),
            total=self.total / 1e6,
        )

    def add(self, other: Durations) -> None:
        """Count those that *other* has counted, too."""
        self.total += other.total
        for digits, count in enumerate(other.counts):
            self.counts[digits] += count

    def pack(self) -> list[int]:
        """Return the numbers of a report: their sum, and the counts."""
        return [round(self.total), *self.counts]


# How often the jobs of each function have ended in which way, and how long they took.
#
# A pool meets any number of functions, and whoever reads its figures keeps a series for each
# name.  So the number of names is bounded: the first ones have figures of their own, and all
# later ones share those of :data:`OTHER`.

MOST_NAMES = 200

OTHER = "other"


@dataclass(slots=True)
class FunctionFigures:
    """What is counted of one function.

    Attributes:
        name: Its name.
        via: How it is called.
        run: How long its attempts ran, as far as they came to an outcome.
        wait: How long its attempts waited before they began; of the same ones.
        ok: How many of its jobs have returned.
        others: How many have ended otherwise, by outcome.
        retries: Attempts after one that raised.
        takeovers: Attempts after one whose worker has died.
        items: How many items of maps have an outcome.
    """

    name: str
    via: Via
    run: Durations = field(default_factory=Durations)
    wait: Durations = field(default_factory=Durations)
    ok: int = 0
    others: dict[JobOutcome, int] = field(default_factory=dict)
    retries: int = 0
    takeovers: int = 0
    items: int = 0

    def ended(self, outcome: JobOutcome) -> None:
        """Count a job that has ended otherwise than by returning."""
        self.others[outcome] = self.others.get(outcome, 0) + 1

    def stats(self) -> FunctionStats:
        """Return what was counted until now."""
        jobs = {JobOutcome.OK: self.ok, **self.others}
        return FunctionStats(
            function=self.name,
            via=self.via,
            jobs={outcome: jobs.get(outcome, 0) for outcome in JobOutcome},
            retries=self.retries,
            takeovers=self.takeovers,
            items=self.items,
            run=self.run.histogram(),
            wait=self.wait.histogram(),
        )


class FunctionTotals:
    """The figures of all functions of a pool.

    Args:
        most: How many names have figures of their own.
    """

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: dict[tuple[str, Via], FunctionFigures] = {}

    def of(self, name: str, via: Via) -> FunctionFigures:
        """Return the figures of the function that is called *name*, in this way."""
        found = self._known.get((name, via))
        if found is None and len(self._known) >= self._most:
            name = OTHER
            found = self._known.get((name, via))
        if found is None:
            found = self._known[name, via] = FunctionFigures(name, via)
        return found

    def count(self, outcome: JobOutcome) -> int:
        """Return how many jobs of all of them have ended so, otherwise than by returning."""
        return sum(each.others.get(outcome, 0) for each in self)

    def __iter__(self) -> Iterator[FunctionFigures]:
        return iter(self._known.values())

    def stats(self) -> tuple[FunctionStats, ...]:
        """Return the figures of each, and of all others, as far as a job has ended."""
        return tuple(each.stats() for each in self if each.ok or each.others)


# What the workers of a cluster count of their requests, and how they tell their master of it.
#
# A worker tells what it has counted since its start.  So a report that a later one replaces costs
# nothing, and what the master knows of a worker that dies is never counted twice.

# The classes of responses, by the first digit of their status; the first one is for what is none.
CLASSES = ("other", "1xx", "2xx", "3xx", "4xx", "5xx")

# The numbers at the beginning of a report; the last ones only grow.
_GROWING = ("cut", "refused", "timed_out", "websockets")
_COUNTERS = ("open", "open_websockets", "busy", *_GROWING)


class RequestFigures:
    """What one worker has counted since its start, or several of them together.

    Attributes:
        open: Requests whose application has not returned yet.
        open_websockets: The same of WebSockets.
        busy: Whether it can take no request now; of several workers, how many.
        cut: Requests and WebSockets whose worker did not wait for their end.
        refused: Requests that were answered without asking the application.
        timed_out: Requests that were given up.
        websockets: WebSockets that clients have asked for.
        responses: How long each response took, for each of :data:`CLASSES`.
        lag: How late the event loop ran what was due.
        ended: Whether what was open has been counted as cut off.
    """

    __slots__ = (*_COUNTERS, "ended", "lag", "responses")

    def __init__(self) -> None:
        self.open = self.open_websockets = self.busy = 0
        self.cut = self.refused = self.timed_out = self.websockets = 0
        self.responses: list[Durations] = [Durations() for _ in CLASSES]
        self.lag: Durations = Durations()
        self.ended: bool = False

    def add(self, other: RequestFigures) -> None:
        """Count all that *other* has counted, too."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in zip(self._durations, other._durations, strict=True):
            mine.add(theirs)

    def end(self) -> None:
        """Count what is open as cut off: the worker waits for nothing any more, or is gone."""
        self.cut += self.open + self.open_websockets
        self.open = self.open_websockets = self.busy = 0
        self.ended = True

    def pack_requests(self) -> list[int]:
        """Return the numbers of a report, up to those about the event loop."""
        numbers = [getattr(self, name) for name in _COUNTERS]
        for each in self.responses:
            numbers += each.pack()
        return numbers

    def pack(self) -> list[int]:
        """Return the numbers of a report."""
        return self.pack_requests() + self.lag.pack()

    @classmethod
    def unpack(cls, numbers: Sequence[int], before: RequestFigures) -> RequestFigures:
        """Read a report.

        Args:
            numbers: What the worker has sent.
            before: Its report before this one.

        Raises:
            ProtocolError: If it is no report, or fewer were counted than before.
        """
        if len(numbers) != NUMBERS:
            raise ProtocolError(f"its figures have {len(numbers)} numbers")
        # All but the first counters only grow, and so do the durations, which come last.
        first = len(_COUNTERS) - len(_GROWING)
        if any(map(int.__lt__, numbers[first:], before.pack()[first:])):
            raise ProtocolError("its figures are less than before")
        figures, rest = cls(), iter(numbers)
        for name in _COUNTERS:
            setattr(figures, name, next(rest))
        for each in figures._durations:
            each.total, *each.counts = islice(rest, 1 + BUCKETS)
        return figures

    @property
    def _durations(self) -> tuple[Durations, ...]:
        return (*self.responses, self.lag)


def class_of(status: object) -> int:
    """Return which of :data:`CLASSES` a status belongs to."""
    return status // 100 if isinstance(status, int) and 100 <= status < 600 else 0  # noqa: PLR2004 - of HTTP


# How many numbers a report has.
NUMBERS = len(_COUNTERS) + (len(CLASSES) + 1) * (1 + BUCKETS)
