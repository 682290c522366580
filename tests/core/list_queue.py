"""A queue made of lists: slow, and simple enough to be believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from tests.core.pool_core import OLDEST_EVERY

__all__ = ["PRIORITIES", "ListQueue"]

# Most jobs have none to speak of.
PRIORITIES = (0, 0, 0, -1, 1, 7)


class ListQueue:
    """What :class:`asyncpool._core.dispatcher.JobQueue` ought to be."""

    def __init__(self, patience: int = OLDEST_EVERY) -> None:
        self.patience = patience
        self.returned: list[int] = []
        self.came: list[int] = []
        self.priorities: dict[int, int] = {}
        # Those who left, in turn, while somebody was the oldest, and who that was.
        self.history: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.returned) + len(self.came)

    def __iter__(self) -> Iterator[int]:
        return iter(self.returned + sorted(self.came, key=self.priorities.__getitem__))

    def add(self, job: int, priority: int) -> None:
        self.came.append(job)
        self.priorities[job] = priority

    def give_back(self, jobs: Iterable[int]) -> None:
        self.returned[:0] = jobs

    def remove(self, job: int) -> None:
        (self.returned if job in self.returned else self.came).remove(job)

    def clear(self) -> None:
        self.returned.clear()
        self.came.clear()

    @property
    def oldest(self) -> int:
        """The first that came, of usual jobs and of others; then the lower number."""
        usual = [job for job in self.came if not self.priorities[job]]
        others = [job for job in self.came if self.priorities[job]]
        return min(usual[:1] + others[:1])

    @property
    def neglected(self) -> bool:
        """Whether the oldest has been passed by so often that it is the next."""
        return len(self.passes(self.oldest)) >= self.patience - 1

    def passes(self, job: int) -> list[tuple[int, int]]:
        """Return what the history has of those who have passed *job* by, as it is the oldest."""
        passes = [turn for turn in self.history if turn[0] != turn[1]]
        return [*takewhile(lambda turn: turn[0] == job, reversed(passes))]

    @property
    def head(self) -> int:
        if not self.returned and self.neglected:
            return self.oldest
        return next(iter(self))

    def would_be_first(self, priority: int) -> bool:
        """Tell whether a job that came now would be the head."""
        if not self:
            return True
        if self.returned or self.neglected:
            return False
        return priority < min(self.priorities[job] for job in self.came)

    def pass_by(self, job: int) -> None:
        """Let a job leave that has just come."""
        if self.came:
            self.history.append((self.oldest, job))

    def note_turn_elsewhere(self, job: int) -> None:
        """Let a job leave another queue which might as well have been this one's turn."""
        if self.came and self.oldest < job:
            self.history.append((self.oldest, job))

    @property
    def precedence(self) -> tuple[int, int, int]:
        """Whose head is next: who came back, was neglected, is more urgent, is older."""
        head = self.head
        if self.returned:
            return 0, 0, head
        return (1, 0, head) if self.neglected else (2, self.priorities[head], head)

    def pop(self) -> int:
        job = self.head
        if job in self.came:
            self.history.append((self.oldest, job))
        self.remove(job)
        return job
