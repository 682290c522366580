"""What is known of a cell in the end, and how it looks in the table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.torture import outcomes, rules
from benchmarks.torture.rules import Value
from benchmarks.torture.trial import SKIPPED

Verdict = Literal["good", "bad", "not applicable", "not installed"]

UNITS = {
    "starts": "started",
    "alive after 3 s": "alive",
    "gone": "seconds",
    "orphans": "orphans",
    "tracebacks": "tracebacks",
    "drawn": "drawn",
}


@dataclass(frozen=True)
class CellResult:
    """One cell: what was seen, the verdict, and its short text."""

    peer: str
    fault: str
    verdict: Verdict
    text: str
    seen: Mapping[str, Value] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def judge(
    peer: str,
    fault: str,
    seen: Mapping[str, Value],
    notes: Mapping[str, str],
    seconds: float,
) -> CellResult:
    if SKIPPED in seen:
        return CellResult(peer, fault, "not applicable", str(seen[SKIPPED]))
    missing = [aspect for aspect in rules.RULES[fault] if aspect not in seen]
    seen = {**seen, **dict.fromkeys(missing, outcomes.HANG)}
    bad = rules.broken(fault, seen)
    if not bad:
        return CellResult(peer, fault, "good", "ok", seen, notes, seconds)
    aspect, value = next(iter(bad.items()))
    text = short(aspect, value)
    return CellResult(peer, fault, "bad", text, seen, notes, seconds)


def short(aspect: str, value: Value) -> str:
    """Say the worst about a bad cell, in two or three words."""
    if value in (outcomes.DEAD, outcomes.WRONG):
        return str(value)
    if isinstance(value, str):
        return f"{aspect}: {value}"
    unit = UNITS[aspect].removesuffix("s") if value == 1 else UNITS[aspect]
    return f"{value:,g} {unit}".replace(",", " ")
