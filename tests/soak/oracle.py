"""Tell what a job has ended with, whether that may be, and whether all adds up."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from asyncpool import Job, PoolStats
from asyncpool._core.options import MAX_FREE_RETURNS
from asyncpool.errors import (
    JobNotPicklableError,
    JobRaisedError,
    JobTimeoutError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
    WorkerHungError,
    WorkerOutOfMemoryError,
)
from tests.soak.plans import Plan
from tests.soak.work import OwnError

__all__ = [
    "Begun",
    "FailureError",
    "Item",
    "Ledger",
    "Record",
    "check_attempts",
    "judge",
    "read_book",
]

_CRASHES: dict[type[WorkerCrashedError], frozenset[str]] = {
    WorkerCrashedError: frozenset(("crash", "protocol")),
    WorkerHungError: frozenset(("hung",)),
    WorkerOutOfMemoryError: frozenset(("out of memory",)),
}


class FailureError(AssertionError):
    """Something is wrong with the pool, or with the soak."""


class Begun(NamedTuple):
    """What a job has signed with.

    Attributes:
        attempt: Which attempt it was.
        pid: The worker.
        told: What was broadcast there at last.
    """

    attempt: int
    pid: int
    told: int


@dataclass(slots=True)
class Record:
    """One job that was submitted.

    Attributes:
        plan: What it was to be.
        key: Its number in the book.
        job: The pool's side of it.
        heard: Tells how many events the pool has had.
        since: How many when it was submitted, at the most.
        until: How many when it was done.
        told: What was broadcast before it was submitted.
        lease: What it holds in the outside system.
        forsaken: Whether it may have been cancelled: by who has left its stream, or since
            its lease was gone.
        cancelled: Whether it was cancelled in time.
        unsent_after: The attempt that it had come to when it was cancelled while it was
            with no worker; there may be none after that.
        settled: How often its callbacks were called.
        end: What it has ended with.
    """

    plan: Plan
    key: int
    job: Job[Any]
    heard: Callable[[], int]
    since: int
    told: int
    lease: Any = None
    until: int | None = None
    forsaken: bool = False
    cancelled: bool = False
    unsent_after: int | None = None
    settled: int = 0
    end: str = ""

    def __post_init__(self) -> None:
        self.job.add_done_callback(self._on_done)

    def _on_done(self, _: asyncio.Future[Any]) -> None:
        self.settled += 1
        self.until = self.heard()

    def demand(self, fact: object, what: str) -> None:
        """Fail unless *fact* holds."""
        if not fact:
            raise FailureError(f"{what}: {self}")

    def cancel(self) -> bool:
        """Cancel the job, and keep in mind how far it was."""
        sent, attempt = self.job.worker_pid is not None, self.job.attempt
        queued = self.job.state == "queued"
        if not self.job.cancel():
            return False
        self.cancelled = True
        if queued and not sent:
            self.unsent_after = attempt
        return True

    def __str__(self) -> str:
        outcome = "open"
        if self.job.cancelled():
            outcome = "cancelled"
        elif self.job.done():
            outcome = repr(self.job.exception() or "value")[:2000]
        return (
            f"key {self.key}, {self.plan.kind}{self.plan.args!r:.200} "
            f"{self.plan.options}, may end with {sorted(self.plan.ends)}: "
            f"{self.job!r} ended with {self.end or outcome}: {outcome}"
        )


def judge(record: Record, ambient: frozenset[str]) -> None:
    """Check what a job that is done has ended with, and note it."""
    job, plan = record.job, record.plan
    record.demand(record.settled == 1, f"settled {record.settled} times")
    if job.cancelled():
        record.end = "cancelled"
        sought = record.cancelled or record.forsaken
        record.demand(sought, "nobody has cancelled it")
        return
    record.demand(not record.cancelled, "it was cancelled")
    error = job.exception()
    if error is None:
        record.end = "value"
        # An async generator has no result.
        signature, *rest = job.result() or ((record.key, job.attempt), None)
        same = signature == (record.key, job.attempt)
        record.demand(same, f"got the result of {signature}")
        record.demand(plan.good(tuple(rest)), "the value is wrong")
    else:
        record.end = _name(record, error)
    record.demand(record.end in plan.ends | ambient, "it must not end like this")


def _name(record: Record, error: BaseException) -> str:
    match error:
        case OwnError():
            record.demand(error.key == record.key, "it is another job's")
            record.demand(error.__cause__ is not None, "it has no traceback")
            return "raised"
        case JobTimeoutError():
            return _name_timeout(record, error)
        case WorkerCrashedError():
            return _name_crash(record, error)
        case PoolClosedError():
            record.demand(error.job_id == record.job.id, "it is another job's")
            return "closed"
        case PoolBrokenError():
            record.demand(error.crashes and error.reason, "it does not say why")
            return "broken"
        case JobRaisedError():
            record.demand(error.job_id == record.job.id, "it is another job's")
            return f"raised {type(error.exception).__name__}"
        case JobNotPicklableError():
            record.demand(error.job_id == record.job.id, "it is another job's")
            record.demand(error.direction == "result", "it is not the result")
            return "not picklable"
        case _:
            return repr(error)


def _name_timeout(record: Record, error: JobTimeoutError) -> str:
    plan = record.plan
    record.demand(error.job_id == record.job.id, "it is another job's")
    if error.limit != "deadline":
        same = error.seconds == plan.options.get(error.limit)
        record.demand(same, "it is not its limit")
    if error.limit == "queue_timeout":
        record.demand(error.attempt == 0, "it waited in an attempt")
    elif error.limit == "timeout":
        good = 1 <= error.attempt <= plan.max_attempts
        record.demand(good, "there is no such attempt")
    return error.limit


def _name_crash(record: Record, error: WorkerCrashedError) -> str:
    last, plan = error.crashes[-1], record.plan
    most = plan.max_attempts + MAX_FREE_RETURNS
    record.demand(error.job_id == record.job.id, "it is another job's")
    record.demand(error.kind == last.kind, "the kind is not the last one's")
    record.demand(error.kind in _CRASHES[type(error)], "the type is wrong")
    record.demand(len(error.crashes) <= most, "too many crashes")
    record.demand(error.attempt <= plan.max_attempts, "there is no such attempt")
    if error.delivery == "started":
        of_it = [c.attempt for c in error.crashes if c.job_id == record.job.id]
        record.demand(of_it, "none has died of this job")
        record.demand(of_it[-1:] == [error.attempt], "it is another attempt")
    return error.kind


def read_book(path: Path) -> dict[int, list[Begun]]:
    """Return the attempts of each key, in the order in which they have begun."""
    found: dict[int, list[Begun]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            key, *begun = map(int, line.split())
            found.setdefault(key, []).append(Begun(*begun))
    return found


def check_attempts(record: Record, begun: list[Begun]) -> None:
    """Compare how often a job has begun with what may be, when all is over."""
    plan, job = record.plan, record.job
    attempts = [one.attempt for one in begun]
    untold = [one for one in begun if one.told < record.told]
    record.demand(not untold, f"{untold} have not run broadcast {record.told}")
    record.demand(
        attempts == sorted(set(attempts)),
        f"its attempts were {attempts}, in this order",
    )
    if attempts:
        most = min(plan.max_attempts, job.attempt)
        record.demand(attempts[-1] <= most, f"its attempts were {attempts}")
        record.demand(attempts[0] >= 1, f"its attempts were {attempts}")
    if record.end == "value":
        record.demand(attempts[-1:] == [job.attempt], f"its attempts were {attempts}")
    if record.unsent_after is not None:
        late = [n for n in attempts if n > record.unsent_after]
        record.demand(not late, f"attempts {late} began after it was cancelled")
    error = None if job.cancelled() else job.exception()
    if isinstance(error, PoolClosedError):
        # What was sent may have begun since.
        unbegun = error.delivery == "never sent"
    else:
        unbegun = isinstance(error, WorkerCrashedError) and error.delivery != "started"
    record.demand(not (unbegun and attempts), f"its attempts were {attempts}")


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
