"""The figures of a pool, as :meth:`asyncpool.Pool.stats` returns them.

All of it is plain frozen data.  What only grows (jobs by outcome, crashes, CPU time of workers
that are gone) survives the workers that it came from; what belongs to a worker is in the
:class:`SlotStats` of its slot, and goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from asyncpool._dataclass import dataclass
from asyncpool.enums import CrashKind, JobOutcome, RunState, SlotState
from asyncpool.events import Via

__all__ = [
    "ClientStats",
    "FunctionStats",
    "Histogram",
    "NodeStats",
    "PoolStats",
    "RunningJob",
    "SlotStats",
]

# Below it there is only what took less than a microsecond.
_LEAST_BOUND = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How often there were durations of which length.

    Attributes:
        bounds: The upper bound of each bucket, in seconds: powers of two, in microseconds.
            A duration that equals a bound is in the next bucket.
        counts: How many durations each bucket has, none of them counted twice.
        total: The sum of all durations, in seconds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many durations there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Their mean in seconds; 0 if there were none."""
        return self.total / self.count if self.counts else 0.0

    def quantile(self, share: float) -> float:
        """Return the seconds that a *share* of the durations, 0 to 1, does not exceed.

        It is an estimate: within a bucket the durations count as spread evenly.  0 if there
        were none.

        Raises:
            ValueError: If *share* is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share must be between 0 and 1, not {share!r}")
        rank = share * self.count
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count and rank <= count:
                least = bound / 2 if bound > _LEAST_BOUND else 0.0
                return least + (bound - least) * rank / count
            rank -= count
        return 0.0


NO_DURATIONS = Histogram(bounds=(), counts=(), total=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionStats:
    """The jobs of one function that have ended.

    A pool keeps these figures for its first 200 functions; the jobs of all others count as
    those of ``"other"``.

    Attributes:
        function: Its name, such as ``"shop.images.resize"``.
        via: How it is called.  With ``"map"`` a job is several items that travel together;
            items that travel alone count under ``"submit"``.
        jobs: How many jobs have ended with each outcome.
        retries: Attempts after one that raised.
        takeovers: Attempts after one whose worker has died.
        items: The items of maps that have an outcome, if *via* is ``"map"``.
        run: How long those attempts ran that a worker has brought to an outcome.
        wait: How long these attempts waited before they began, in the queue and in the
            worker.
    """

    function: str
    via: Via
    jobs: Mapping[JobOutcome, int]
    retries: int
    takeovers: int
    items: int
    run: Histogram
    wait: Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a worker runs.

    Attributes:
        job_id: Its number.
        function: What it calls.
        attempt: Which attempt it is, counting from 1.
        seconds: How long it has been running.
    """

    job_id: int
    function: str
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStats:
    """One slot as it stands.

    Attributes:
        slot: Its number.
        generation: Which worker of the slot this is, counting from 1.
        pid: The worker's process, or ``None``.
        state: Where it is in its life.
        seconds: How long it has been in that state.
        job_id: What its worker runs, if anything.
        job_ids: All that it runs at once.
        running: The same jobs, with their functions.
        jobs: How many jobs the worker has brought to an outcome.
        uptime: Seconds since the worker was started; 0 without one.
        cpu: Seconds of CPU time that the worker has used; 0 where ``/proc`` is missing.
        memory: Bytes of memory of the worker, with pages that it shares with the launcher and shared
            memory that it has mapped; 0 where ``/proc`` is missing.
    """

    slot: int
    generation: int
    pid: int | None
    state: SlotState
    seconds: float
    job_id: int | None
    job_ids: tuple[int, ...]
    running: tuple[RunningJob, ...]
    jobs: int
    uptime: float
    cpu: float
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """One agent of a pool whose workers belong to agents.

    Attributes:
        name: Its name.
        first_slot: What is added to the slots of its workers.
        suspected: Whether it has been silent for so long that it gets no more jobs.
        silent: Seconds since it was heard.
        jobs: How many jobs of this client it has.
        age: Seconds since it told the figures that follow; ``None`` if it has not.
        workers: How many workers its pool aims at.
        idle: How many of them are idle.
        busy: How many run a job, of whichever client.
        queued: How many jobs wait in its pool.
        crashes: How many workers have crashed.
        restarts: How many were replaced after that.
        cpu: Seconds of CPU time of its workers, also of those that are gone.
        run: How long attempts ran there, of all functions and whichever client.
        memory: Bytes of memory of its workers, the sum of ``SlotStats.memory``.
        clock_ahead: Seconds that its monotonic clock is ahead of that of this process.
        clock_error: By how many seconds that may be wrong, either way; ``None`` if nothing is
            known.  The times of its jobs in traces and events are as good as that.
    """

    name: str
    first_slot: int
    suspected: bool
    silent: float
    jobs: int
    age: float | None
    workers: int
    idle: int
    busy: int
    queued: int
    crashes: int
    restarts: int
    cpu: float
    memory: int
    clock_ahead: float
    clock_error: float | None
    run: Histogram = NO_DURATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStats:
    """One client of a shared pool.

    Attributes:
        name: Its process and its number, ``"4711/2"`` for the second client of the pool.
        pid: Its process; ``None`` if that is on another machine, or in another container.
        waiting: How many of its jobs wait for their turn.
        jobs: How many more the pool has.
        ended: How many have ended since it came.
    """

    name: str
    pid: int | None
    waiting: int
    jobs: int
    ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """A pool as it stands, and what it went through since its start.

    Attributes:
        state: Where it is in its life.
        workers: How many workers there are to be, by now if that varies.
        idle: Workers that wait for a job.
        busy: Workers that run one.
        queued: Jobs in the queue.
        oldest_queued: Seconds that the oldest of them has waited; 0 if there is none.
        submitted: Jobs accepted; each is counted once below or still open.
        completed: Jobs that returned or raised: an outcome of their own.
        failed: Jobs that the pool could not bring to an outcome.
        cancelled: Jobs that their callers cancelled.
        refused: Calls that the pool did not take: it was full, broken or closed.  They are
            not among *submitted*.
        timeouts: Jobs whose time was over.
        retries: Attempts after one that raised.
        crashes: Unplanned deaths of workers, failed starts included.
        crash_kinds: The same, by kind.
        exits: All ends of workers by cause: ``"crash"``, or the *reason* of
            :class:`asyncpool.events.Exited` without what it says of a job or a call
            (``"max_jobs"``, ``"roll"``, ``"timeout"``, ``"retire_worker"`` and so on).
        restarts: Processes started to replace another one.
        takeovers: Jobs that another worker takes over because theirs died, or was killed at a time
            limit, while they ran or were next.
        spawned: Processes started.
        started: How long workers took from their start until they were ready.
        exited_cpu: Seconds of CPU time that the workers have used which are gone.
        loop_lag: How late the event loop has run what was due, measured once a second while
            jobs are open.
        dropped_events: Events that slow listeners of ``events()`` have missed.
        shared_memory: Bytes of memory shared with workers, for large arguments and
            results, whether in use or kept for the next ones.
        lost_nodes: Agents that were lost, or could not be used, if the workers belong to agents.
        lost_clients: Clients of a shared pool that were gone, or not heard, while they had jobs.
        refused_clients: Clients of a shared pool that did not come in, or were cut off.
        functions: The jobs that have ended, by function.
        slots: The slots, one by one.
        nodes: The agents, if the workers belong to several; else none.
        clients: The clients that share the pool.
    """

    state: RunState
    workers: int
    idle: int = 0
    busy: int = 0
    queued: int = 0
    oldest_queued: float = 0.0
    submitted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    timeouts: int = 0
    retries: int = 0
    crashes: int = 0
    crash_kinds: Mapping[CrashKind, int] = field(default_factory=dict)
    exits: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    takeovers: int = 0
    spawned: int = 0
    started: Histogram = NO_DURATIONS
    exited_cpu: float = 0.0
    loop_lag: Histogram = NO_DURATIONS
    dropped_events: int = 0
    shared_memory: int = 0
    lost_nodes: int = 0
    lost_clients: int = 0
    refused_clients: int = 0
    functions: tuple[FunctionStats, ...] = ()
    slots: tuple[SlotStats, ...] = ()
    nodes: tuple[NodeStats, ...] = ()
    clients: tuple[ClientStats, ...] = ()
