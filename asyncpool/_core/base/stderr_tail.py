"""What the pool keeps of a worker's stderr for the report of its death.

It keeps the last lines.  Since Python 3.14 ``faulthandler`` prints the C stack after
the Python stacks, and the C stack alone may have as many lines.  But the error itself
is the first line of all, and what the program itself said stands above it.  So the pool
also keeps the first lines from a fatal error of the interpreter on, and some before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from asyncpool._core.base.text import printable

# The first words of a fatal error of the interpreter.
FATAL = b"Fatal Python error"

_LAST = 40
# What the program said last, before the error.
_BEFORE = 10
# Room for that, the error, the stack of a worker's control thread, and the beginning of
# the job's.
_FIRST = _BEFORE + 25
# In characters; each has four bytes at the most.
_WIDTH = 500


class StderrTail:
    """The last lines of a stream, and those around the beginning of a fatal error."""

    def __init__(self) -> None:
        self._last: deque[bytes] = deque(maxlen=_LAST)
        self._first: list[bytes] = []
        self._since = 0  # how many lines have come, from the first one of those on

    def extend(self, lines: Iterable[bytes]) -> None:
        """Add more *lines*."""
        for line in lines:
            kept = line[: 4 * _WIDTH]
            is_fatal = kept.startswith(FATAL)
            if is_fatal:
                self._first = list(self._last)[-_BEFORE:]
                self._since = len(self._first)
            self._last.append(kept)
            if not (is_fatal or self._since):
                continue
            self._since += 1
            if len(self._first) < _FIRST:
                self._first.append(kept)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines that are kept, oldest first."""
        before_last = max(0, self._since - _LAST)
        found = [*self._first[:before_last], *self._last]
        left_out = before_last - len(self._first)
        if left_out > 0:
            found.insert(len(self._first), b"(%d lines are left out here)" % left_out)
        return tuple(printable(text(line)[:_WIDTH]) for line in found)


def text(line: bytes) -> str:
    """Return a line without its end, whatever bytes it has."""
    return line.decode(errors="replace").rstrip("\r")
