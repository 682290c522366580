"""Count samples by the stack that they have found, with a bound on the number of stacks."""

from __future__ import annotations

# The function of the job, and the calls inside it, the outermost first.
Stack = tuple[str, tuple[str, ...]]

# What stands in place of the job's function for stacks that were not kept apart, and for those
# that belong to no job.
OTHER = "(other)"
NO_JOB = "(no job)"


class StackCounts:
    """How many samples have found which stack.

    Args:
        most: How many different stacks are counted.  The samples of all others count together,
            as those of ``OTHER``.

    Attributes:
        counts: The numbers, by stack.
        total: The sum of all of them.
    """

    def __init__(self, most: int) -> None:
        self.counts: dict[Stack, int] = {}
        self.total = 0
        self._most = most

    def add(self, stack: Stack, samples: int) -> None:
        """Count *samples* that have found *stack*."""
        counts = self.counts
        if stack not in counts and len(counts) >= self._most:
            stack = (OTHER, ())
        counts[stack] = counts.get(stack, 0) + samples
        self.total += samples

    def take(self) -> dict[Stack, int]:
        """Return the numbers, and begin again with none."""
        counts, self.counts, self.total = self.counts, {}, 0
        return counts
