"""The cluster: what the master of a server holds."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import pickle
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from asyncpool._core.addresses import parse_all
from asyncpool._core.messages import MAX_INITIALIZER, WorkerConfig
from asyncpool._core.outcome import dumps
from asyncpool._core.restart import RestartPolicy
from asyncpool._core.slots import SlotState
from asyncpool._core.supervision import Finish
from asyncpool._core.wear import WorkerLimits
from asyncpool._runtime.arguments import check_choice, check_int, check_seconds
from asyncpool._runtime.callbacks import CrashCallback
from asyncpool._runtime.config import ServingConfig, Spread, SupervisorConfig
from asyncpool._runtime.hub import EventStream
from asyncpool._runtime.life import Life
from asyncpool._runtime.line import MAX_MESSAGE, Line
from asyncpool._runtime.listeners import Listeners, open_listeners
from asyncpool._runtime.machine import (
    check_limits,
    check_loop,
    check_platform,
    module_path,
    private_memory,
    usable_cpus,
)
from asyncpool._runtime.mail import Inbox
from asyncpool._runtime.output import OutputMode
from asyncpool._runtime.service import Service
from asyncpool.cluster._stats import ClusterStats, WorkerStats
from asyncpool.errors import (
    JobNotPicklableError,
    NoWorkerError,
)
from asyncpool.events import CloseSummary, Event, RollResult

if TYPE_CHECKING:
    from asyncpool._worker.member import Worker

__all__ = ["Cluster", "Message"]

_LOGGER = logging.getLogger("asyncpool")

# Seconds that a worker which is drained has beyond its own time.
_GRACE = 1.0

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Message:
    """What a worker has sent: *worker* is its slot, *generation* which one it was."""

    worker: int
    generation: int
    value: Any


class Cluster:
    """Worker processes that serve, and the master that owns what they listen on.

    Use it as an async context manager, or call :meth:`start` and :meth:`close`, from
    whatever tasks you like, in one event loop.

    Args:
        target: What each worker runs as long as it lives: an ``async def serve(worker)``,
            or its name, ``"package.module:serve"``, or what makes one of something else,
            such as :func:`asyncpool.cluster.asgi`.
        bind: An address, or several, to listen on: ``"tcp://127.0.0.1:8000"``, or
            ``"127.0.0.1:8000"`` for short, ``"tcp://[::1]:0"``, ``"unix:///run/x.sock"``,
            ``"fd://3"`` for a socket that was inherited, ``"systemd:"`` for all that the
            service manager has passed.
        workers: How many workers; ``None`` means the CPUs that this process may use.
        spread: How connections get to workers.  ``"handoff"``: the master accepts, and
            hands each to the least busy worker.  ``"shared"``: all workers accept, and the
            kernel decides.  ``"reuseport"``: each has a socket of its own with the same
            port, among which the kernel divides connections.
        backlog: How many connections may wait in the kernel's queue.
        loop: The event loop of the workers.
        drain_timeout: Seconds that a worker which is to end has for its connections.
        start_timeout: Seconds that a worker has to become ready.
        health_timeout, restart, on_crash, launcher, preload, limits, surge, output, name:
            As of :class:`asyncpool.Pool`.  ``max_jobs`` of the *limits* counts connections
            that are over; a crash with open connections counts as one in the middle of a
            job.  What is preloaded is not loaded anew by :meth:`reload`.

    Attributes:
        name: What logs call it.

    Raises:
        UnsupportedPlatformError: If this platform cannot run a cluster.
        ValueError: If an argument is out of range, or an address makes no sense.
        TypeError: If an argument is of the wrong kind.
        JobNotPicklableError: If *target* cannot be pickled.
    """

    def __init__(
        self,
        target: str | Callable[[Worker], Coroutine[Any, Any, object]],
        *,
        bind: str | Iterable[str] = (),
        workers: int | None = None,
        spread: Spread = "handoff",
        backlog: int = 2048,
        loop: Literal["asyncio", "uvloop"] = "asyncio",
        drain_timeout: float = 5.0,
        start_timeout: float = 60.0,
        health_timeout: float | None = 30.0,
        restart: RestartPolicy | None = None,
        on_crash: CrashCallback | None = None,
        launcher: Literal["forkserver", "spawn"] = "forkserver",
        preload: Iterable[str] = (),
        limits: WorkerLimits | None = None,
        surge: int = 1,
        output: OutputMode = "log",
        name: str | None = None,
    ) -> None:
        check_platform()
        workers = usable_cpus() if workers is None else workers
        check_int("workers", workers, at_least=1)
        check_choice("spread", spread, ("handoff", "shared", "reuseport"))
        check_int("backlog", backlog, at_least=1)
        check_int("surge", surge, at_least=1)
        for what, seconds in (
            ("drain_timeout", drain_timeout),
            ("start_timeout", start_timeout),
        ):
            check_seconds(what, seconds)
        check_seconds("health_timeout", health_timeout, optional=True)
        limits = WorkerLimits() if limits is None else limits
        if not isinstance(limits, WorkerLimits):
            raise TypeError(f"limits must be a WorkerLimits, not {limits!r}")
        check_limits(limits)
        check_choice("launcher", launcher, ("forkserver", "spawn"))
        check_loop(loop)
        check_choice("output", output, ("log", "inherit"))
        if on_crash is not None and not callable(on_crash):
            raise TypeError(f"on_crash must be callable, not {on_crash!r}")
        if isinstance(preload, str):
            raise TypeError(f"preload takes names of modules: ({preload!r},)")
        self.name: str = name or f"cluster-{next(_numbers)}"
        self._binds = (bind,) if isinstance(bind, str) else tuple(bind)
        if self._binds:
            parse_all(self._binds, once_per_place=spread == "reuseport")
        self._target = _pack(target)
        self._spread: Spread = spread if self._binds else "handoff"
        self._backlog = backlog
        self._drain_timeout = drain_timeout
        self._config = SupervisorConfig(
            workers=(workers, workers),
            name=self.name,
            restart=restart or RestartPolicy(),
            on_crash=on_crash,
            fork=launcher == "forkserver",
            preload=tuple(preload),
            max_pending=None,
            start_timeout=start_timeout,
            health_timeout=health_timeout,
            output=output,
            max_shared_memory=0,
            limits=limits,
            idle_timeout=60.0,
            surge=surge,
            unavailable=0,
            propagation=None,
            stop_grace=drain_timeout + _GRACE,
            worker=WorkerConfig(
                sys_path=module_path(),
                initializer=None,
                max_payload=MAX_MESSAGE,
                nice=limits.nice,
                cpus=limits.cpus,
                rlimits=tuple(limits.rlimits.items()),
                loop=loop,
            ),
        )
        self._life = Life("cluster", self.name)
        self._listeners: Listeners | None = None
        self.addresses: tuple[str, ...] = ()

    async def start(self) -> Self:
        """Listen, start the workers, and return when the first one is ready.

        Raises:
            OSError: If an address cannot be listened on; the text names it.
            ValueError: If the service manager has passed no socket.
            PoolBrokenError: If no worker can be started; it has the crashes.
            PoolClosedError: If the cluster is closed.
            RuntimeError: If it was started in another event loop.

        Cancellation:
            Closes the cluster.

        Concurrency:
            Further calls wait for the first one.
        """
        try:
            await self._life.start(self._listen)
        finally:
            if self._life.supervisor is None and self._listeners is not None:
                self._listeners.close()
        return self

    def _listen(self) -> SupervisorConfig:
        workers, _ = self._config.workers
        if self._binds:
            self._listeners = open_listeners(
                self._binds,
                backlog=self._backlog,
                reuseport_places=workers if self._spread == "reuseport" else 0,
            )
            self.addresses = self._listeners.addresses
        serving = ServingConfig(
            target=self._target,
            spread=self._spread,
            drain_timeout=self._drain_timeout,
            listeners=self._listeners,
        )
        return dataclasses.replace(self._config, serving=serving)

    async def wait(self) -> None:
        """Return when the cluster is closed.

        Raises:
            PoolBrokenError: When it gives up, since no worker can be kept alive.
            PoolClosedError: If it was never started.

        Cancellation:
            Safe.
        """
        supervisor = self._life.running()
        self._life.check_loop()
        await asyncio.shield(supervisor.over)

    async def run(self, *, control: str | None = None) -> int:
        """Start, obey signals and commands, and return the exit code at the end.

        Args:
            control: The name or path of the control socket; the cluster's name by
                default, ``""`` for none.

        Returns:
            0 after it was stopped, 3 if it has given up, 128 and the number of the
            signal if it was to end at once.

        Raises:
            OSError: If it cannot listen.
            RuntimeError: If this is not the main thread.

        Cancellation:
            Ends the cluster at once.
        """
        from asyncpool.cluster._run import run  # noqa: PLC0415 - for main programs only

        return await run(self, control)

    async def close(self, timeout: float | None = None) -> CloseSummary:  # noqa: ASYNC109 - it bounds the drain, not the wait
        """Accept no more connections, let workers finish theirs, end every worker.

        What waits in the kernel's queue by now is still handed to them.

        Args:
            timeout: Seconds until what is left is killed; one more than *drain_timeout*
                by default.

        Returns:
            How many connections were finished and cut off meanwhile, and how many
            workers had to be killed by SIGKILL.

        Raises:
            ValueError: If *timeout* is negative.
            RuntimeError: If the cluster was started in another event loop.

        Cancellation:
            Safe: the close goes on without the caller.

        Concurrency:
            Any number of tasks may close.  They share one result, and an earlier end
            tightens what the others asked for.
        """
        if timeout is None:
            timeout = self._drain_timeout + _GRACE
        if not timeout >= 0:
            raise ValueError(f"timeout must be >= 0 seconds, not {timeout}")
        summary = await self._life.close(Finish.ALL, timeout)
        supervisor = self._life.supervisor
        if supervisor is None or supervisor.service is None:
            return summary
        finished, cut = supervisor.service.outcome
        return dataclasses.replace(summary, finished=finished, failed=cut)

    async def reload(self) -> RollResult:
        """Replace every worker by a fresh one, which loads its code anew.

        Each serves on until its replacement is ready, then finishes its connections, and
        ends; one worker after the other.  If a replacement does not become ready the
        reload ends there: the other workers stay, and the result says so.

        Raises:
            RollInProgressError: If that is under way already.
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If it was started in another event loop.

        Cancellation:
            Safe: the reload goes on.
        """
        return await asyncio.shield(self._life.open().rotator.roll())

    async def resize(self, workers: int) -> None:
        """Have *workers* workers from now on; return when there are.

        Whoever is too many finishes its connections first, one worker after the other.

        Raises:
            ValueError: If there is to be none.
            TypeError: If *workers* is no int.
            PoolClosedError: If the cluster is closed, or is before it has that size.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If it was started in another event loop.

        Cancellation:
            Safe: the cluster goes on towards that size.
        """
        check_int("workers", workers, at_least=1)
        rotator = self._life.open().rotator
        await asyncio.shield(rotator.resize(workers, workers))

    # What passes between the master and the workers.

    async def send(self, worker: int, value: object) -> None:
        """Send a message to the worker in a slot; wait while it has too many.

        Raises:
            NoWorkerError: If there is none that is ready, or it ends before the message
                is sent.
            ValueError: If the message is too large (1 MiB).
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            Exception: Whatever pickling *value* raises.

        Cancellation:
            Safe: the message is sent whole, or not at all.
        """
        service = self._service()
        payload = dumps(value)
        if len(payload) > MAX_MESSAGE:
            raise ValueError(
                f"a message of {len(payload)} bytes is longer than the {MAX_MESSAGE} "
                "that may be sent"
            )
        line = service.lines.get(worker)
        if line is None or not await line.send(payload):
            raise NoWorkerError(worker)

    def messages(self) -> AsyncIterator[Message]:
        """Return an iterator over what workers send, which waits for the next.

        Each message is for one of those who iterate.  A worker that has sent 64 which
        nobody has taken waits.  It ends with the cluster.

        Raises:
            PoolClosedError: If the cluster was never started.
        """
        service = self._life.running().service
        assert service is not None
        return _Messages(service.mail.messages, self.name)

    async def send_socket(self, worker: int, sock: socket.socket) -> None:
        """Send a copy of a socket to the worker in a slot; return when it is there.

        If that worker dies before it has it, or has no descriptor for it, it goes to
        another one.

        Raises:
            NoWorkerError: If there is no such worker, or no other.
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.

        Cancellation:
            The socket may arrive nevertheless.
        """
        await self._service().spreader.send(worker, sock)

    def sockets(self) -> AsyncIterator[tuple[int, socket.socket]]:
        """Return an iterator over the sockets that workers send, each with its slot.

        What nobody has taken is closed with the cluster.

        Raises:
            PoolClosedError: If the cluster was never started.
        """
        service = self._life.running().service
        assert service is not None
        return service.mail.sockets

    async def stacks(self) -> dict[int, str]:
        """Return where the threads of all workers are, by slot.

        Those of workers that cannot say so, since they are stopped, are missing.

        Raises:
            PoolClosedError: If the cluster was never started.

        Cancellation:
            Safe.
        """
        return await self._life.running().where()

    # What it tells.

    def events(self, *, buffer: int = 1000) -> EventStream[Event]:
        """Return an async iterator over the cluster's events from now on.

        See :meth:`asyncpool.Pool.events`.

        Raises:
            PoolClosedError: If the cluster was never started.
        """
        check_int("buffer", buffer, at_least=1)
        return self._life.running().hub.listen(buffer)

    def stats(self) -> ClusterStats:
        """Return the cluster as it stands, and what it went through."""
        supervisor = self._life.supervisor
        if supervisor is None:
            return ClusterStats(
                state="closed" if self._life.closed_unused else "new",
                workers=self._config.workers[0],
                spread=self._spread,
                addresses=(),
                handed=0,
                refused=0,
                crashes=0,
                restarts=0,
                spawned=0,
                slots=(),
            )
        service, pool = supervisor.service, supervisor.stats()
        assert service is not None
        slots: list[WorkerStats] = []
        for slot in pool.slots:
            if slot.state == SlotState.RETIRED.value:
                continue
            there = service.figures(slot.slot)
            slots.append(
                WorkerStats(
                    slot=slot.slot,
                    generation=slot.generation,
                    pid=slot.pid,
                    state=slot.state,
                    ready=there.ready,
                    connections=there.connections,
                    handed=there.had,
                    uptime=there.uptime,
                    memory=0 if slot.pid is None else private_memory(slot.pid),
                )
            )
        return ClusterStats(
            state=pool.state,
            workers=pool.workers,
            spread=self._spread,
            addresses=self.addresses,
            handed=service.spreader.core.served,
            refused=service.spreader.core.refused,
            crashes=pool.crashes,
            restarts=pool.restarts,
            spawned=pool.spawned,
            slots=tuple(slots),
        )

    async def __aenter__(self) -> Self:
        """Start the cluster, see :meth:`start`."""
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the cluster: it is drained, or killed if an error leaves.

        Cancellation:
            Kills what is left, and returns when it is gone.
        """
        await self._life.leave(error, self.close)

    def __repr__(self) -> str:
        s = self.stats()
        ready = sum(slot.ready for slot in s.slots)
        where = ", ".join(s.addresses) or "no address"
        return f"<Cluster {self.name} {s.state}: {ready}/{s.workers} workers, {where}>"

    def _service(self) -> Service:
        service = self._life.open().service
        assert service is not None
        return service


class _Messages:
    """The messages of workers, as users see them."""

    def __init__(self, inbox: Inbox[tuple[Line, bytes]], name: str) -> None:
        self._inbox = inbox
        self._name = name

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while True:
            line, payload = await anext(self._inbox)
            line.consumed()
            try:
                value = pickle.loads(payload)  # noqa: S301 - workers are trusted
            except Exception:
                _LOGGER.exception(
                    "cluster %s cannot read a message of worker %d and drops it",
                    self._name,
                    line.slot,
                )
                continue
            return Message(line.slot, line.generation, value)


def _pack(target: str | Callable[..., object]) -> str | bytes:
    """Bring what workers are to run into the form in which they are told.

    Raises:
        ValueError: If it is a name of nothing.
        TypeError: If it is neither a name nor callable.
        JobNotPicklableError: If it cannot be pickled, or is too large.
    """
    if isinstance(target, str):
        module, colon, name = target.partition(":")
        if not (module and colon and name):
            raise ValueError(
                f"target must be 'package.module:function', not {target!r}"
            )
        return target
    if not callable(target):
        raise TypeError(f"target must be a function, or its name, not {target!r}")
    try:
        payload = dumps(target)
    except Exception as error:
        raise JobNotPicklableError(
            f"target cannot be pickled: {error}", direction="arguments", name="target"
        ) from error
    if len(payload) > MAX_INITIALIZER:
        raise JobNotPicklableError(
            f"target has {len(payload)} bytes when pickled, and {MAX_INITIALIZER} is "
            "the most",
            direction="arguments",
            name="target",
        )
    return payload
