"""The broadcasts that each new worker runs when it starts, in their order.

Only the last broadcast of a function counts.  Otherwise a service that broadcasts its
configuration every minute would have workers that take longer and longer to start.  Two
functions are the same if they were defined at the same place.  So this also holds for
closures and partials, which are new objects each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from asyncpool._core.base.names import function_name


class Broadcast(NamedTuple):
    """A call for every worker.

    Attributes:
        number: Which broadcast it is; an earlier one has a lower number.
        name: The name of its function in errors and reports.
        line: The line where its function is defined, if it has one.
        payload: The pickled call.
    """

    number: int
    name: str
    line: int
    payload: bytes

    @classmethod
    def of(cls, number: int, function: Callable[..., Any], payload: bytes) -> Broadcast:
        """Return the broadcast of *function*."""
        name = function_name(function)
        while isinstance(function, partial):
            function = function.func
        code = getattr(function, "__code__", None)
        line = 0 if code is None else code.co_firstlineno
        return cls(number, name, line, payload)

    def replaces(self, other: Broadcast) -> bool:
        """Tell whether new workers no longer need *other* when they run this one."""
        same = (self.name, self.line) == (other.name, other.line)
        return same and other.number < self.number


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
