"""A cluster in operation: signals, the control socket, the service manager, an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any, Protocol

from asyncpool._core.control_protocol import Request
from asyncpool._runtime.control_places import place_of
from asyncpool._runtime.control_socket import ControlSocket
from asyncpool._runtime.notify import Notifier, watchdog_interval
from asyncpool._runtime.signals import Orders, obeyed
from asyncpool.cluster._stats import ClusterStats
from asyncpool.errors import (
    PoolBrokenError,
    PoolClosedError,
    ResizeError,
    RollInProgressError,
)
from asyncpool.events import CloseSummary, RollResult

__all__ = ["GAVE_UP", "STOPPED", "Operated", "Operation", "run"]

_LOGGER = logging.getLogger("asyncpool")

# Exit codes.  A second signal gives 128 and its number, as a shell does.
STOPPED = 0
GAVE_UP = 3

_STATUS_EVERY = 5.0  # s


class Operated(Protocol):
    """What of a :class:`asyncpool.Cluster` its operation needs."""

    name: str

    async def start(self) -> object: ...
    async def wait(self) -> None: ...
    async def close(self, timeout: float | None = None) -> CloseSummary: ...  # noqa: ASYNC109
    async def reload(self) -> RollResult: ...
    async def resize(self, workers: int) -> None: ...
    async def stacks(self) -> dict[int, str]: ...
    def stats(self) -> ClusterStats: ...


async def run(cluster: Operated, control: str | None = None) -> int:
    """Serve until somebody asks for an end, and return the exit code.

    Args:
        cluster: The cluster; it is started and closed here.
        control: The name or path of its control socket; its own name by default,
            ``""`` for none.
    """
    return await Operation(cluster, control=control).run()


class Operation:
    """Lets a cluster be run by signals, by commands, and by a service manager.

    Args:
        cluster: The cluster; it is started and closed here.
        control: See :func:`run`.
        on_ready: Called when the first worker is ready.

    Attributes:
        control_path: Where the control socket is; ``None`` if there is none.
        broken: Why the cluster has given up, if it has.
    """

    def __init__(
        self,
        cluster: Operated,
        *,
        control: str | None = None,
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        self.control_path: str | None = None
        self.broken: PoolBrokenError | None = None
        self._cluster = cluster
        self._control = control
        self._on_ready = on_ready
        self._notifier = Notifier({})
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._stops: list[int] = []
        self._wanted: int | None = None
        self._reloading = False
        self._reload_again = False

    async def run(self) -> int:
        """Serve until somebody asks for an end, and return the exit code.

        Raises:
            OSError: If the cluster cannot listen, or a control socket that was asked
                for cannot be made.
            ValueError: If an address makes no sense, or the name of the control socket.
            RuntimeError: If this is not the main thread.

        Cancellation:
            Ends the cluster at once.
        """
        orders = Orders(
            stop=self.stop,
            reload=self.reload_soon,
            resize=self._resize_by,
            dump=lambda: self._soon(self._dump()),
        )
        self._notifier = Notifier()
        control = None
        try:
            with obeyed(orders):
                control = self._open_control()
                await self._serve()
        except BaseException:
            await self._cluster.close(timeout=0)
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            if control is not None:
                await control.close()
            self._notifier.close()
        if self.broken is not None:
            return GAVE_UP
        # Who has cut it short by a command, rather than a signal, has what was wanted.
        cut = self._stops[-1] if len(self._stops) > 1 else 0
        return 128 + cut if cut else STOPPED

    def stop(self, number: int = 0) -> None:
        """Drain and end; when it is asked for again, end at once.

        Args:
            number: The signal that asks for it, 0 if none does.
        """
        self._stops.append(number)
        if len(self._stops) == 1:
            self._notifier.stopping()
        within = None if len(self._stops) == 1 else 0.0
        self._closing.add(self._soon(self._close(within)))

    def reload_soon(self) -> None:
        """Replace the workers; if that is under way already, once more after it."""
        self._reload_again = True
        if not self._reloading:
            self._soon(self._reload_until_done())

    async def _serve(self) -> None:
        """Start the cluster, and wait for its end."""
        try:
            await self._cluster.start()
            if not self._stops:
                self._notifier.ready(self._status_line())
                self._on_ready()
                if self._notifier.listens:
                    self._soon(self._beat())
            await self._cluster.wait()
        except PoolClosedError:
            if not self._stops:
                raise
        except PoolBrokenError as error:
            self.broken = error
            self._notifier.stopping()
            await self._cluster.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _open_control(self) -> ControlSocket | None:
        """Open the control socket; without one that was asked for, there is only a warning.

        Serving is more important, where no file can be made.
        """
        if self._control == "":
            return None
        name = self._control or self._cluster.name
        try:
            control = self._control_at(name)
        except (OSError, ValueError) as error:
            if self._control is not None:
                raise
            _LOGGER.warning("there is no control socket: %s", error)
            return None
        self.control_path = control.path
        control.open()
        return control

    def _control_at(self, name: str) -> ControlSocket:
        path = place_of(name, make=True)
        try:
            return ControlSocket(path, self._answer)
        except OSError as error:
            if self._control is None and error.errno == errno.EADDRINUSE:
                # Another one has the name, which nobody has chosen for us.
                path = place_of(f"{name}-{os.getpid()}", make=True)
                return ControlSocket(path, self._answer)
            reason = error.strerror or error
            raise OSError(
                error.errno, f"cannot make the control socket {path}: {reason}"
            ) from error

    async def _answer(self, request: Request) -> dict[str, Any]:
        """Do what a client asks for, and return what it is told."""
        match request.action:
            case "status":
                return {
                    "name": self._cluster.name,
                    "pid": os.getpid(),
                    **asdict(self._cluster.stats()),
                }
            case "reload":
                result = await self._reload_for_client()
                return {"replaced": result.replaced, "trouble": _trouble(result)}
            case "resize":
                assert request.workers is not None
                self._wanted = request.workers
                await self._cluster.resize(request.workers)
                return {"workers": request.workers}
            case "stop":
                while len(self._stops) < 1 + request.now:
                    self.stop()
                return {"pid": os.getpid()}
            case "stacks":
                stacks = await self._cluster.stacks()
                return {
                    "stacks": {str(worker): text for worker, text in stacks.items()}
                }

    async def _close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._cluster.close(timeout)

    async def _reload_until_done(self) -> None:
        while self._reload_again and not self._stops:
            self._reload_again = False
            with contextlib.suppress(RollInProgressError):  # that one is told of
                await self._reload()

    async def _reload_for_client(self) -> RollResult:
        try:
            return await self._reload()
        finally:
            if self._reload_again:  # asked for by a signal meanwhile
                self.reload_soon()

    async def _reload(self) -> RollResult:
        """Replace the workers, and tell of it."""
        if self._reloading:
            raise RollInProgressError("a reload is under way already")
        self._reloading = True
        self._notifier.reloading()
        try:
            result = await self._cluster.reload()
        finally:
            self._reloading = False
            if not self._stops:
                self._notifier.ready(self._status_line())
        if result.ok:
            _LOGGER.info("reloaded: %d workers are new", result.replaced)
        else:
            _LOGGER.error(
                "the reload has ended after %d workers, the others are as before: %s",
                result.replaced,
                _trouble(result),
            )
        return result

    def _resize_by(self, change: int) -> None:
        stats = self._cluster.stats()
        self._wanted = max(1, (self._wanted or stats.workers) + change)
        self._soon(self._resize(self._wanted))

    async def _resize(self, workers: int) -> None:
        try:
            await self._cluster.resize(workers)
        except ResizeError as error:
            _LOGGER.error("there are to be %d workers: %s", workers, error)  # noqa: TRY400 - it is no bug here
        else:
            _LOGGER.info("there are %d workers now", workers)

    async def _dump(self) -> None:
        """Tell where all workers are."""
        for worker, text in sorted((await self._cluster.stacks()).items()):
            _LOGGER.warning("stacks of worker %d:\n%s", worker, text.rstrip())

    async def _beat(self) -> None:
        """Tell the service manager how it goes, and its watchdog that it goes at all."""
        watchdog = watchdog_interval()
        while True:
            await asyncio.sleep(min(_STATUS_EVERY, watchdog or _STATUS_EVERY))
            if watchdog is not None and self._is_healthy():
                self._notifier.alive()
            if not self._stops and not self._reloading:
                self._notifier.status(self._status_line())

    def _is_healthy(self) -> bool:
        """Tell whether anybody serves; while it drains, that it does is enough."""
        stats = self._cluster.stats()
        if self._stops:
            return True
        return stats.state == "running" and any(it.ready for it in stats.slots)

    def _status_line(self) -> str:
        stats = self._cluster.stats()
        ready = sum(it.ready for it in stats.slots)
        return (
            f"{ready} of {stats.workers} workers, {stats.handed} connections, "
            f"{stats.restarts} restarts"
        )

    def _soon(self, action: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside serving; what goes wrong is logged."""
        task = asyncio.create_task(self._logged(action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _logged(self, action: Coroutine[Any, Any, None]) -> None:
        try:
            await action
        except PoolClosedError:
            pass  # it has ended meanwhile
        except Exception:
            _LOGGER.exception("an order to cluster %s has failed", self._cluster.name)


def _trouble(result: RollResult) -> str:
    """Return why a reload has ended early, with what has become of the new worker."""
    return f"{result.trouble}{f': {result.crash}' if result.crash else ''}"
