"""Decide which workers are silent: those that have not answered a ping for too long.

There is one tick for all workers, four in each timeout.  At each tick, a worker that
has no ping to answer gets one.  A worker is silent if it has not answered a ping that
is older than the timeout.  So the pool notices a silent worker after one timeout, or
half a timeout later at the most.

A late tick shows that this process did not run, or did not read, for a while: somebody
stopped it, the machine was suspended, or its loop was blocked.  The workers may have
been stopped as well, and the pool may not have read yet what they have sent.  So the
time of such a gap counts against no worker.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from asyncpool.errors import ProtocolError

W = TypeVar("W", bound=Hashable)

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
        asked = self._asked.get(worker)
        if asked is not None:
            self._asked[worker] = max(asked, at)

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
