"""The iteration over a map or a stream: it ends when nobody holds its iterator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from threading import get_ident
from types import AsyncGeneratorType
from typing import Any, Generic, NoReturn, Self, TypeVar, cast
from weakref import finalize, ref

from asyncpool._engine.loop import call_in, shielded

T = TypeVar("T")


class Demand:
    """What a generator and those who ask for its items tell each other.

    The generator must not know them, since they hold it.  It runs ``with`` this.

    Args:
        check_loop: Raises :exc:`RuntimeError` in another loop than the generator's.

    Attributes:
        check_loop: As above.
        thread: The thread of its event loop; 0 before it has begun, and when it was cut short.
        loop: The event loop, once it has begun.
        is_running: Tells whether that runs now.
        cut_short: Whether the cancellation of a wait for an item has ended the generator.
        withdrawn: Returns the generator, if it is to be closed behind the item that it makes.
        closing: Closes the generator, since nobody holds the iterator any more.
    """

    thread = 0
    loop: asyncio.AbstractEventLoop | None = None
    is_running: Callable[[], bool]
    cut_short = False
    withdrawn: Callable[[], Any] | None = None
    closing: asyncio.Task[None] | None = None

    def __init__(self, check_loop: Callable[[], None]) -> None:
        self.check_loop = check_loop

    def __enter__(self) -> None:
        loop = self.loop = asyncio.get_running_loop()
        self.thread, self.is_running = get_ident(), loop.is_running

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        # The error of a job, or of an input, may be a CancelledError too.  It cuts no wait short.
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self.thread, self.cut_short = 0, True

    def meet(self, item: T) -> T:
        """Return *item*, which somebody has waited for, and the generator is about to yield."""
        if self.withdrawn is not None:
            asyncio.get_running_loop().call_soon(self.end, self.withdrawn())
            self.withdrawn = None
        return item

    def withdraw(self, generator: ref[AsyncGeneratorType[Any, Any]]) -> None:
        """Have the *generator* closed; in any thread, at any moment."""
        if self.loop is None:
            # It has not begun, but somebody may have asked for an item.
            self.withdrawn = generator
        elif (items := generator()) is not None and items.ag_frame is not None:
            call_in(self.loop, self.end, items)

    def end(self, items: AsyncGeneratorType[Any, Any]) -> None:
        """Close the generator, which is *items*, behind the item that somebody waits for."""
        if items.ag_running:
            # Not left to the loop, which closes what has no reference any more: if the last one
            # goes with a task that ends, Python 3.15.0 crashes in the debug mode of a loop.
            self.withdrawn = ref(items)
        else:
            self.closing = asyncio.create_task(
                close(items), name="asyncpool end of an iteration"
            )


class LoopIterator(Generic[T]):
    """The items of an async generator, in one event loop.

    A generator itself goes on in whatever loop asks it.  It gives away an item there, or ends with
    the error of what it waits for, and then its own loop gets no more.

    Args:
        items: The generator.
        demand: What it runs with.
    """

    __slots__ = ("__weakref__", "_demand", "_items", "_next")

    def __init__(self, items: AsyncGeneratorType[T, Any], demand: Demand) -> None:
        self._items, self._next, self._demand = items, items.__anext__, demand

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[T]:
        """Return an awaitable of the next item.

        Raises:
            RuntimeError: In another event loop.
        """
        demand = self._demand
        # Before Python 3.12 it takes 140 ns to ask which loop runs, and this takes 70.
        if get_ident() != demand.thread or not demand.is_running():
            demand.check_loop()
            if demand.cut_short:
                return _refuse()
            if not demand.thread:
                return _begin(self._next)
        return self._next()

    async def aclose(self) -> None:
        """End the iteration.

        Raises:
            RuntimeError: In another event loop, or while a task waits for the next item.

        Cancellation:
            Safe: the rest is done when the iteration is garbage-collected.
        """
        self._demand.check_loop()
        await close(self._items)


async def _begin(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask for the first item.

    A task that is cancelled before its first step would end a generator that has not begun.  So
    it ends this coroutine, and nothing is lost.
    """
    return await ask()


async def close(items: AsyncGeneratorType[Any, Any]) -> None:
    """Close the generator *items*.

    Raises:
        RuntimeError: While a task waits for the next item, or closes it as well.
    """
    if items.ag_running:
        raise RuntimeError(
            "aclose() while a task waits for the next item, or closes the iteration "
            "already: cancel the task that waits, which ends the iteration"
        )
    await items.aclose()


async def _refuse() -> NoReturn:
    """Refuse to go on, as after a timeout, which must not look like the end of the items."""
    raise RuntimeError(
        "the iteration has ended, since a wait for an item was cancelled, or timed out: to "
        "go on after that, let a task wait for the item, and asyncio.wait() for the task"
    )


class Iteration(Generic[T]):
    """What can be iterated over once, as a map or a stream.

    It holds its iterator for ``anext()``, until a loop takes it.  Then only the loop holds
    it.  Once the loop is left, by whatever way, nobody does, and the generator is closed, even if
    the program keeps this object.

    Args:
        check_loop: Raises :exc:`RuntimeError` in another loop than the generator's.
        make: Makes the generator, which runs with what it is given.  It must not know this object.
    """

    _once: str  # what an error says of another iteration
    _used = False  # whether somebody has tried to use it

    def __init__(
        self,
        check_loop: Callable[[], None],
        make: Callable[[Demand], AsyncGenerator[T, Any]],
    ) -> None:
        self._demand = Demand(check_loop)
        self._items = cast("AsyncGeneratorType[T, Any]", make(self._demand))
        self._held: LoopIterator[T] | None = LoopIterator(self._items, self._demand)
        self._iterator = ref(self._held)
        # Whether the iteration has begun, or whether there never will be one.
        self._begun = False

    def _check_loop(self) -> None:
        self._used = True
        self._demand.check_loop()

    def __aiter__(self) -> AsyncIterator[T]:
        self._check_loop()
        iterator, self._held = self._held, None  # one that anext() has begun goes on
        if iterator is None:
            raise RuntimeError(self._once)
        self._begun = True
        # A weak reference: the registry would keep what the generator has, and that may have the
        # iterator.  If both are garbage at once, the loop closes the generator.
        finalize(iterator, self._demand.withdraw, ref(self._items)).atexit = False
        return iterator

    def __anext__(self) -> Awaitable[T]:
        """Return an awaitable of the next item."""
        self._check_loop()
        iterator = self._iterator()
        if iterator is None:
            raise RuntimeError(self._once)
        self._begun = True
        return iterator.__anext__()

    async def aclose(self) -> None:
        """Close the generator of a stream; cancel the jobs of a map, and draw no more items.

        An iteration that has not begun never does.

        Raises:
            RuntimeError: Outside the pool's event loop, or while a task waits for the next
                item: cancel that task.

        Cancellation:
            Safe: the rest is done when the iteration is garbage-collected.
        """
        self._check_loop()
        self._begun = True
        closing = self._demand.closing
        if closing is None:
            await close(self._items)
            return
        try:
            await shielded(closing)
        finally:
            if closing.done():
                self._demand.closing = None
