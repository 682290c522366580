"""Whose turn it is: the one thing on which the two threads of a worker must agree.

Jobs come in an order, and the n-th of them is known by its place, n.  The main thread
takes one place after the other; meanwhile the pool may revoke places, through the
control thread.  A lock makes each place go to exactly one of the two (it costs 60 ns,
and a job some microseconds).
"""

from __future__ import annotations

from _thread import allocate_lock  # threading would do, see _worker/__init__.py
from collections.abc import Iterable


class JobClaims:
    """The places that were taken, and those that were revoked before.

    Attributes:
        taken: The last place that was taken.
        closed: Whether no other one will be.
    """

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self.taken = 0
        self.closed = False
        self._revoked: set[int] = set()

    def claim(self) -> bool:
        """Take the next place, and tell whether its job may begin."""
        with self._lock:
            self.taken += 1
            if self.taken not in self._revoked:
                return True
            self._revoked.remove(self.taken)
            return False

    def revoke(self, sequences: Iterable[int]) -> list[int]:
        """Return those of *sequences* whose jobs will now never begin."""
        with self._lock:
            won = [sequence for sequence in sequences if sequence > self.taken]
            self._revoked.update(won)
        return won
