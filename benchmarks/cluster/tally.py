"""What became of requests, and how they are counted: decisions without any I/O."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.base import quantile


class Outcome(StrEnum):
    """What became of one attempt to get an answer."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """No connection: it was refused, or reset before anything was sent."""
    UNANSWERED = "unanswered"
    """The request was sent, and the connection ended before a byte of the answer."""
    CUT = "cut"
    """The connection ended in the middle of the answer."""
    WRONG = "wrong"
    """Something came that is not the application's answer, such as a status 503."""
    LATE = "late"
    """No answer within the time that a client waits."""


RETRIED = frozenset({Outcome.REFUSED, Outcome.UNANSWERED})
"""What a careful client tries once more, since nothing has come back yet."""


class Whose(StrEnum):
    """Where a failed request was when workers were being killed."""

    BEGUN = "begun in a killed worker"
    CONNECTED = "sent to a killed worker"
    """On a connection in which that worker had answered before."""
    NEW = "on a new connection"
    """Nobody had begun it; no one can tell from outside who had accepted it."""
    OTHER = "in nobody that was killed"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, with its times in seconds of one clock.

    *due* is when it was to be sent: waiting for the answer before it is not forgiven.
    *worker* is the process that had answered in this connection before, or None in a new
    one.  *retried* is what became of the second attempt, if there was one.
    """

    path: str
    due: float
    ended: float
    outcome: Outcome
    worker: int | None = None
    retried: Outcome | None = None

    @property
    def latency(self) -> float:
        return self.ended - self.due

    @property
    def is_answered(self) -> bool:
        return self.outcome is Outcome.ANSWERED

    @property
    def is_answered_in_the_end(self) -> bool:
        return Outcome.ANSWERED in {self.outcome, self.retried}


def figures_of(requests: Sequence[Request]) -> dict[str, float]:
    """Count *requests*; refused connections are counted apart.

    ``failed`` and ``refused`` are of first attempts; ``lost`` is what has no answer after
    one retry either.  The latencies are in ms, of what was answered at the first attempt.
    """
    latencies = [request.latency * 1e3 for request in requests if request.is_answered]
    refused = sum(request.outcome is Outcome.REFUSED for request in requests)
    counts: dict[str, float] = {
        "requests": len(requests),
        "failed": len(requests) - len(latencies) - refused,
        "refused": refused,
        "lost": sum(not request.is_answered_in_the_end for request in requests),
    }
    if not latencies:
        return counts
    longest = {"max_ms": max(latencies), "p99_ms": quantile(latencies, 0.99)}
    return {**counts, **longest}


def kinds_of(requests: Iterable[Request]) -> str:
    """Say how requests failed: ``"3 unanswered, 1 cut"``; empty if none has."""
    bad = [request.outcome for request in requests if not request.is_answered]
    return ", ".join(f"{bad.count(kind)} {kind}" for kind in Outcome if kind in bad)


def whose(
    request: Request, killed: Collection[int], begun: Collection[tuple[int, str]]
) -> Whose:
    """Tell where a failed *request* was; *begun* is who had begun which path."""
    if any((pid, request.path) in begun for pid in killed):
        return Whose.BEGUN
    if request.worker is None:
        return Whose.NEW
    return Whose.CONNECTED if request.worker in killed else Whose.OTHER


def timeline(
    requests: Iterable[Request], since: float, width: float
) -> list[list[float]]:
    """Condense *requests* to steps of *width* seconds, by when they were due.

    Returns:
        For each step with any: its time in seconds after *since*, the median and the
        longest latency in ms (0 if none was answered), how many failed or were refused.
    """
    steps: dict[int, list[Request]] = {}
    for request in requests:
        steps.setdefault(int((request.due - since) // width), []).append(request)
    lines = []
    for number, step in sorted(steps.items()):
        found = [r.latency * 1e3 for r in step if r.is_answered] or [0.0]
        line = (number * width, quantile(found, 0.5), max(found))
        lines.append([*(round(value, 2) for value in line), len(step) - answered(step)])
    return lines


def answered(requests: Iterable[Request]) -> int:
    return sum(request.is_answered for request in requests)
