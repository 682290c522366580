"""How long a map goes on before others have the loop."""

from __future__ import annotations

import time

# In seconds.  All that one round of the pool brings may take 40 ms to unpickle, and the
# items for a whole window 15 ms to pickle.
TURN = 0.001


class Turn:
    """What is done in one turn of the loop, from now on."""

    def __init__(self) -> None:
        self._until = time.monotonic() + TURN

    @property
    def over(self) -> bool:
        """Whether others are to have the loop now."""
        return time.monotonic() > self._until
