"""The configuration of a supervisor, made from the options of its pool or cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from asyncpool._core.policies.job_options import OPTIONS
from asyncpool._core.policies.worker_env import WorkerEnv
from asyncpool._core.supervision.lifecycle import STOP_GRACE
from asyncpool._core.wire.frames import MAX_PAYLOAD
from asyncpool._core.wire.messages import WorkerConfig
from asyncpool._runtime.base.machine import module_path
from asyncpool._runtime.launcher.script import main_script
from asyncpool._runtime.options.pool_options import PoolOptions
from asyncpool._runtime.options.worker_options import WorkerOptions

if TYPE_CHECKING:  # few pools have these
    from asyncpool._core.codec.data_only import DataOnly
    from asyncpool._runtime.launcher.handover import Handover
    from asyncpool._runtime.options.propagation import Propagation
    from asyncpool._runtime.pool.engine import Engine
    from asyncpool._runtime.sandbox.confinement import Confinement
    from asyncpool._runtime.worker.handle import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig(WorkerOptions):
    """The options of the workers, and what a pool or a cluster adds.

    See :class:`asyncpool.Pool` for the meaning of its options.

    Attributes:
        workers: The least and the greatest number of workers.
        worker: The configuration of each worker.
        propagation: The context variables that travel with jobs, if there are any.
        stop_grace: Seconds that a worker has to end when it is asked to.
        end_grace: Seconds that it has if the whole pool ends; ``None`` for *stop_grace*.
        serving: In a cluster, makes what its workers do in place of jobs.
        handover: The initializer that each worker calls first, with the descriptors that it gets.
        data: What a pool with a codec adds to its functions, if this one has a codec.
        confinement: The sandbox of the workers, if they have one.
        worker_env: The environment variables of the workers, if they have others.
        fresh: Whether each job has a new worker.
    """

    workers: tuple[int, int]
    worker: WorkerConfig
    max_unavailable: int = 0
    idle_timeout: float = 60.0
    max_queued: int | None = None
    max_shared_memory: int = 0
    propagation: Propagation | None = None
    stop_grace: float = STOP_GRACE
    end_grace: float | None = None
    serving: Callable[[Engine, WorkerConfig], Serving] | None = None
    handover: Handover | None = None
    data: DataOnly | None = None
    confinement: Confinement | None = None
    worker_env: WorkerEnv | None = None
    fresh: bool = False

    @property
    def fork(self) -> bool:
        """Whether workers are forked from a launcher that has imported *preload*."""
        return self.launcher == "forkserver"

    @property
    def launcher_imports(self) -> bool:
        """Whether workers find what the launcher has imported, *preload* and the script.

        A fresh interpreter finds nothing.  And a worker with environment variables of its own
        has to set them before any import.
        """
        return self.fork and not (self.worker_env and self.worker_env.varies)

    @property
    def untrusted(self) -> bool:
        """Whether the pool refuses results in memory that workers can still write into.

        A pool with a codec takes them, since the codec copies that memory when it makes the
        values.
        """
        return self.confinement is not None and self.data is None

    @property
    def wait_for_all(self) -> bool:
        """Whether the start waits until all workers are ready."""
        return self.ready == "all"

    @property
    def title(self) -> str:
        """The name in logs and errors."""
        return f"{'pool' if self.serving is None else 'cluster'} {self.name}"


def pool_config(options: PoolOptions) -> SupervisorConfig:
    """Return the configuration of a pool's supervisor.

    Raises:
        JobNotPicklableError: If the initializer, its arguments or the hook around jobs cannot
            be pickled.
        ValueError: If these are too large, or if a context variable cannot be found.
        TypeError: If *propagate* names something that is no context variable.
        UnsupportedPlatformError: If this machine cannot enforce the sandbox.
    """
    # This comes first.  It looks at __main__, which decides how the initializer is pickled below.
    worker = worker_config(
        options,
        max_payload=MAX_PAYLOAD
        if options.max_message_size is None
        else options.max_message_size,
    )
    data = options.data
    if data is not None:
        from asyncpool._core.codec.function_names import check_name  # noqa: PLC0415 - few have one

        for name in ("initializer", "around"):
            check_name(name, getattr(options, name))
    confinement, shared = None, options.shared()
    if options.sandbox is not None:
        from asyncpool._runtime.sandbox.confinement import confine  # noqa: PLC0415 - few have one

        shared["preload"] += _needed(options)
        confinement = confine(options.sandbox, options.worker_limits)
        worker = worker._replace(
            sandbox=confinement.plan,
            script=confinement.script,
            script_first=confinement.script_first,
        )
    handover, hook, propagation = None, None, None
    if options.initializer is not None or options.around is not None:
        from asyncpool._runtime.launcher.handover import Handover, packed_hook  # noqa: PLC0415

        if options.initializer is not None:
            handover = Handover(options.initializer, options.initargs)
        hook = packed_hook(options.around)
    if options.propagate:
        from asyncpool._runtime.options.propagation import Propagation  # noqa: PLC0415

        propagation = Propagation(options.propagate)
    return SupervisorConfig(
        **shared,
        workers=options.workers,
        worker=worker._replace(
            initializer=None if handover is None else handover.payload,
            concurrency=options.concurrency,
            around=hook,
            codec=b"" if data is None else data.config,
            options=tuple(OPTIONS),
        ),
        max_unavailable=options.max_unavailable,
        idle_timeout=options.idle_timeout,
        max_queued=options.max_queued,
        max_shared_memory=options.max_shared_memory,
        propagation=propagation,
        handover=handover,
        data=data,
        confinement=confinement,
        worker_env=options.worker_env,
        fresh=options.fresh,
    )


def _needed(options: PoolOptions) -> tuple[str, ...]:
    """Return what workers import for themselves, and could not import in a sandbox."""
    names = ["uvloop"] if options.worker_loop == "uvloop" else []
    if options.codec is not None and find_spec("msgspec") is not None:
        names.append("msgspec")
    return tuple(names)


def worker_config(options: WorkerOptions, *, max_payload: int) -> WorkerConfig:
    """Return the configuration of the workers of a pool or a cluster.

    Args:
        options: Its options.
        max_payload: The most bytes that a frame may carry.
    """
    limits = options.worker_limits
    return WorkerConfig(
        sys_path=module_path(),
        initializer=None,
        max_payload=max_payload,
        nice=limits.nice,
        cpus=limits.cpus,
        rlimits=tuple(limits.rlimits.items()),
        loop=options.worker_loop,
        script=main_script(),
        memory=limits.memory_at_start,
    )
