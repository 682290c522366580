"""The parts that a pool is made of."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from asyncpool._core.supervision.supervision import Supervision
from asyncpool._core.wire.messages import WorkerConfig
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.output.log_records import explicit_levels
from asyncpool._runtime.pool.pings import Pings
from asyncpool._runtime.pool.profiles import Profiles
from asyncpool._runtime.pool.replacement import WorkerReplacement
from asyncpool._runtime.pool.sessions import Sessions
from asyncpool._runtime.state.admission import Admission
from asyncpool._runtime.state.config import SupervisorConfig
from asyncpool._runtime.state.draining import Draining
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool._runtime.state.status import PoolStatus
from asyncpool._runtime.traffic.broadcasts import Broadcaster
from asyncpool._runtime.traffic.traffic import Traffic
from asyncpool._runtime.worker.serving import Serving
from asyncpool._runtime.worker.stacks import Stacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one pool.  Each part knows at most those above it.

    Attributes:
        state: What all of them share.
        threads: Pickle and copy large objects.
        serving: What workers do instead of jobs, if they serve.
        status: Whether the pool is ready, broken or over.
        admission: Checks whether the pool takes a job.
        draining: Keeps the pool open while it drains.
        traffic: Brings jobs to workers and back.
        replacement: Retires, replaces and kills workers.
        sessions: Gives workers to sessions.
        broadcasts: Has every worker make a call.
        stacks: Asks workers for their stacks.
        profiles: Has workers sample their stacks.
        pings: Pings workers; ``None`` if there are no pings.
    """

    state: PoolState
    threads: Threads
    serving: Serving | None
    status: PoolStatus
    admission: Admission
    draining: Draining
    traffic: Traffic
    replacement: WorkerReplacement
    sessions: Sessions
    broadcasts: Broadcaster
    stacks: Stacks
    profiles: Profiles
    pings: Pings | None


def assemble(config: SupervisorConfig, hub: PoolHub) -> Parts:
    """Return the parts of a pool that lives in the running event loop.

    Args:
        config: The options of the pool.
        hub: Publishes its events.
    """
    loop, worker = asyncio.get_running_loop(), _first_config(config)
    state = PoolState(loop=loop, config=config, core=_core_of(config), hub=hub)
    threads, admission, draining = Threads(loop), Admission(state), Draining(state)
    traffic = Traffic(state, admission, threads)
    timeout = config.ping_timeout
    return Parts(
        state=state,
        threads=threads,
        serving=None if config.serving is None else config.serving(state, worker),
        status=PoolStatus(state),
        admission=admission,
        draining=draining,
        traffic=traffic,
        replacement=WorkerReplacement(state, threads),
        sessions=Sessions(state, admission, draining, traffic),
        broadcasts=Broadcaster(state, admission, traffic, threads, worker),
        stacks=Stacks(),
        profiles=Profiles(state),
        pings=None if timeout is None else Pings(state, traffic.stack_dumps, timeout),
    )


def _first_config(config: SupervisorConfig) -> WorkerConfig:
    """Return the configuration of workers that are started before any broadcast."""
    levels, disabled = explicit_levels()
    return config.worker._replace(
        levels=levels, disabled=disabled, preload=config.preload
    )


def _core_of(config: SupervisorConfig) -> Supervision:
    """Return the core of a pool with these options."""
    return Supervision(
        workers=config.workers,
        policy=config.restart_policy,
        start_timeout=config.start_timeout,
        limits=config.worker_limits,
        idle_timeout=config.idle_timeout,
        concurrency=config.worker.concurrency,
        max_surge=config.max_surge,
        max_unavailable=config.max_unavailable,
        stop_grace=config.stop_grace,
        end_grace=config.end_grace,
        serving=config.serving is not None,
    )
