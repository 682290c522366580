"""What was seen of a pool or server in the last minute."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from asyncpool._core.history.snapshots import Snapshot, point_between, snapshot_of

# Seconds.
SPAN = 60.0

_MOST_CRASHES = 5
_BARS = "▁▂▃▄▅▆▇█"

# Where a row of jobs has the seconds that it waited, and ran.
_WAIT, _RUN = 5, 6


@dataclass(frozen=True, slots=True)
class Moment:
    """What one line has told.

    Attributes:
        at: When, in Unix time.
        rate: Jobs that ended, or connections that came, a second.
        median: Seconds that half of the jobs took at most, from their submit; ``None`` without
            jobs.
        slowest: Seconds that 99 of 100 took at most.
    """

    at: float
    rate: float
    median: float | None
    slowest: float | None


class LastMinute:
    """Notes line after line.

    Attributes:
        moments: Those of the last minute, oldest first.
        crashes: The last crashes, oldest first, each with when it was.
        cpu: By slot, the percentage of a core that its worker uses now.
    """

    def __init__(self) -> None:
        self.moments: deque[Moment] = deque()
        self.crashes: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_MOST_CRASHES)
        self.cpu: dict[int, float] = {}
        self._before: Snapshot | None = None

    def add(self, line: dict[str, Any]) -> None:
        """Note a line of a watch."""
        now, before = snapshot_of(line["at"], line["status"]), self._before
        self._before = now
        for event in line["events"]:
            if event["type"] == "Crashed":
                self.crashes.append((event["at"], event["crash"]))
        if before is None or now.at <= before.at:
            return
        point = point_between(before, now)
        rate = sum(point[name] for name in now.counts)
        took = sorted(row[_WAIT] + row[_RUN] for row in line["jobs"])
        self.moments.append(
            Moment(now.at, rate, quantile(took, 0.5), quantile(took, 0.99))
        )
        while self.moments and self.moments[0].at < now.at - SPAN:
            self.moments.popleft()
        self.cpu = {slot: 100 * share for slot, share in point["cpu"].items()}


def quantile(ordered: list[float], share: float) -> float | None:
    """Return what a *share* of sorted numbers does not exceed; ``None`` if there are none."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def sparkline(values: list[float | None], width: int) -> str:
    """Return the last *width* values as bars, of which the highest is full; ``None`` is a gap."""
    shown = values[-width:]
    top = max((value for value in shown if value is not None), default=0.0)
    bars = [" " if value is None else _bar(value, top) for value in shown]
    return "".join(bars).rjust(width)


def _bar(value: float, top: float) -> str:
    share = value / top if top > 0 else 0.0
    return _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]
