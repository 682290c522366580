"""What counts as good: one rule for every aspect of every fault, the same for all.

An aspect that a cell did not come to see in its time counts as a hang. An aspect
without a rule is for the reader's information. A cell is good if every rule of its
fault holds. The rules ask for what a caller needs, not for how a pool gets there:
an error may be of any type, a dead worker may take its time within the limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.torture import outcomes
from benchmarks.torture.faults.cancels import STOPPED
from benchmarks.torture.faults.hostile import UNTOUCHED
from benchmarks.torture.faults.maps import AT_REST
from benchmarks.torture.faults.starts import TOLD
from benchmarks.torture.outcomes import ERROR, OK

Value = str | float


@dataclass(frozen=True)
class OneOf:
    """The word must be one of these."""

    words: tuple[str, ...]

    def holds(self, value: Value) -> bool:
        return value in self.words

    def __str__(self) -> str:
        return " or ".join(self.words)


@dataclass(frozen=True)
class AtMost:
    """The number must not be above the limit."""

    limit: float
    unit: str

    def holds(self, value: Value) -> bool:
        return not isinstance(value, str) and value <= self.limit

    def __str__(self) -> str:
        return f"at most {self.limit:,g} {self.unit}".replace(",", " ")


Rule = OneOf | AtMost

FINE = OneOf((OK,))
CULPRIT = OneOf((ERROR,))
TRAVELLER = {"culprit": CULPRIT, "bystander": FINE, "later": FINE}
CANCELLED = {"job": OneOf((STOPPED,)), "bystander": FINE, "later": FINE}
LIAR = {"culprit": CULPRIT, "bystander": FINE, "queued": FINE, "later": FINE}
ORPHANS = {"alive after 3 s": AtMost(0, "processes")}

RULES: Mapping[str, Mapping[str, Rule]] = {
    "kill-running": {
        "culprit": CULPRIT,
        "bystander": FINE,
        "queued": FINE,
        "later": FINE,
    },
    "kill-idle": {"next": FINE, "later": FINE},
    "kill-storm": {"between": FINE, "later": FINE},
    "flood": {"honest": FINE, "culprit": CULPRIT, "later": FINE},
    "exit-0": {"culprit": CULPRIT, "later": FINE},
    "result-unpicklable": TRAVELLER,
    "argument-unpicklable": TRAVELLER,
    "error-unloadable": TRAVELLER,
    "result-unloadable": TRAVELLER,
    "argument-unloadable": TRAVELLER,
    "keyboard-interrupt": TRAVELLER,
    "sys-exit": TRAVELLER,
    "cancel-python": CANCELLED,
    "cancel-c": CANCELLED,
    "initializer": {"caller": OneOf((TOLD,)), "starts": AtMost(20, "processes")},
    "initializer-mended": {"caller": OneOf((TOLD,)), "mended": FINE},
    "orphans-idle": ORPHANS,
    "orphans-busy": ORPHANS,
    "ctrl-c": {
        "gone": AtMost(5, "s"),
        "orphans": AtMost(0, "processes"),
        "tracebacks": AtMost(0, "on stderr"),
    },
    "garbage": LIAR,
    "flood-of-bytes": LIAR,
    "evil-result": {"service": OneOf((UNTOUCHED,)), "later": FINE},
    "map": {
        "first": FINE,
        "drawn": AtMost(20_000, "items"),
        "input": OneOf((AT_REST,)),
    },
}

WORST_FIRST = (
    outcomes.DEAD,
    outcomes.WRONG,
    outcomes.FOREIGN,
    outcomes.HANG,
)


def broken(fault: str, seen: Mapping[str, Value]) -> dict[str, Value]:
    """Give the aspects that break a rule, the worst first."""
    bad = {
        aspect: seen[aspect]
        for aspect, rule in RULES[fault].items()
        if not rule.holds(seen[aspect])
    }
    return dict(sorted(bad.items(), key=lambda item: severity(item[1])))


def severity(value: Value) -> int:
    return (*WORST_FIRST, value).index(value)
