"""An async iterator that only its own event loop may use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from threading import get_ident
from types import AsyncGeneratorType
from typing import Any, Generic, NoReturn, Self, TypeVar, cast

T = TypeVar("T")


class HomeIterator(Generic[T]):
    """The items of an async generator, in one event loop.

    A generator itself goes on in whatever loop asks it.  It gives away an item there, or ends with
    the error of what it waits for, and then its own loop gets no more.

    Args:
        items: The generator.
        check_home: Raises :exc:`RuntimeError` in another loop than the generator's.
    """

    __slots__ = (
        "__weakref__",
        "_check_home",
        "_is_running",
        "_items",
        "_next",
        "_thread",
    )

    def __init__(
        self, items: AsyncGenerator[T, Any], check_home: Callable[[], None]
    ) -> None:
        self._items = items
        self._next = items.__anext__
        self._check_home = check_home
        self._thread = 0  # of the loop, once it has begun, and whether that runs now
        self._is_running: Callable[[], bool] = bool

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[T]:
        """Return an awaitable of the next item.

        Raises:
            RuntimeError: In another event loop.
        """
        # Before Python 3.12 it takes 140 ns to ask which loop runs, and this takes 70.
        if get_ident() != self._thread or not self._is_running():
            self._check_home()
            if not self._thread:
                return _begin(self._next)
        return self._next()

    async def aclose(self) -> None:
        """End the iteration.

        Raises:
            RuntimeError: In another event loop, or while a task waits for the next item.

        Cancellation:
            Safe: the rest is done when the iteration is garbage-collected.
        """
        self._check_home()
        await close(self._items)

    def note_begin(self) -> None:
        """Note that the generator begins, in this thread and loop."""
        self._thread = get_ident()
        self._is_running = asyncio.get_running_loop().is_running

    def cut_short(self) -> None:
        """Note that the cancellation of a wait for an item has ended the generator.

        Whoever goes on, as after a timeout, must not take that for the end of the items.
        """
        self._next = _refuse


async def _begin(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask for the first item.

    A task that is cancelled before its first step would end a generator that has not begun.  So
    it ends this coroutine, and nothing is lost.
    """
    return await ask()


async def close(items: AsyncGenerator[Any, Any]) -> None:
    """Close the generator *items*.

    Raises:
        RuntimeError: While a task waits for the next item, or closes it as well.
    """
    if cast("AsyncGeneratorType[Any, Any]", items).ag_running:
        raise RuntimeError(
            "aclose() while a task waits for the next item, or closes the iteration "
            "already: cancel the task that waits, which ends the iteration"
        )
    await items.aclose()


async def _refuse() -> NoReturn:
    raise RuntimeError(
        "the iteration has ended, since a wait for an item was cancelled, or timed out: to "
        "go on after that, let a task wait for the item, and asyncio.wait() for the task"
    )
