"""The items of a map that follow one another, and their outcomes.

Also for how long a map goes on before other code has the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from asyncpool._core.policies.job_options import JobOptions
from asyncpool._runtime.job.job import Job


class Task(NamedTuple):
    """What a map does with each item.

    Attributes:
        function: What is called.
        star: Whether an item is a tuple of arguments.
        options: The options of each call.
        submit: Submits a job.
    """

    function: Callable[..., Any]
    star: bool
    options: JobOptions
    submit: Callable[..., Job[Any]]

    def arguments(self, item: Any) -> tuple[Any, ...]:
        """Return the arguments of the call for *item*.

        Raises:
            TypeError: If it should be several, and is not iterable; or what its iterator raises.
        """
        return tuple(item) if self.star else (item,)


class Batch:
    """Items that follow one another, and their outcomes.

    Attributes:
        first: The index of the first item.
        items: The items.
        outcomes: A result or a :class:`Failure` for each item that has one.
        open: How many items have none.
        failed: Whether any outcome is a failure.
    """

    __slots__ = ("failed", "first", "items", "open", "outcomes")

    def __init__(self, first: int, items: list[Any]) -> None:
        self.first = first
        self.items = items
        self.outcomes: list[Any] = []
        self.open = len(items)
        self.failed = False

    def settle(self, offset: int, outcomes: list[Any], *, failed: bool) -> None:
        """Store the outcomes of the items from *offset* on."""
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
    """Items of a batch that travel as one job.

    Attributes:
        batch: The batch.
        offset: The index of the first item in the batch.
        count: How many items there are.
        attempts: How many attempts there were, if it is a single item.
        alone: Whether it is a single item that is to be a job, and no chunk.
    """

    batch: Batch
    offset: int
    count: int
    attempts: int = 0
    alone: bool = False

    @property
    def items(self) -> list[Any]:
        """The items."""
        return self.batch.items[self.offset : self.offset + self.count]


# Seconds.  To unpickle all that one round of the stall watch brings may take 40 ms, and to
# pickle all items that may be drawn 15 ms.
TURN = 0.001


class TimeSlice:
    """The part of one turn of the loop that a map may use, from now on."""

    def __init__(self) -> None:
        self._until = time.monotonic() + TURN

    @property
    def over(self) -> bool:
        """Whether other code should have the loop now."""
        return time.monotonic() > self._until
