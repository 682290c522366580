"""What was done, what came of it, and what happened last."""

from __future__ import annotations

import time
from collections import Counter, deque

__all__ = ["Tally"]

# How much of the past is told when something fails.
_LAST = 120

# What a whole minute has at the least, so that a soak which tests nothing is found out.
# On two cores at rest it has some ten times as much.
_FLOORS = {
    ("value",): 300,
    ("cancelled",): 20,
    ("raised",): 3,
    ("crash",): 3,
    ("hung", "timeout", "deadline"): 5,
    ("closed pools",): 4,
    ("recovered",): 1,
    ("Ready",): 20,
    ("Retiring",): 5,
    ("Crashed",): 10,
    ("async nap", "async tasks", "async raise", "async die", "async wait"): 20,
    ("crashed beside others",): 2,
    ("stream complete",): 5,
    ("stream broke",): 5,
    ("stream left: close", "stream left: break", "stream left: cancel"): 8,
    ("item of a map",): 400,
    ("map: complete",): 2,
    ("map: close", "map: break", "map: cancel"): 2,
    ("broadcast",): 4,
    ("broadcast failed",): 2,
    ("beats",): 15,
    ("leases gone",): 4,
}


class Tally:
    """Counts, and a diary.

    Attributes:
        ends: How often each kind of job ended with what.
        deeds: How often each thing was done to a pool, and events of each type.
        setups: The pools of this round.
    """

    def __init__(self) -> None:
        self.ends: Counter[tuple[str, str]] = Counter()
        self.deeds: Counter[str] = Counter()
        self.setups: list[str] = []
        self._diary: deque[str] = deque(maxlen=_LAST)
        self._began = time.monotonic()

    def note(self, where: str, what: object) -> None:
        """Write into the diary."""
        self._diary.append(
            f"{time.monotonic() - self._began:9.3f}  {where}  {what!s:.300}"
        )

    def deed(self, where: str, what: str, more: object = "") -> None:
        """Count what is done, and write it down."""
        self.deeds[what] += 1
        self.note(where, f"{what} {more}")

    def minutes(self) -> float:
        """Return for how long it has been kept."""
        return (time.monotonic() - self._began) / 60

    def diary(self) -> str:
        """Return the last lines."""
        return "\n".join(self._diary)

    def missing(self) -> list[str]:
        """Say what did not happen often enough for a minute."""
        by_end: Counter[str] = Counter(self.deeds)
        for (kind, end), times in self.ends.items():
            by_end[end] += times
            by_end[kind] += times
        return [
            f"{' or '.join(ends)}: {found} times, and {floor} is the least"
            for ends, floor in _FLOORS.items()
            if (found := sum(by_end[end] for end in ends)) < floor
        ]

    def table(self) -> str:
        """Return all counts."""
        lines = ["", f"{'jobs':<18}{'all':>7}  ended with"]
        for kind in sorted({kind for kind, _ in self.ends}):
            mine = {end: n for (other, end), n in self.ends.items() if other == kind}
            words = ", ".join(f"{end} {n}" for end, n in sorted(mine.items()))
            lines.append(f"{kind:<18}{sum(mine.values()):>7}  {words}")
        lines.append("")
        deeds = [f"{what} {n}" for what, n in sorted(self.deeds.items())]
        lines += [", ".join(deeds[i : i + 6]) for i in range(0, len(deeds), 6)]
        return "\n".join(lines)
