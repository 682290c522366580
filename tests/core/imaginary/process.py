"""A worker of an imaginary pool."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from tests.core.pool_core import CancelMode, StopStage

__all__ = ["Process"]


@dataclass
class Process:
    """A worker: what the shell knows of it, and what it does by itself."""

    slot: int
    born_at: float
    ready: bool = False
    faulty: bool = False
    told: StopStage = StopStage.NO
    told_at: float = 0.0
    excused: bool = False  # its end is the pool's own wish
    abandoned: bool = False
    # In hand, in their order, each with its place; those that nobody wants any more.
    hand: dict[int, int] = field(default_factory=dict)
    unwanted: dict[int, CancelMode] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)  # those whose time to wait is over
    width: int = 1
    asked_to_end: dict[int, float] = field(default_factory=dict)  # each until when
    breaks_pool: set[int] = field(default_factory=set)
    hung: bool = False
    silent: int | None = None
    dies_at: float | None = None  # being hung without a job
    writes: bool = False  # where it is
    leaving: bool = False
    oversized: bool = False
    shot: bool = False  # somebody wants it killed
    early: bool = False  # it was being started when the last roll began
    tied: bool = False  # another start failed when it began
    rolled: bool = False  # it was there then, and was to stay
    leave_by: float = math.inf
    sent: int = 0
    most: float = math.inf  # as many jobs as it may get, but for those that come back
    given: int = 0
    stalled: set[int] = field(default_factory=set)
    place: int | None = None
    line: bool = False  # since its last answer, somebody waited for this one
    loading: int | None = None  # in hand, but its arguments are still being copied
    doomed: dict[int, float] = field(default_factory=dict)  # of which, and since when
    # The worker's own view.
    running: list[int] = field(default_factory=list)
    taken: int = 0
    withdrawn: set[int] = field(default_factory=set)
    questions: deque[tuple[int, ...]] = field(default_factory=deque)
    answers: deque[list[int]] = field(default_factory=deque)
    # Asked, and not heard of: the shell's view again.
    pending: deque[tuple[int, ...]] = field(default_factory=deque)
    owing: set[int] = field(
        default_factory=set
    )  # of them, those that would run elsewhere

    @property
    def spent(self) -> bool:
        return self.given >= self.most

    @property
    def state(self) -> str:
        if not self.ready:
            return "starting"
        return "busy" if self.hand else "idle"

    @property
    def owes(self) -> bool:
        """Whether a job may come back that is older than those that wait."""
        return not self.owing.isdisjoint(self.hand.values())

    def begin(self) -> bool:
        """Take the next jobs, if there are any, and tell whether one is running."""
        jobs = {place: job for job, place in self.hand.items()}
        while len(self.running) < self.width and self.taken < self.sent:
            self.taken += 1
            if self.taken not in self.withdrawn and self.taken in jobs:
                self.running.append(jobs[self.taken])
        return bool(self.running)

    def first(self) -> list[int]:
        """Return the jobs that the pool takes for running."""
        return list(self.hand)[: self.width]

    def answer(self) -> None:
        """Decide what was asked, as the worker's other thread does."""
        won = [place for place in self.questions.popleft() if place > self.taken]
        self.withdrawn.update(won)
        self.answers.append(won)
