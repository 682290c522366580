"""What each client of an agent tells the agent, which decides for all of them."""

from __future__ import annotations

from typing import Any, Protocol


class Turns(Protocol):
    """Gives the pool jobs, and has clients told."""

    @property
    def has_room(self) -> bool:
        """Whether the pool may get a job that has just come."""
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
