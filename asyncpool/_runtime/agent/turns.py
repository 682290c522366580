"""What each client of an agent tells the agent, which decides for all of them."""

from __future__ import annotations

from typing import Any, Protocol


class Turns(Protocol):
    """Gives the pool jobs, and has clients told."""

    def look(self) -> None:
        """Have the jobs that come now go to the pool if it has room for them."""
        ...

    def turn(self) -> None:
        """Give the pool what it has room for, and send what was put."""
        ...

    def turn_soon(self) -> None:
        """Do that in the next turn of the loop."""
        ...

    def settled(self, client: Any) -> None:
        """Hear that a job of *client* has ended."""
        ...
