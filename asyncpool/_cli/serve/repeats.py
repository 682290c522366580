"""Messages that come again and again, of which a log needs a few, and their number."""

from __future__ import annotations

from collections.abc import Hashable

# So many of a kind are shown in each window of so many seconds.
_SHOWN = 5
_WINDOW = 10.0

# Kinds that are remembered; who has more to say than that does not repeat itself.
_KINDS = 1000


class Repeats:
    """Counts messages of a kind, and tells which of them to leave out."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, tuple[float, int]] = {}

    def admits(self, kind: Hashable, now: float) -> bool:
        """Tell whether one more of this kind is to be shown."""
        began, count = self._kinds.get(kind, (now, 0))
        if len(self._kinds) >= _KINDS and not count:
            return True
        self._kinds[kind] = began, count + 1
        return count < _SHOWN

    def over(self, now: float) -> list[tuple[Hashable, int]]:
        """Return the kinds whose window is over, with how many were left out; forget them."""
        over = {
            kind: count
            for kind, (began, count) in self._kinds.items()
            if now - began >= _WINDOW
        }
        for kind in over:
            del self._kinds[kind]
        return [(kind, n - _SHOWN) for kind, n in over.items() if n > _SHOWN]
