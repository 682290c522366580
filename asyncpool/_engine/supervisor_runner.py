"""The life of a pool or of a cluster: its start and its end, for the code that asks for them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import warnings
from collections.abc import Awaitable, Callable

from asyncpool._core.endings import Finish
from asyncpool._engine.engine import Engine
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.loop import anyio_shield, check_loop, outlast, shielded
from asyncpool._engine.machine import check_not_imported
from asyncpool._engine.options import SupervisorConfig
from asyncpool.errors import PoolClosedError
from asyncpool.events import CloseSummary


class SupervisorRunner:
    """One supervisor, before, during and after its time.

    Args:
        what: What errors call it: ``"pool"``.
        name: Its name.

    Attributes:
        supervisor: The supervisor, once there is one.
        closed_unused: Whether it was closed before it was started.
    """

    def __init__(self, what: str, name: str) -> None:
        self.supervisor: Engine | None = None
        self.closed_unused = False
        self._what = what
        self._name = name
        # Made before the supervisor, since somebody may listen before the start.
        self.hub = PoolHub()
        self._task: asyncio.Task[None] | None = None
        self._process = os.getpid()
        self._making = asyncio.Lock()

    async def start(self, config: Callable[[], Awaitable[SupervisorConfig]]) -> Engine:
        """Start the supervisor, unless there is one; return when a worker is ready.

        Args:
            config: What makes the configuration.  If it is cancelled, it leaves nothing open.

        Raises:
            PoolBrokenError: If none can be started; it has the crashes.
            PoolClosedError: If it is closed or closes, or is closed meanwhile.
            RuntimeError: If it was started in another event loop, or by a script that a
                worker imports.

        Cancellation:
            Ends everything.
        """
        self._check_unclosed()
        check_not_imported(self._what)
        self.check_loop()
        if self.supervisor is not None and self.supervisor.closing:
            raise self._closed()
        began = asyncio.get_running_loop().time()
        try:
            async with self._making:  # another call may be about to make it
                first = self.supervisor is None
                supervisor = self.supervisor or await self._make(config)
            await shielded(supervisor.status.ready)
        except BaseException as error:
            if self.supervisor is None and isinstance(error, asyncio.CancelledError):
                self._close_unused()
            await self.end_now()
            raise
        if supervisor.status.ended.done():
            raise self._closed()
        if first:
            supervisor.tell_start(began)
        return supervisor

    async def _make(self, config: Callable[[], Awaitable[SupervisorConfig]]) -> Engine:
        """Make the supervisor, and have it begin.

        Raises:
            PoolClosedError: If it is closed, or is meanwhile.

        Cancellation:
            Makes none.
        """
        self._check_unclosed()
        made = await config()
        try:
            self._check_unclosed()
        except PoolClosedError:
            await self.hub.close_companions()
            raise
        supervisor = self.supervisor = Engine(made, self.hub)
        self._task = asyncio.create_task(
            supervisor.run(),
            name=f"asyncpool supervisor of {self._name}",
            # An empty context, not that of a request or a notebook cell that starts the pool.
            context=contextvars.Context(),
        )
        return supervisor

    async def close(self, finish: Finish, timeout: float | None) -> CloseSummary:  # noqa: ASYNC109 - it bounds the jobs, not the wait
        """End everything, after what *finish* says, within so many seconds if not ``None``.

        Cancellation:
            Safe: the close goes on without the caller.
        """
        if self.supervisor is None:
            self._close_unused()
            return CloseSummary(finished=0, failed=0, killed=0)
        self.check_loop()
        self.supervisor.close(finish, timeout)
        await shielded(self.supervisor.status.ended)
        return self.supervisor.summary()

    def _close_unused(self) -> None:
        self.closed_unused = True
        self.hub.end()

    def _check_unclosed(self) -> None:
        if self.closed_unused:
            raise self._closed()

    def _closed(self) -> PoolClosedError:
        return PoolClosedError(f"the {self._what} is closed")

    async def exit_context(
        self,
        error: BaseException | None,
        close: Callable[[], Awaitable[object]],
    ) -> None:
        """Leave the context: *close*, or give everything up if an *error* leaves.

        Raises:
            RuntimeError: If it was started in another event loop.

        Cancellation:
            Kills what is left, and returns when it is gone.
        """
        self.check_loop()
        try:
            if error is None:
                await close()
            elif self.supervisor is not None:
                self.supervisor.abort()
                # Running jobs have time to clean up.  A cancellation by a scope of anyio's, which
                # may be the reason for this call, has no effect here.
                with anyio_shield():
                    await shielded(self.supervisor.status.ended)
        except BaseException:
            await self.end_now()
            raise

    async def end_now(self) -> None:
        """Kill everything, and do not return before it is gone."""
        supervisor = self.supervisor
        if supervisor is None:
            return
        supervisor.close(Finish.NOTHING, 0.0)
        await outlast(supervisor.status.ended)

    def dropped(
        self, face: object, *, at_the_end: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        """Note that nobody has a reference to the *face* any more: the supervisor drains, and ends.

        The garbage collector calls this, in any thread and at any moment.  It may do so at the
        end of the interpreter, when module globals are gone and nothing can be done.
        """
        # A fork has only a copy of the pool, whose loop would write to the original's pipe.
        if at_the_end() or self._task is None or os.getpid() != self._process:
            return
        supervisor = self.running()
        if supervisor.closing:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop = self._task.get_loop()
            # It is logged there: the collector may have stopped the code of a log handler.
            loop.call_soon_threadsafe(supervisor.drop)
        warnings.warn(
            f"{self._what} {self._name} was dropped without being closed; it finishes "
            f"its jobs and ends: use 'async with' or 'await {self._what}.close()'",
            ResourceWarning,
            source=face,
            stacklevel=3,
        )

    def check_loop(self) -> None:
        """Check that it was started in the loop that runs.

        Raises:
            RuntimeError: If it was not.
        """
        if self._task is not None:
            check_loop(self._task.get_loop(), f"{self._what} {self._name}")

    def running(self) -> Engine:
        """Return the supervisor, which may have ended.

        Raises:
            PoolClosedError: If there never was one.
        """
        if self.supervisor is None:
            what = self._what
            raise PoolClosedError(
                f"the {what} is closed"
                if self.closed_unused
                else f"the {what} was not started: use 'async with {what}' or "
                f"'await {what}.start()'"
            )
        return self.supervisor

    def running_here(self) -> Engine:
        """Return the supervisor, which may have ended, to code that runs in its loop.

        Raises:
            PoolClosedError: If there never was one.
            RuntimeError: If it was started in another event loop.
        """
        supervisor = self.running()
        self.check_loop()
        return supervisor

    def open(self) -> Engine:
        """Return a supervisor that works.

        Raises:
            PoolClosedError: If it does not, since it was closed, or not started.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If it was started in another event loop.
        """
        supervisor = self.running_here()
        supervisor.admission.check_open()
        return supervisor

    def open_or_retrying(self) -> Engine:
        """Return a supervisor that works, or that tries to start workers.

        Raises:
            PoolClosedError: If it does not, since it was closed, or not started.
            PoolBrokenError: If it has given up.
            RuntimeError: If it was started in another event loop.
        """
        supervisor = self.running_here()
        supervisor.admission.check_trying()
        return supervisor
