"""The figures of a pool, taken together from the parts that have them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from asyncpool._core.slots import ALIVE, Slot
from asyncpool._engine.machine import cpu_time
from asyncpool._engine.worker import WorkerHandle
from asyncpool._wire.posix import memory_at_most
from asyncpool.enums import JobOutcome, RunState, SlotState
from asyncpool.stats import PoolStats, RunningJob, SlotStats

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine
    from asyncpool._engine.job import PoolJob
    from asyncpool._engine.registry import JobRegistry


T = TypeVar("T")


# How often a thread begins again if the event loop changes a table while the thread reads it.
# That happens to one read in a thousand while the loop is as busy as it can be.
_READS = 10


def pool_stats(engine: Engine) -> PoolStats:
    """Return the figures of the pool.

    It reads two files of ``/proc`` for each worker, which takes some 30 us.  Any thread may
    call it beside the event loop.

    Args:
        engine: The pool's engine.
    """
    return read_beside_loop(lambda: _read(engine))


def read_beside_loop(read: Callable[[], T]) -> T:
    """Return what *read* does, in whatever thread, while the event loop may change the tables."""
    for _ in range(_READS - 1):
        # "dictionary changed size during iteration", or what it was to read next is gone
        with suppress(RuntimeError, KeyError):
            return read()
    return read()


def _read(engine: Engine) -> PoolStats:
    core, registry, now = engine.core, engine.registry, monotonic()
    states = [_state_of(slot) for slot in core.slots]
    totals, unpacking = registry.figures, core.closing.unpacking

    def is_queued(job: PoolJob[Any]) -> bool:
        return job.slot is None and job.id not in unpacking

    functions = totals.functions.stats()
    return PoolStats(
        state=_run_state(engine),
        workers=core.lifecycle.sizing.size,
        idle=states.count(SlotState.IDLE),
        busy=states.count(SlotState.BUSY),
        queued=core.waiting,
        oldest_queued=oldest_queued(registry, now, is_queued) if core.waiting else 0.0,
        submitted=registry.submitted,
        completed=registry.completed,
        failed=registry.failed,
        cancelled=totals.functions.count(JobOutcome.CANCELLED),
        refused=totals.refused,
        timeouts=totals.functions.count(JobOutcome.TIMEOUT),
        retries=sum(each.retries for each in totals.functions),
        crashes=sum(totals.crash_kinds.values()),
        crash_kinds=dict(totals.crash_kinds),
        exits=dict(totals.exits),
        restarts=core.lifecycle.restarts,
        takeovers=sum(each.takeovers for each in totals.functions),
        spawned=totals.spawned,
        started=totals.starts.histogram(),
        exited_cpu=totals.exited_cpu,
        loop_lag=engine.lag.histogram(),
        dropped_events=engine.hub.dropped,
        shared_memory=engine.segments.total,
        lost_clients=totals.lost_clients,
        refused_clients=totals.refused_clients,
        functions=functions,
        clients=tuple(client for agent in totals.agents for client in agent()),
        slots=tuple(
            _slot_stats(engine, slot, engine.handles.get(slot.index), now)
            for slot in core.slots
            if slot.state is not SlotState.UNUSED
        ),
    )


def _run_state(engine: Engine) -> RunState:
    core = engine.core
    if core.closing.over:
        return RunState.CLOSED
    if core.broken is not None:
        return RunState.BROKEN
    closes = core.closing.finish is not None
    return RunState.CLOSING if closes else RunState.RUNNING


def oldest_queued(
    registry: JobRegistry, now: float, is_queued: Callable[[PoolJob[Any]], bool]
) -> float:
    """Return for how long the oldest queued job has waited, in seconds; 0 if there is none."""
    # The registry has them in the order in which they came.  So this ends early: only the few
    # jobs before the oldest queued one are with a worker, or have their outcome unpickled.
    for job in filter(is_queued, registry.jobs.values()):
        return max(0.0, now - job.queued_at)
    return 0.0


def _slot_stats(
    engine: Engine, slot: Slot, handle: WorkerHandle | None, now: float
) -> SlotStats:
    has_process = handle is not None and slot.state in ALIVE
    pid = handle.pid if handle is not None and has_process else None
    running = () if handle is None else _running(engine, slot, handle, now)
    return SlotStats(
        slot=slot.index,
        generation=slot.generation,
        pid=pid,
        state=_state_of(slot),
        seconds=0.0 if handle is None else max(0.0, now - handle.since),
        job_id=slot.in_flight.head,
        job_ids=slot.in_flight.running,
        running=running,
        jobs=slot.in_flight.ended,
        uptime=now - handle.started_at if handle is not None and has_process else 0.0,
        cpu=0.0 if pid is None else cpu_time(pid),
        memory=0 if pid is None else memory_at_most(pid),
    )


def _running(
    engine: Engine, slot: Slot, handle: WorkerHandle, now: float
) -> tuple[RunningJob, ...]:
    # A job whose caller has given it up is in no table any more, and still runs.
    jobs = filter(None, map(engine.registry.jobs.get, slot.in_flight.running))
    lanes = slot.in_flight.concurrency > 1
    return tuple(
        RunningJob(
            job_id=job.id,
            function=job.title,
            attempt=job.attempt,
            # In one lane it has begun when the job before it has ended.
            seconds=max(0.0, now - (job.sent_at if lanes else handle.since)),
        )
        for job in jobs
    )


def _state_of(slot: Slot) -> SlotState:
    # Between two calls of a session its worker is idle, but no other job may use it.
    reserved = slot.session is not None and slot.state is SlotState.IDLE
    return SlotState.BUSY if reserved else slot.state
