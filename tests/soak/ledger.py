"""What is done to a pool besides jobs that are known one by one, and whether it adds up."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from asyncpool import PoolStats
from tests.soak.oracle import Begun, FailureError, Record

__all__ = ["Item", "Ledger"]


@dataclass(slots=True)
class Item:
    """One item of a map.

    Attributes:
        key: Its number in the book.
        ends: What it may end with by itself.
        max_attempts: How often it may be started.
        told: What was broadcast before the map began.
        drawn: Whether the map has drawn it.
        attempt: The attempt that its result is of, if it has one that tells.
        end: What it has ended with, if that was taken.
    """

    key: int
    ends: frozenset[str]
    max_attempts: int
    told: int
    drawn: bool = False
    attempt: int | None = None
    end: str = ""

    def check(self, begun: Sequence[Begun]) -> None:
        """Compare how often it has begun with what may be."""
        attempts = [one.attempt for one in begun]
        good = attempts == sorted(set(attempts))
        good = good and (self.drawn or not attempts)
        good = good and all(1 <= n <= self.max_attempts for n in attempts)
        if self.attempt is not None:
            good = good and attempts[-1:] == [self.attempt]
        if self.end in {"value", "raised"}:
            good = good and bool(attempts)
        if not good:
            raise FailureError(f"its attempts were {attempts}: {self}")
        if any(one.told < self.told for one in begun):
            raise FailureError(f"a broadcast was not run before it: {begun} {self}")


class _Visit(NamedTuple):
    """Jobs with one key: who ran them, and how many events there were by then."""

    since: int
    until: int
    pids: set[int]


@dataclass(slots=True)
class Ledger:
    """What is known.

    Attributes:
        items: The items of maps.
        most: How many jobs maps and broadcasts may have been, and
        least: how many they must have been, and
        cancelled: how many of them may have been cancelled.
    """

    items: list[Item] = field(default_factory=list)
    most: int = 0
    least: int = 0
    cancelled: int = 0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _visits: dict[object, list[_Visit]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def next_key(self) -> int:
        """Return a number in the book that nobody has."""
        return next(self._numbers)

    def note_jobs(self, *, least: int, most: int, cancelled: int) -> None:
        """Take note of how many jobs a map or a broadcast was, as far as that is known."""
        self.least += least
        self.most += most
        self.cancelled += cancelled

    def visit(
        self, key: object, *, since: int, until: int | None, pids: set[int]
    ) -> None:
        """Take note of who ran jobs with a key between two events."""
        if key is not None and until is not None and pids:
            self._visits[key].append(_Visit(since, until, pids))

    def check(
        self,
        stats: PoolStats,
        book: Mapping[int, Sequence[Begun]],
        records: Sequence[Record],
    ) -> int:
        """Check all of it; return how many pairs of jobs had to have the same worker."""
        for item in self.items:
            item.check(book.get(item.key, []))
        others = stats.submitted - len(records)
        cancelled = sum(record.end == "cancelled" for record in records)
        of_others = stats.cancelled - cancelled
        ended = stats.completed + stats.failed + stats.cancelled
        if not (
            ended == stats.submitted
            and self.least <= others <= self.most
            and 0 <= of_others <= self.cancelled
        ):
            raise FailureError(
                f"{len(records)} jobs, {cancelled} of them cancelled, and {self.least} "
                f"to {self.most} others, {self.cancelled} of them cancelled at the most, "
                f"make {stats}"
            )
        return sum(_compare(key, visits) for key, visits in self._visits.items())


def _compare(key: object, visits: list[_Visit]) -> int:
    """Compare who ran jobs of a key while nothing happened to any worker."""
    pairs = 0
    for one, other in itertools.pairwise(sorted(visits, key=lambda v: v[:2])):
        if one.since == one.until == other.since == other.until:
            pairs += 1
            if len(one.pids | other.pids) > 1:
                raise FailureError(
                    f"no worker came or went, and {key!r} moved: {one} {other}"
                )
    return pairs
