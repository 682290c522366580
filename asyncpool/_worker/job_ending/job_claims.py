"""Which jobs may begin: the one thing on which the two threads of a worker must agree.

The n-th job that a worker receives has the sequence number n.  The main thread claims one
number after the other.  Meanwhile the pool may revoke numbers, through the control thread.
A lock gives each number to exactly one of the two threads.  It costs 60 ns, while a job
costs some microseconds.
"""

from __future__ import annotations

from _thread import allocate_lock  # threading would do, see _worker/__init__.py
from collections.abc import Iterable


class JobClaims:
    """The sequence numbers that were claimed, and those that were revoked before.

    Attributes:
        taken: The last number that was claimed.
        closed: Whether no further number will be claimed.
    """

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self.taken = 0
        self.closed = False
        self._revoked: set[int] = set()

    def claim(self) -> bool:
        """Claim the next number, and tell whether its job may begin."""
        with self._lock:
            self.taken += 1
            if self.taken not in self._revoked:
                return True
            self._revoked.remove(self.taken)
            return False

    def revoke(self, sequences: Iterable[int]) -> list[int]:
        """Revoke jobs that have not begun; return those of *sequences* that never will."""
        with self._lock:
            won = [sequence for sequence in sequences if sequence > self.taken]
            self._revoked.update(won)
        return won
