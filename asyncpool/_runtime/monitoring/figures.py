"""What a pool counts while it lives; nothing depends on it."""

from __future__ import annotations

from collections import Counter

from asyncpool._core.figures.durations import Durations
from asyncpool._core.figures.function_figures import FunctionTotals
from asyncpool.enums import CrashKind, JobOutcome
from asyncpool.errors import (
    JobNotPicklableError,
    JobTimeoutError,
    WorkerCrashedError,
)


class PoolFigures:
    """The counters and histograms of one pool.

    Attributes:
        functions: The jobs that have ended, by function.
        refused: Calls that the pool did not take.
        timeouts: Jobs whose time was over.
        retries: Attempts after one that raised.
        takeovers: Attempts after one whose worker has died.
        spawned: Processes that were started.
        starts: How long they took until they were ready.
        crash_kinds: The crashes, by kind.
        exits: The ends of workers, by cause; see ``exit_reasons.py``.
        lost_clients: Clients of a shared pool that were gone, or not heard, with jobs open.
        refused_clients: Clients of a shared pool that did not come in, or were cut off.
        exited_cpu: Seconds of CPU time of the processes that are gone.
    """

    def __init__(self) -> None:
        self.functions = FunctionTotals()
        self.refused = self.timeouts = self.retries = self.takeovers = self.spawned = 0
        self.lost_clients = self.refused_clients = 0
        self.starts = Durations()
        self.crash_kinds: Counter[CrashKind] = Counter()
        self.exits: Counter[str] = Counter()
        self.exited_cpu = 0.0


def outcome_of_error(error: BaseException) -> JobOutcome:
    """Return how a job has ended that its pool has failed with *error*."""
    if isinstance(error, JobTimeoutError):
        return JobOutcome.TIMEOUT
    if isinstance(error, WorkerCrashedError):
        return JobOutcome.CRASHED
    if isinstance(error, JobNotPicklableError):
        return JobOutcome.REFUSED
    return JobOutcome.ABORTED
