"""What the pool keeps of a worker's stderr for the report of its death.

It keeps the last lines.  Since Python 3.14 ``faulthandler`` prints the C stack after
the Python stacks, and the C stack alone may have as many lines.  But the error itself
is the first line of all, and what the program itself said stands above it.  Then come
the stacks of all threads; that of the thread that crashed stands anywhere among them.
So the pool also keeps some lines around the error, and some from that stack on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from asyncpool._core.base.text import printable

# The first words of a fatal error of the interpreter.
FATAL = b"Fatal Python error"

# How the stack of the thread that crashed begins.  Its C stack begins like that, too.
_CURRENT = b"Current thread "

_LAST = 40
# What the program said last, before the error.
_BEFORE = 10
# Room for the error, and for the stack of a worker's control thread while it waits.
_ERROR = 16
# Room for the beginning of the stack of the thread that crashed.
_STACK = 20
# In characters; each has four bytes at the most.
_WIDTH = 500


class StderrTail:
    """The last lines of a stream, and the telling ones of a fatal error."""

    def __init__(self) -> None:
        # Each line with its number.
        self._last: deque[tuple[int, bytes]] = deque(maxlen=_LAST)
        self._error: list[tuple[int, bytes]] = []
        self._count = 0
        self._room = 0  # how many of the next lines are of the error
        self._awaits_stack = False

    def extend(self, lines: Iterable[bytes]) -> None:
        """Add more *lines*."""
        for line in lines:
            if line.startswith(FATAL):
                self._error = list(self._last)[-_BEFORE:]
                self._room = _ERROR
                self._awaits_stack = True
            elif self._awaits_stack and line.startswith(_CURRENT):
                self._room = _STACK
                self._awaits_stack = False
            numbered = (self._count, line[: 4 * _WIDTH])
            self._count += 1
            self._last.append(numbered)
            if self._room:
                self._room -= 1
                self._error.append(numbered)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines that are kept, oldest first."""
        kept = {**dict(self._error), **dict(self._last)}
        found: list[bytes] = []
        following = min(kept, default=0)
        for number, line in sorted(kept.items()):
            if number > following:
                found.append(b"(%d lines are left out here)" % (number - following))
            found.append(line)
            following = number + 1
        return tuple(printable(text(line)[:_WIDTH]) for line in found)


def text(line: bytes) -> str:
    """Return a line without its end, whatever bytes it has."""
    return line.decode(errors="replace").rstrip("\r")
