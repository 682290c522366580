"""The cluster: what the master of a server holds."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from asyncpool._api.caller import Supervised
from asyncpool._core.base.validation import TEXT, check_type, or_none
from asyncpool._core.cluster import server_messages as say
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.supervision.closing import Finish
from asyncpool._core.wire.messages import WorkerConfig
from asyncpool._runtime.base.arguments import check_int, check_timeout
from asyncpool._runtime.base.callbacks import CrashCallback
from asyncpool._runtime.base.event_loop import shielded
from asyncpool._runtime.base.machine import DEFAULT_LAUNCHER, check_platform
from asyncpool._runtime.cluster.listeners import (
    Listeners,
    addresses_locked,
    open_listeners,
)
from asyncpool._runtime.cluster.service import Service, ServingConfig, Spread
from asyncpool._runtime.options.worker_options import OutputMode
from asyncpool._runtime.pool.lifecycle import SupervisorRunner
from asyncpool._runtime.state.config import SupervisorConfig
from asyncpool.cluster._messenger import Messenger
from asyncpool.cluster._options import (
    cluster_config,
    cluster_options,
)
from asyncpool.cluster._stats import ClusterStats, cluster_stats
from asyncpool.cluster._target import pack_target
from asyncpool.events import CloseSummary, RollResult

if TYPE_CHECKING:
    from asyncpool._observe.cluster_trace import ClusterTrace
    from asyncpool._runtime.state.pool_state import PoolState
    from asyncpool._worker.cluster.worker import Worker


_LOGGER = logging.getLogger("asyncpool")


class Cluster(Messenger, Supervised):
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
            and the kernel decides.  ``"reuseport"``: each worker has a socket of its own with
            the same port, and the kernel divides connections among these.
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
        max_surge: How many workers there may be beyond their number while some are replaced.
        ping_timeout: Seconds that a worker may go without answering the master's pings,
            and that its event loop may be blocked; ``None`` for no pings.
        on_crash: Called with a :class:`asyncpool.Crash` for each unplanned death.

    Args: Connections at the end
        drain_timeout: Seconds that workers have for their connections when the cluster ends.
        reload_drain_timeout: Seconds that a worker has for its connections when it is
            replaced, or no longer needed, while others serve.  ``None`` means *drain_timeout*.
            If the cluster ends meanwhile, *drain_timeout* counts from then on.

    Args: Logs
        name: The name of the cluster in logs, and in commands unless :meth:`run` gets another.
        worker_output: Where the lines that workers print go: ``"log"`` or ``"inherit"``.
        trace: A file that the cluster writes while it lives, and that https://ui.perfetto.dev
            shows: when each worker started, served and drained, crashes, reloads, connections
            and requests.  An older trace in that file is replaced.

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
        reload_drain_timeout: float | None = None,
        name: str | None = None,
        worker_output: OutputMode = "log",
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        check_platform()
        options = self._options = cluster_options(locals())  # by the signature's names
        self.name: str = options.name
        self._config = cluster_config(options)
        self._target = pack_target(options.target)
        self._life = SupervisorRunner("cluster", self.name)
        self._listeners: Listeners | None = None
        self._made: Service | None = None
        self._trace: ClusterTrace | None = None
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
            if self._life.supervisor is None and self._listeners is not None:
                self._listeners.close()
        began, self._began = self._began, None
        if began is not None:
            self._tell_start(time.monotonic() - began)
        return self

    def _tell_start(self, seconds: float) -> None:
        where = ", ".join(self.addresses)
        extra = {
            "pool": self.name,
            "pid": os.getpid(),
            "addresses": where,
            "seconds": round(seconds, 3),
        }
        title, where = f"cluster {self.name}", where or "no address"
        say.SERVER_READY.log(_LOGGER, extra, title=title, where=where)

    async def _listen(self) -> SupervisorConfig:
        self._began = time.monotonic()  # by the one call that listens
        workers, _ = self._config.workers
        options = self._options
        if options.bind:
            async with addresses_locked(options.bind):
                self._listeners = open_listeners(
                    options.bind,
                    backlog=options.backlog,
                    reuseport_groups=workers if options.spread == "reuseport" else 0,
                )
            self.addresses = self._listeners.addresses
        if options.trace is not None and not self._life.closed_unused:
            # Few clusters have one.
            from asyncpool.cluster._trace import begin_trace  # noqa: PLC0415

            hub = self._life.hub
            self._trace = begin_trace(options.trace, self.name, hub, self.stats)
        serving = ServingConfig(
            target=self._target,
            spread=options.spread,
            drain_timeout=options.drain_timeout,
            reload_drain_timeout=options.reload_drain_timeout,
            listeners=self._listeners,
        )

        def serve(state: PoolState, worker: WorkerConfig) -> Service:
            self._made = Service(serving, state, worker)
            return self._made

        return dataclasses.replace(self._config, serving=serve)

    async def wait(self) -> None:
        """Return when the cluster is closed.

        Raises:
            PoolBrokenError: When it gives up, since no worker can be kept alive, or it has
                failed itself.
            PoolClosedError: If it was never started.

        Cancellation:
            Safe.
        """
        supervisor = self._life.running_here()
        await shielded(supervisor.status.outcome)

    async def run(self, *, control: str | None = None) -> int:
        """Start, obey signals and commands, and return the exit code at the end.

        Args:
            control: The name or path of the control socket; the cluster's name by
                default, ``""`` for none.

        Returns:
            0 after the cluster was stopped; 3 if it has given up or its master has failed; 128
            plus the number of the signal if a signal ended it at once.

        Raises:
            OSError: If the cluster cannot listen, or cannot write its trace.
            TypeError: If *control* is no str.
            RuntimeError: If this is not the main thread.

        Cancellation:
            Ends the cluster at once.
        """
        check_type("control", control, or_none(TEXT))
        from asyncpool.cluster._run import run  # noqa: PLC0415 - for main programs only

        return await run(self, control)

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
            timeout = self._options.end_grace
        check_timeout(timeout)
        summary = await self._life.close(Finish.ALL, timeout)
        if self._made is None:
            return summary
        finished, cut = self._made.close_counts
        return dataclasses.replace(summary, finished=finished, failed=cut)

    async def reload(self) -> RollResult:
        """Replace every worker by a fresh one, which loads its code anew.

        Each worker serves until its replacement is ready, then finishes its connections, and
        ends; one worker after the other.  If a replacement does not become ready the
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
        reload = self._life.trying().replacement.roll()
        if self._trace is not None:
            self._trace.follow(reload)
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
        check_int("workers", workers, at_least=1)
        replacement = self._life.open().replacement
        await replacement.resize(workers, workers)

    async def stacks(self) -> dict[int, str]:
        """Return the stacks of the threads of all workers, by slot.

        Workers that cannot write their stacks, since they are stopped, are left out.

        Raises:
            PoolClosedError: If the cluster was never started.
            RuntimeError: If the cluster was started in another event loop.

        Cancellation:
            Safe.
        """
        return await self._life.running_here().where()

    def stats(self) -> ClusterStats:
        """Return the figures of the cluster: how it stands, and what happened since its start."""
        return cluster_stats(
            self._life.supervisor,
            self._made,
            closed=self._life.closed_unused,
            workers=self._config.workers[0],
            spread=self._options.spread,
            addresses=self.addresses,
        )

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
        await self._life.leave(error, self.close)

    def __repr__(self) -> str:
        s = self.stats()
        ready = sum(slot.ready for slot in s.slots)
        where = ", ".join(s.addresses) or "no address"
        return f"<Cluster {self.name} {s.state}: {ready}/{s.workers} workers, {where}>"

    def _service(self) -> Service:
        self._life.open()
        assert self._made is not None
        return self._made

    def _service_here(self) -> Service:
        self._life.running_here()
        assert self._made is not None
        return self._made
