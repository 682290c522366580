"""The items of a map that follow one another, and what has become of them.

How long a map goes on before others have the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from asyncpool._core.policies.job_limits import JobOptions
from asyncpool._runtime.job.job import Job


class Task(NamedTuple):
    """What is done with each item.

    Attributes:
        function: What is called.
        star: Whether an item is a tuple of its arguments.
        options: What each call is to have.
        submit: Submits a job.
    """

    function: Callable[..., Any]
    star: bool
    options: JobOptions
    submit: Callable[..., Job[Any]]


class Batch:
    """Items that follow one another, and what has become of them.

    Attributes:
        first: The index of the first one.
        items: The items.
        outcomes: A result or a :class:`Failure` for each that has one.
        open: How many have none.
        failed: Whether there is any failure among the outcomes.
    """

    __slots__ = ("failed", "first", "items", "open", "outcomes")

    def __init__(self, first: int, items: list[Any]) -> None:
        self.first = first
        self.items = items
        self.outcomes: list[Any] = []
        self.open = len(items)
        self.failed = False

    def settle(self, offset: int, outcomes: list[Any], *, failed: bool) -> None:
        """Take note of the outcomes of the items from *offset* on."""
        self.open -= len(outcomes)
        self.failed |= failed
        if len(outcomes) == len(self.items):
            self.outcomes = outcomes
            return
        if not self.outcomes:
            self.outcomes = [None] * len(self.items)
        self.outcomes[offset : offset + len(outcomes)] = outcomes


@dataclass(frozen=True, slots=True)
class Part:
    """Items of a batch that are done in one job.

    Attributes:
        batch: The batch.
        offset: The first of them.
        count: How many.
        begun: How many attempts there were at the only one.
    """

    batch: Batch
    offset: int
    count: int
    begun: int = 0


# In seconds.  All that one round of the pool brings may take 40 ms to unpickle, and the
# items for a whole window 15 ms to pickle.
TURN = 0.001


class TimeSlice:
    """What is done in one turn of the loop, from now on."""

    def __init__(self) -> None:
        self._until = time.monotonic() + TURN

    @property
    def over(self) -> bool:
        """Whether others are to have the loop now."""
        return time.monotonic() > self._until
