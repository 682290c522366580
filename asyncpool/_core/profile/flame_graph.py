"""Where the rectangles of a flame graph are.

The root is at the top, and each call is below its caller, as wide as its number of samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpool._core.profile.stack_counts import Stack


class Rectangle(NamedTuple):
    """One call, in all stacks that begin in the same way.

    Attributes:
        name: What it shows.
        depth: How many rectangles are above it.
        start: How many samples are left of it.
        samples: How wide it is.
    """

    name: str
    depth: int
    start: int
    samples: int


class _Call:
    __slots__ = ("calls", "name", "samples")

    def __init__(self, name: str) -> None:
        self.name = name
        self.samples = 0
        self.calls: dict[str, _Call] = {}


def lay_out(
    stacks: Iterable[tuple[Stack, int]], root: str, *, least: int = 1
) -> list[Rectangle]:
    """Return the rectangles, each before those below it, and from left to right.

    Args:
        stacks: The stacks and their samples.
        root: The name of the one that has all others below it.
        least: Those with fewer samples are left out, with all that is below them.
    """
    top = _Call(root)
    for (function, frames), samples in stacks:
        call = top
        call.samples += samples
        for name in (function, *frames):
            call = call.calls.setdefault(name, _Call(name))
            call.samples += samples
    found: list[Rectangle] = []
    todo = [(top, 0, 0)]
    while todo:
        call, depth, start = todo.pop()
        found.append(Rectangle(call.name, depth, start, call.samples))
        below: list[tuple[_Call, int, int]] = []
        # The widest first.  What a call did itself stays free, to the right.
        for inner in sorted(
            call.calls.values(), key=lambda each: (-each.samples, each.name)
        ):
            if inner.samples >= least:
                below.append((inner, depth + 1, start))
            start += inner.samples
        todo += reversed(below)
    return found
