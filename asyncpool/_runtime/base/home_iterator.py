"""An async iterator that only its own event loop may use."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class HomeIterator(Generic[T]):
    """The items of an async generator, in one event loop.

    A generator itself goes on in whatever loop asks it.  It gives away an item there, or ends with
    the error of what it waits for, and then its own loop gets no more.

    Args:
        items: The generator.
        check_home: Raises :exc:`RuntimeError` in another loop than the generator's.
    """

    __slots__ = ("__weakref__", "_check_home", "_home", "_items", "_next")

    def __init__(
        self, items: AsyncGenerator[T, Any], check_home: Callable[[], None]
    ) -> None:
        self._items = items
        self._next = items.__anext__
        self._check_home = check_home
        self._home: asyncio.AbstractEventLoop | None = None

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[T]:
        """Return an awaitable of the next item.

        Raises:
            RuntimeError: In another event loop.
        """
        here = _get_running_loop()
        if here is None or here is not self._home:  # 50 ns; the check takes 250
            self._check_home()
            self._home = here
        return self._next()

    async def aclose(self) -> None:
        """End the iteration.

        Raises:
            RuntimeError: In another event loop.

        Cancellation:
            Safe: the rest is done when the iteration is garbage-collected.
        """
        self._check_home()
        await self._items.aclose()
