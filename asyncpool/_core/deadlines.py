"""Points in time, each with the job whose time is over then.

The heap forgets lazily.  An entry that was discarded or changed stays in the heap until
its time comes, or until such entries are the greater part of it.  So nothing has to be
searched.  Most often a new deadline is later than all others, since all jobs have the
same limit.  To add such a deadline costs the same however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from asyncpool.errors import ProtocolError

# So many things a second: a bucket of tokens, which is full at first.
#
# It is kept as a time: from when on there is one token.  Whoever asks for each of 100 000 jobs a
# second then compares two numbers.


class RateLimit:
    """A bucket of tokens.  The times come from outside, and never go backwards.

    Args:
        rate: How many things may pass in a second; ``None`` for all.
        span: The bucket holds the tokens of so many seconds, so ``rate * span`` things may pass
            at once after a pause.  It must hold one at least: ``rate * span >= 1``.

    Attributes:
        next_at: Before this time nothing passes.
        refused: How many things did not pass; whoever compares *next_at* himself counts too.
    """

    def __init__(self, rate: float | None, span: float = 1.0) -> None:
        self._interval = 0.0 if rate is None else 1 / rate
        # How far *next_at* lies in the past when the bucket is full: the span, but for the token
        # that is there at that time.  A little more, since a sum of many intervals is not exact.
        self._ahead = span - (1 - 1e-6) * self._interval
        self.next_at = -math.inf
        self.refused = 0

    def take(self, now: float) -> bool:
        """Let one thing pass at *now*, or count it as refused."""
        if now < self.next_at:
            self.refused += 1
            return False
        self.spend(now, 1.0)
        return True

    def spend(self, now: float, tokens: float) -> None:
        """Take so many tokens, also if there are not as many."""
        self.next_at = max(self.next_at, now - self._ahead) + tokens * self._interval


# How many things have happened lately, at a time that comes from outside.
#
# What happened *t* seconds ago counts ``exp(-t / span)``.  So at a constant rate the count is as many
# as happen in a span, and a few spans after the last one it is nothing.


class RecentCount:
    """A count that fades.

    Args:
        span: Seconds in which what has happened fades to 1/e.
    """

    def __init__(self, span: float) -> None:
        self._span = span
        self._count: float = 0.0
        self._new: int = 0  # since the last look
        self._at: float = -math.inf  # when that was

    def add(self) -> None:
        """Count one more."""
        self._new += 1

    def at(self, now: float) -> int:
        """Return the count; a time before that of the last look is taken for that one."""
        now = max(self._at, now)
        self._count *= math.exp((self._at - now) / self._span)
        self._count += self._new
        self._new, self._at = 0, now
        return int(self._count)


# For fewer entries it does not pay to clean up.
_FEW = 64


def earliest(*times: float | None) -> float | None:
    """Return the earliest of *times*; ``None`` stands for never."""
    return min((when for when in times if when is not None), default=None)


W = TypeVar("W", bound=Hashable)


class Deadlines(Generic[W]):
    """At most one point in time for each job, or what else can be ordered."""

    def __init__(self) -> None:
        self._when: dict[W, float] = {}
        self._heap: list[tuple[float, W]] = []

    def __len__(self) -> int:
        """How many jobs have a deadline."""
        return len(self._when)

    def set(self, job: W, when: float | None) -> None:
        """Set the deadline of *job* to *when*, whatever it was before; ``None`` removes it."""
        if when is None:
            self.discard(job)
            return
        self._when[job] = when
        heap = self._heap
        if len(heap) > _FEW + 2 * len(self._when):
            heap[:] = [(time, job) for job, time in self._when.items()]
            heapify(heap)
        else:
            heappush(heap, (when, job))

    def is_set(self, job: W, by: float) -> bool:
        """Tell whether *job* already has a deadline at *by* or earlier."""
        return self._when.get(job, math.inf) <= by

    def discard(self, job: W) -> None:
        """Remove the deadline of *job*."""
        self._when.pop(job, None)
        if not self._when:
            self._heap.clear()  # which may refer to what is the user's

    def next(self) -> float | None:
        """When the next deadline is; ``None`` if there is none."""
        heap, when = self._heap, self._when
        while heap:
            time, job = heap[0]
            if when.get(job) == time:
                return time
            heappop(heap)
        return None

    def pop(self, now: float) -> list[W]:
        """Return the jobs whose time is over, in the order of their deadlines, and forget them."""
        due: list[W] = []
        while (time := self.next()) is not None and time <= now:
            job = heappop(self._heap)[1]
            del self._when[job]
            due.append(job)
        return due


# Decide which workers are silent: those that have not answered a ping for too long.
#
# There is one tick for all workers, four in each timeout.  At each tick, a worker that
# has no ping to answer gets one.  A worker is silent if it has not answered a ping that
# is older than the timeout.  So the pool notices a silent worker after one timeout, or
# half a timeout later at the most.
#
# A late tick shows that this process did not run, or did not read, for a while: somebody
# stopped it, the machine was suspended, or its loop was blocked.  The workers may have
# been stopped as well, and the pool may not have read yet what they have sent.  So the
# time of such a gap counts against no worker.

# A timer of a healthy loop is never this many seconds late.
LATE = 0.5

_TICKS = 4


class PingLedger(Generic[W]):
    """The pings that are not answered yet.

    Args:
        timeout: How many seconds a worker may be silent.
        now: The time.

    Attributes:
        due: When the next tick is.
    """

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._asked: dict[W, float] = {}
        self.due = now + timeout / _TICKS

    def answered(self, worker: W) -> None:
        """Record that *worker* has answered its ping.

        Raises:
            ProtocolError: If nobody has asked.
        """
        if self._asked.pop(worker, None) is None:
            raise ProtocolError("it answered a ping that nobody has sent")

    def heard(self, worker: W, at: float) -> None:
        """Record that *worker* has sent something else: its answer may come after that."""
        if worker in self._asked:
            self._asked[worker] = max(self._asked[worker], at)

    def suspects(self, now: float) -> list[W]:
        """Return the workers that are silent by *now*, if the pool has read all they have sent."""
        asked_by = now - self._gap(now) - self._timeout
        return [worker for worker, asked in self._asked.items() if asked <= asked_by]

    def tick(self, up: Collection[W], now: float) -> tuple[list[W], list[W]]:
        """Go on to the next tick.

        Args:
            up: The workers that take part; all others are forgotten.
            now: The time.

        Returns:
            The silent workers, which are forgotten too, and the workers that get a
            ping.
        """
        silent, gap = self.suspects(now), self._gap(now)
        self._asked = {
            worker: asked + gap
            for worker, asked in self._asked.items()
            if worker in up and worker not in silent
        }
        asked = [w for w in up if w not in self._asked and w not in silent]
        self._asked.update(dict.fromkeys(asked, now))
        self.due = now + self._timeout / _TICKS
        return [worker for worker in silent if worker in up], asked

    def _gap(self, now: float) -> float:
        late = now - self.due
        return late if late > LATE else 0.0
