"""The cluster: what the master of a server holds."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Mapping,
)
from functools import partial
from io import IOBase
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from asyncpool._cluster import log_messages as say
from asyncpool._cluster.addresses import ignored, parse_all
from asyncpool._cluster.link import (
    MAX_MESSAGE,
    Inbox,
    Received,
    check_message,
    message_of,
    thing_of,
)
from asyncpool._cluster.listeners import Listeners, addresses_locked
from asyncpool._cluster.service import Service, Spread, WorkerLink
from asyncpool._core import checks
from asyncpool._core.checks import option
from asyncpool._core.endings import Finish
from asyncpool._core.options import RestartPolicy, WorkerLimits
from asyncpool._dataclass import dataclass
from asyncpool._engine.deaths import CrashCallback
from asyncpool._engine.engine import PoolLife
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.loop import shielded
from asyncpool._engine.machine import (
    DEFAULT_LAUNCHER,
    check_limits,
    check_platform,
    usable_cpus,
)
from asyncpool._engine.options import (
    EngineConfig,
    OutputMode,
    anything,
    name_or_number,
    worker_config,
)
from asyncpool._engine.stats import read_beside_loop
from asyncpool._wire.log_records import LogMessage
from asyncpool._wire.messages import MAX_INITIALIZER, WorkerConfig
from asyncpool._wire.pickling import dumps_call
from asyncpool._wire.posix import (
    ReceivedFile,
    ReceivedSocket,
    check_beside,
    file_descriptor,
    socket_descriptor,
)
from asyncpool.cluster._stats import ClusterStats, cluster_stats
from asyncpool.enums import RunState
from asyncpool.errors import JobNotPicklableError, NoWorkerError
from asyncpool.events import CloseSummary, RollResult
from asyncpool.pool import Supervised

if TYPE_CHECKING:
    from asyncpool._cluster.worker import Worker
    from asyncpool._engine.engine import Engine


# Seconds that a worker which is drained has beyond its own time.
_GRACE = 1.0

_ADDRESSES = "an address, or several, such as '127.0.0.1:8000'"


def _workers(name: str, value: int | None) -> tuple[int, int]:
    workers = usable_cpus() if value is None else value
    checks.at_least(1)(name, workers)
    return workers, workers


def _bind(name: str, value: object) -> tuple[str, ...]:
    addresses = (value,) if isinstance(value, str) else value
    return checks.several(_ADDRESSES, each=str)(name, addresses)


def _limits(name: str, value: object) -> WorkerLimits:
    limits = check_limits(name, value)
    if limits.drain_timeout != WorkerLimits().drain_timeout:
        raise ValueError(
            "worker_limits of a cluster take no drain_timeout: give it to the cluster itself"
        )
    return limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(EngineConfig):
    """What a cluster is told, checked and in shape; see :class:`asyncpool.Cluster`.

    It is what its engine is told, too, before the cluster listens.

    Attributes:
        spread: How connections get to workers; without an address there are none, and
            nothing but ``"handoff"`` makes sense.
    """

    target: str | Callable[..., object] = option(anything)  # pack_target() checks it
    bind: tuple[str, ...] = option(_bind)
    spread: Spread = option(checks.one_of(get_args(Spread)))
    backlog: int = option(checks.at_least(1))
    drain_timeout: float = option(checks.PERIOD)
    reload_drain_timeout: float = option(checks.PERIOD_OR_NONE)


CLUSTER_CHECKS: dict[str, checks.Check] = {
    **checks.table_of(ClusterOptions),
    "workers": _workers,
    "worker_limits": _limits,
    "max_surge": checks.at_least(1),  # a worker serves until there is another
    "name": name_or_number("cluster"),  # last: one that is refused takes no number
}


def cluster_options(given: Mapping[str, Any]) -> ClusterOptions:
    """Return the options of a cluster, which its constructor was given.

    Raises:
        TypeError: If one is of the wrong type.
        ValueError: If one is out of range, or an address makes no sense.
    """
    values = checks.apply(CLUSTER_CHECKS, given)
    if values["reload_drain_timeout"] is None:
        values["reload_drain_timeout"] = values["drain_timeout"]
    if values["bind"]:
        parse_all(values["bind"])
    else:
        values["spread"] = "handoff"
    return ClusterOptions(
        **values,
        worker=worker_config(values, MAX_MESSAGE),
        stop_grace=values["reload_drain_timeout"] + _GRACE,  # while others serve on
        end_grace=values["drain_timeout"] + _GRACE,
    )


def pack_target(target: str | Callable[..., object]) -> str | bytes:
    """Bring what workers are to run into the form in which they are told.

    Raises:
        ValueError: If it is a name of nothing.
        TypeError: If it is neither a name nor callable.
        JobNotPicklableError: If it cannot be pickled, or is too large.
    """
    checks.function("target", target)
    if isinstance(target, str):
        return target
    try:
        payload = dumps_call(target)
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


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a worker: *worker* is its slot, *generation* its number in that slot."""

    worker: int
    generation: int
    value: Any


class Cluster(Supervised):
    """Worker processes that serve, and the master that owns their listening sockets.

    Use it as an async context manager, or call :meth:`start` and :meth:`close`, from
    any tasks of one event loop.

    :class:`asyncpool.Pool` explains in full the arguments that both have.

    Args: Server
        target: What each worker runs as long as it lives: an ``async def serve(worker)``,
            or its name, ``"package.module:serve"``, or the result of a function such as
            :func:`asyncpool.cluster.asgi`.
        bind: An address, or several, to listen on: ``"tcp://127.0.0.1:8000"``, or
            ``"127.0.0.1:8000"`` for short, ``"tcp://[::1]:0"``, ``"unix:///run/x.sock"``,
            ``"fd://3"`` for an inherited socket, ``"systemd:"`` for all sockets that the
            service manager has passed.
        spread: How connections get to workers.  ``"handoff"``: the master accepts, and
            hands each connection to the least busy worker.  ``"shared"``: all workers accept,
            and the kernel decides.
        backlog: How many connections may wait in the kernel's queue.

    Args: Workers
        workers: How many workers; ``None`` means the CPUs that this process may use.
        worker_loop: The event loop of the workers.

    Args: Start of workers
        launcher: How workers are started.
        preload: Modules that are imported before workers are forked; :meth:`reload` does not
            load them anew.
        start_timeout: Seconds that a worker has to become ready.
        ready: What :meth:`start` and ``async with`` wait for: ``"any"`` worker, or ``"all"``.

    Args: Crashes and replacements
        restart_policy: When a dead worker is replaced, and when the cluster gives up.  The crash of
            a worker that has served counts as a crash in the middle of a job.
        worker_limits: When workers are replaced by fresh ones, and what the kernel allows them.
            ``max_jobs`` counts connections that have ended.  Leave out ``drain_timeout``: the
            cluster has its own.
        max_surge: How many workers there may be beyond their number while some are replaced, not
            counting those that finish their connections.
        ping_timeout: Seconds that a worker may go without answering the master's pings,
            and that its event loop may be blocked; ``None`` for no pings.
        on_crash: Called with a :class:`asyncpool.Crash` for each unplanned death.

    Args: Connections at the end
        drain_timeout: Seconds that workers have for their connections when the cluster ends.
        reload_drain_timeout: Seconds that a worker has for its connections when it is
            replaced, or no longer needed, while others serve; as *drain_timeout* if it is ``None``.
            If the cluster ends meanwhile, *drain_timeout* counts from then on.

    Args: Logs
        name: The name of the cluster in logs, and in commands unless :meth:`run` gets another.
        worker_output: Where the lines that workers print go: ``"log"`` or ``"inherit"``.

    Attributes:
        name: The name of the cluster in logs.

    Raises:
        UnsupportedPlatformError: If this platform cannot run a cluster.
        ValueError: If an argument is out of range, or an address makes no sense.
        TypeError: If an argument is of the wrong type.
        JobNotPicklableError: If *target* cannot be pickled.
    """

    def __init__(
        self,
        target: str | Callable[[Worker], Coroutine[Any, Any, object]],
        *,
        bind: str | Iterable[str] = (),
        spread: Spread = "handoff",
        backlog: int = 2048,
        workers: int | None = None,
        worker_loop: Literal["asyncio", "uvloop"] = "asyncio",
        launcher: Literal["forkserver", "spawn"] = DEFAULT_LAUNCHER,
        preload: Iterable[str] = (),
        start_timeout: float = 60.0,
        ready: Literal["any", "all"] = "any",
        restart_policy: RestartPolicy | None = None,
        worker_limits: WorkerLimits | None = None,
        max_surge: int = 1,
        ping_timeout: float | None = 30.0,
        on_crash: CrashCallback | None = None,
        drain_timeout: float = 5.0,
        reload_drain_timeout: float | None = 30.0,
        name: str | None = None,
        worker_output: OutputMode = "log",
    ) -> None:
        check_platform()
        options = self._config = cluster_options(locals())  # by the signature's names
        self.name: str = options.name
        self._target = pack_target(options.target)
        self._log = NamedLog(self.name, f"cluster {self.name}")
        self._life = PoolLife("cluster", self.name)
        self._listeners: Listeners | None = None
        self._made: Service | None = None
        self._worker_log: tuple[int, bytes] | None = None  # of asyncpool serve
        self._began: float | None = None
        self.addresses: tuple[str, ...] = ()

    async def start(self) -> Self:
        """Listen, start the workers, and return when the first one is ready, or all are.

        Raises:
            OSError: If an address cannot be listened on; the text names it.
            ValueError: If the service manager has passed no socket.
            PoolBrokenError: If none can be started, or not all that are waited for; it has
                the crashes.
            PoolClosedError: If the cluster is closed.
            RuntimeError: If the cluster was started in another event loop.

        Cancellation:
            Closes the cluster.

        Concurrency:
            Further calls wait for the first one.
        """
        try:
            await self._life.start(self._listen)
        finally:
            if self._life.engine is None and self._listeners is not None:
                self._listeners.close()
        began, self._began = self._began, None
        if began is not None:
            self._tell_start(time.monotonic() - began)
        return self

    def _tell_start(self, seconds: float) -> None:
        where = ", ".join(self.addresses)
        extra = {"pid": os.getpid(), "addresses": where, "seconds": round(seconds, 3)}
        self._log.now(say.SERVER_READY, extra, where=where or "no address")

    async def _listen(self) -> EngineConfig:
        self._began = time.monotonic()  # by the one call that listens
        await self._open_listeners()

        def serve(engine: Engine, worker: WorkerConfig) -> Service:
            self._made = Service(
                engine, worker, self._target, self._listeners, self._worker_log
            )
            return self._made

        return dataclasses.replace(self._config, serving=serve)

    async def _open_listeners(self) -> None:
        """Listen, if it does not yet; :meth:`close` ends that, even without a start."""
        options = self._config
        if not options.bind or self._listeners is not None:
            return
        async with addresses_locked(options.bind):
            self._listeners = Listeners(options.bind, backlog=options.backlog)
        self.addresses = self._listeners.addresses
        sockets = ignored(parse_all(options.bind), os.environ, os.getpid())
        if sockets:
            self._log.now(say.SOCKETS_IGNORED, {"sockets": sockets})

    async def wait(self) -> None:
        """Return when the cluster is closed.

        Raises:
            PoolBrokenError: When it gives up, since no worker can be kept alive, or it has
                failed itself.
            PoolClosedError: If it was never started.

        Cancellation:
            Safe.
        """
        engine = self._life.running_here()
        await shielded(engine.status.outcome)

    async def run(self, *, control: str | None = None) -> int:
        """Start, obey signals and commands, and return the exit code at the end.

        Args:
            control: The name or path of the control socket; the cluster's name by
                default, ``""`` for none.

        Returns:
            0 after the cluster was stopped; 3 if it has given up or its master has failed; 128
            plus the number of the signal if a signal ended it at once.

        Raises:
            OSError: If the cluster cannot listen.
            TypeError: If *control* is no str.
            RuntimeError: If this is not the main thread.

        Cancellation:
            Ends the cluster at once.
        """
        checks.TEXT.or_none()("control", control)
        from asyncpool.cluster._run import Operation  # noqa: PLC0415 - for main programs only

        return await Operation(self, control=control).run()

    async def close(self, timeout: float | None = None) -> CloseSummary:  # noqa: ASYNC109 - it bounds the drain, not the wait
        """Accept no more connections, let workers finish theirs, and end every worker.

        Connections that wait in the kernel's queue now still get to the workers, unless the workers
        accept on ``worker.listening_sockets``.

        Args:
            timeout: Seconds until the cluster kills the workers that are left; one more than
                *drain_timeout* by default.

        Returns:
            How many connections were finished and cut off meanwhile, and how many
            workers the cluster had to kill by SIGKILL.

        Raises:
            ValueError: If *timeout* is negative.
            TypeError: If *timeout* is no number.
            RuntimeError: If the cluster was started in another event loop.

        Cancellation:
            Safe: the close goes on without the caller.

        Concurrency:
            Any number of tasks may call it, and all get the same result.  The earliest end
            counts.
        """
        if timeout is None:
            timeout = self._config.end_grace
        checks.TIMEOUT("timeout", timeout)
        summary = await self._life.close(Finish.ALL, timeout)
        if self._made is None:
            if self._listeners is not None:
                self._listeners.close()
            return summary
        finished, cut = self._made.close_counts
        return dataclasses.replace(summary, finished=finished, failed=cut)

    async def reload(self) -> RollResult:
        """Replace every worker by a fresh one, which loads its code anew.

        Each worker serves until its replacement is ready, then finishes its connections, and
        ends.  Meanwhile the next one is replaced: *max_surge* at a time, but for those that finish,
        of which there are as many as workers at most.  If a replacement does not become ready the
        reload ends there: the other workers stay, and the result says so.  If a slot has no
        worker since starts have failed, the cluster tries a start there at once.

        Raises:
            RollInProgressError: If a reload is in progress already.
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If the cluster has given up for good.
            RuntimeError: If the cluster was started in another event loop.

        Cancellation:
            Safe: the reload goes on.
        """
        reload = self._life.open_engine(retrying=True).replacement.roll()
        return await shielded(reload)

    async def resize(self, workers: int) -> None:
        """Change the number of workers; return when there are *workers*, and all are ready.

        Surplus workers finish their connections and end.  If starts have failed, the cluster tries
        the next one at once.

        Raises:
            ResizeError: If one of them does not start, or cannot be kept alive.
            ValueError: If *workers* is less than 1.
            TypeError: If *workers* is no int.
            PoolClosedError: If the cluster is closed, or closes before it has that size.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If the cluster was started in another event loop.

        Cancellation:
            Safe: the cluster goes on towards that size, as it does after an error.
        """
        checks.at_least(1)("workers", workers)
        replacement = self._life.open_engine().replacement
        await replacement.resize(workers, workers)

    async def stacks(self) -> dict[int, str]:
        """Return the stacks of the threads of all workers, by slot.

        If a worker has not answered within two seconds, the text says so.

        Raises:
            PoolClosedError: If the cluster was never started.
            RuntimeError: If the cluster was started in another event loop.

        Cancellation:
            Safe.
        """
        return await self._life.running_here().stacks.of_workers()

    def stats(self) -> ClusterStats:
        """Return the figures of the cluster: how it stands, and what happened since its start."""
        engine, service = self._life.engine, self._made
        spread = self._config.spread
        if engine is None or service is None:
            state = RunState.CLOSED if self._life.closed_unused else RunState.NEW
            workers = self._config.workers[0]
            return ClusterStats(state=state, workers=workers, spread=spread)
        read = partial(cluster_stats, engine, service, spread, self.addresses)
        return read_beside_loop(read)

    # Messages, sockets and files, to workers and from them.

    async def send(self, worker: int, value: object) -> None:
        """Send a message to the worker in a slot; wait while it has too many unread ones.

        Raises:
            NoWorkerError: If no worker is ready there, or it ends before the message is sent.
            ValueError: If the message is too large (1 MiB).
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            Exception: Any error of pickling *value*.

        Cancellation:
            Safe: the message is sent whole, or not at all.
        """
        service = self._service()
        payload = check_message(dumps_call(value))
        line = service.links.get(worker)
        if line is None or not line.share.open or not await line.send(payload):
            raise NoWorkerError(worker)

    async def broadcast(self, value: object, *, key: Hashable = None) -> None:
        """Send a message to every worker, and to all later workers.

        Workers that are ready or starting find it among their ``worker.messages()``.  Workers that
        start later, as replacements or since the cluster grows, find it there before all
        other messages.  Draining workers get nothing.  The call waits while one of the workers has
        too many unread messages.

        Args:
            value: Anything that pickle takes.
            key: Of several broadcasts with the same key, such as a topic, only the last
                one is kept for later workers.  The messages that are kept for all keys
                have 64 MiB at the most.

        Raises:
            ValueError: If the message is too large (1 MiB), or too large to keep beside the others.
            TypeError: If *key* is not hashable.
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            Exception: Any error of pickling *value*.

        Cancellation:
            Some workers may get the message, and later workers do.
        """
        service = self._service()
        await service.broadcast(key, check_message(dumps_call(value)))

    def messages(self) -> AsyncIterator[Message]:
        """Return an iterator over the messages of workers, which waits for the next.

        If there are several iterators, each message goes to one of them.  A worker with 64
        unread messages waits before it sends another.  The iterator ends with the cluster.

        Raises:
            PoolClosedError: If the cluster was never started.
            RuntimeError: If it was started in another event loop.
        """

        def read(item: tuple[WorkerLink, bytes]) -> Message:
            return Message(item[0].slot, item[0].generation, message_of(item))

        inbox = self._service(ended=True).queues.messages
        return Received(inbox, read, self._tell_unreadable(say.MESSAGE_UNREADABLE))

    async def send_socket(
        self, worker: int, sock: socket.socket, value: object = None
    ) -> None:
        """Send a copy of a socket to the worker in a slot; return when it is there.

        If that worker dies before it has received the socket, or has no descriptor left, the
        cluster sends the socket to another worker.

        Args:
            worker: The slot.
            sock: A socket of any kind.
            value: Anything that pickle takes, 64 KiB at the most when pickled.  It becomes the
                attribute ``value`` of the socket that the worker receives.

        Raises:
            NoWorkerError: If the slot has no worker, or no other worker can take it.
            TypeError: If *sock* is no socket.
            OSError: If *sock* is closed, or this process has no descriptor left for a copy.
            ValueError: If *value* is too large.
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            Exception: Any error of pickling *value*.

        Cancellation:
            The socket may arrive nevertheless.
        """
        await self._send_descriptor(worker, socket_descriptor(sock), value)

    async def send_file(
        self, worker: int, file: IOBase | int, value: object = None
    ) -> None:
        """Send a copy of a file to the worker in a slot; return when it is there.

        The worker gets a raw binary file that shares its offset and flags with *file*.
        Everything else is as in :meth:`send_socket`.

        Args:
            worker: The slot.
            file: An open file or pipe, or any other descriptor but a socket's or a
                directory's.
            value: As in :meth:`send_socket`.

        Raises:
            NoWorkerError: If the slot has no worker, or no other worker can take it.
            TypeError: If *file* is none of these.
            OSError: If *file* is closed, or this process has no descriptor left for a copy.
            ValueError: If *value* is too large, or *file* a closed object.
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            Exception: Any error of pickling *value*.

        Cancellation:
            The file may arrive nevertheless.
        """
        await self._send_descriptor(worker, file_descriptor(file), value)

    async def _send_descriptor(self, worker: int, fd: int, value: object) -> None:
        service = self._service()
        payload = b"" if value is None else check_beside(dumps_call(value))
        await service.balancer.send(worker, fd, payload)

    def incoming_sockets(self) -> AsyncIterator[tuple[int, ReceivedSocket]]:
        """Return an iterator over the sockets that workers send, each with its slot.

        The attribute ``value`` of a socket is the value that the worker sent with it.  Sockets
        that are not taken are closed with the cluster.

        Raises:
            PoolClosedError: If the cluster was never started.
            RuntimeError: If it was started in another event loop.
        """
        return self._received(self._service(ended=True).queues.sockets)

    def incoming_files(self) -> AsyncIterator[tuple[int, ReceivedFile]]:
        """Return an iterator over the files that workers send, each with its slot.

        See :meth:`incoming_sockets`.

        Raises:
            PoolClosedError: If the cluster was never started.
            RuntimeError: If it was started in another event loop.
        """
        return self._received(self._service(ended=True).queues.files)

    def _received(self, inbox: Inbox[Any]) -> Received[Any, Any]:
        tell = self._tell_unreadable(say.DESCRIPTOR_UNREADABLE)
        return Received(inbox, lambda item: (item[0].slot, thing_of(item)), tell)

    def _tell_unreadable(self, record: LogMessage) -> Callable[[Any, Exception], None]:
        def tell(item: tuple[Any, ...], error: Exception) -> None:
            self._log.now(record, {"slot": item[0].slot}, error=error)

        return tell

    async def __aenter__(self) -> Self:
        """Start the cluster, see :meth:`start`."""
        return await self.start()

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the cluster: drain it, or kill it if an exception leaves the context.

        Cancellation:
            Kills the workers that are left, and returns when they have ended.
        """
        await self._life.exit_context(error, self.close)

    def __repr__(self) -> str:
        s = self.stats()
        ready = sum(slot.ready for slot in s.slots)
        where = ", ".join(s.addresses) or "no address"
        return f"<Cluster {self.name} {s.state}: {ready}/{s.workers} workers, {where}>"

    def _service(self, *, ended: bool = False) -> Service:
        """Return the service, which knows the workers, also if the cluster has *ended*.

        Raises:
            PoolClosedError: If the cluster is closed, or was never started.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If the cluster was started in another event loop.
        """
        if ended:
            self._life.running_here()
        else:
            self._life.open_engine()
        assert self._made is not None
        return self._made
