"""The broadcasts that each new worker makes up for, in their order.

Of the same function only the last one counts: else a service that broadcasts its
configuration every minute would have workers that take longer and longer to start.  What
is the same function is told by where it was defined, so that this holds for closures and
partials too, which are new objects each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from asyncpool._core.base.names import function_name


class Broadcast(NamedTuple):
    """A call for every worker.

    Attributes:
        number: When it came; the lower is the earlier one.
        name: What it is called in errors and reports.
        line: The line of its function, if it has one.
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
        """Tell whether *other* need not be remembered any more when this one is."""
        same = (self.name, self.line) == (other.name, other.line)
        return same and other.number < self.number


class Remembered:
    """What a new worker does before it is ready.

    Args:
        limit: The most bytes that all calls together may have when pickled.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._broadcasts: list[Broadcast] = []

    @property
    def calls(self) -> tuple[tuple[str, bytes], ...]:
        """The name and the pickled call of each, in the order of the broadcasts."""
        return tuple((one.name, one.payload) for one in self._broadcasts)

    def check(self, new: Broadcast, under_way: Iterable[Broadcast]) -> None:
        """Check that there is room for *new* and for those that are *under way*.

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
        """Remember *new*, in its place, instead of earlier ones of the same function."""
        if any(one.replaces(new) for one in self._broadcasts):
            return  # it took longer than one that came later
        kept = [one for one in self._broadcasts if not new.replaces(one)]
        self._broadcasts = sorted([*kept, new])
