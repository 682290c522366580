"""The broadcasts that each new worker runs when it starts, in their order.

Only the last broadcast of a function counts.  Otherwise a service that broadcasts its
configuration every minute would have workers that take longer and longer to start.  Two
functions are the same if they have the same name.  So this also holds for closures and
partials, which are new objects each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Broadcast(NamedTuple):
    """A call for every worker.

    Attributes:
        number: Which broadcast it is; an earlier one has a lower number.
        name: The name of its function in errors and reports.
        payload: The pickled call.
    """

    number: int
    name: str
    payload: bytes

    def replaces(self, other: Broadcast) -> bool:
        """Tell whether new workers no longer need *other* when they run this one."""
        return self.name == other.name and other.number < self.number


class StartBroadcasts:
    """The broadcasts that a new worker runs before it is ready.

    Args:
        limit: The most bytes that all of the pickled calls may have together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._broadcasts: list[Broadcast] = []

    @property
    def calls(self) -> tuple[tuple[str, bytes], ...]:
        """The name and the pickled call of each, in the order of the broadcasts."""
        return tuple((one.name, one.payload) for one in self._broadcasts)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of each, in their order."""
        return tuple(one.number for one in self._broadcasts)

    def check(self, new: Broadcast, under_way: Iterable[Broadcast]) -> None:
        """Check that there is room for *new* and for the broadcasts that are *under way*.

        Raises:
            ValueError: If there is not.
        """
        others = [one for one in self._broadcasts if not new.replaces(one)]
        kept = sum(len(one.payload) for one in (*others, *under_way))
        if kept + len(new.payload) > self._limit:
            raise ValueError(
                f"the call of {new.name} has {len(new.payload)} bytes when pickled, the "
                f"broadcasts before it have {kept}, and {self._limit} is the most, since "
                "every new worker gets them: have the function load what is large, from "
                "a file for example"
            )

    def add(self, new: Broadcast) -> None:
        """Remember *new*, in its order, and drop earlier broadcasts of the same function."""
        if any(one.replaces(new) for one in self._broadcasts):
            return  # a later one of the same function was faster
        kept = [one for one in self._broadcasts if not new.replaces(one)]
        self._broadcasts = sorted([*kept, new])
