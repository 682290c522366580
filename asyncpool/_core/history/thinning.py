"""Keeps some items of a sequence of any length, spread evenly over all of it."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Thinned(Generic[T]):
    """Some items of a sequence: each first, second, fourth, eighth one as it grows.

    Args:
        most: How many items are kept at most; at least 2.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: list[T] = []
        self._step = 1
        self._count = 0

    def add(self, item: T) -> None:
        """Take note of the next item."""
        if self._count % self._step == 0:
            if len(self._items) == self._most:
                self._items = self._items[::2]
                self._step *= 2
            if self._count % self._step == 0:
                self._items.append(item)
        self._count += 1

    @property
    def items(self) -> list[T]:
        """What is kept, in order."""
        return self._items
