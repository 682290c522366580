"""The sessions of a service: each has a worker to itself, and ends when nobody uses it."""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import asyncpool

R = TypeVar("R")

# Seconds to wait for a worker.  One is forked in some milliseconds.
_START = 10.0

# Calls of one session at once: the service keeps what they bring until their turn comes.
_MOST_CALLS = 4


class GoneError(Exception):
    """There is no such session, or it has ended."""


class FullError(Exception):
    """There are as many sessions as there may be."""


class BusyError(Exception):
    """As many calls of the session are open as there may be."""


class Session:
    """One session, which lives in a task.

    Attributes:
        id: What the user names it by; nobody can guess it.
        used_at: When its last call began or ended.
        calls: How many calls are open.
        over: Set to end it.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.id = secrets.token_urlsafe(16)
        self.used_at = loop.time()
        self.calls = 0
        self.over = asyncio.Event()
        self.worker: asyncio.Future[asyncpool.WorkerSession] = loop.create_future()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Count a call from before its input is read until it is answered.

        Raises:
            BusyError: If there are too many.
        """
        if self.calls >= _MOST_CALLS:
            raise BusyError
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            self.used_at = asyncio.get_running_loop().time()

    async def call(self, seconds: float, function: Callable[..., R], *args: Any) -> R:
        """Call *function* in the worker of the session, after the calls before it.

        Args:
            seconds: How long it may take.
            function: What is called.
            *args: Its arguments.

        Raises:
            JobTimeoutError: If it takes too long.  If it ended when it was interrupted, the session
                goes on.
            GoneError: If the session has ended by this call or before it.
        """
        if self.over.is_set():
            raise GoneError("the session has ended")
        try:
            worker = (await self.worker).options(timeout=seconds, cancel_grace=0.5)
            return await worker.submit(function, *args)
        except asyncpool.errors.WorkerCrashedError as error:
            self.over.set()
            raise GoneError(f"the session has ended: {error.kind}") from error
        except asyncpool.errors.WorkerGoneError as error:
            self.over.set()
            raise GoneError("the session has ended") from error


class Sessions:
    """All sessions of a service.

    Args:
        pool: Has a worker for each.
        most: How many there may be.
        idle: After how many seconds without a call a session ends.
    """

    def __init__(self, pool: asyncpool.Pool, *, most: int, idle: float) -> None:
        self._pool = pool
        self._most = most
        self._idle = idle
        self._open: dict[str, Session] = {}
        self._tasks = asyncio.TaskGroup()

    def __len__(self) -> int:
        return len(self._open)

    async def open(self) -> Session:
        """Begin a session.

        Raises:
            FullError: If there are too many.
            TimeoutError: If no worker is free in time.
        """
        if len(self._open) >= self._most:
            raise FullError
        session = Session()
        self._open[session.id] = session
        self._tasks.create_task(self._keep(session))
        try:
            await asyncio.shield(session.worker)
        except asyncio.CancelledError:  # the client has left
            session.over.set()
            raise
        return session

    def find(self, name: str) -> Session:
        """Return a session by its id.

        Raises:
            GoneError: If there is none.
        """
        try:
            return self._open[name]
        except KeyError:
            raise GoneError("there is no such session") from None

    async def _keep(self, session: Session) -> None:
        """Have a worker for *session* until it is over."""
        try:
            async with self._pool.worker(timeout=_START) as worker:
                session.worker.set_result(worker)
                await self._until_over(session)
        except (TimeoutError, asyncpool.errors.AsyncPoolError) as error:
            if not session.worker.done():
                session.worker.set_exception(error)
        finally:
            session.over.set()
            del self._open[session.id]

    async def _until_over(self, session: Session) -> None:
        loop = asyncio.get_running_loop()
        while not session.over.is_set():
            idle_at = session.used_at + self._idle
            if not session.calls and idle_at <= loop.time():
                return
            try:
                async with asyncio.timeout_at(max(idle_at, loop.time() + 0.05)):
                    await session.over.wait()
            except TimeoutError:
                pass  # it may have been used meanwhile

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for session in self._open.values():
            session.over.set()
        await self._tasks.__aexit__(kind, error, traceback)
