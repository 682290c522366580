"""The figures of a cluster, as plain frozen data, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncpool._cluster.service import Service
from asyncpool._core.figures import CLASSES, RequestFigures
from asyncpool._engine.engine import Engine
from asyncpool.enums import CrashKind, RunState, SlotState
from asyncpool.stats import NO_DURATIONS, Histogram, SlotStats


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """The requests that the workers of a cluster have answered.

    The workers of :func:`asyncpool.cluster.asgi` and ``wsgi`` count them, and tell the master once
    a second and at their end.  So of a worker that dies only what it did in its last second is
    missing.  Other programs have no such figures.

    Attributes:
        responses: How long responses took, from the head of the request to the last piece that
            the application has sent, by the class of their status: ``"2xx"``, ``"5xx"``.  If an
            application ends without a response, uvicorn answers 500, and it counts as such.
        open: Requests whose application has not returned yet.
        cut: Requests and WebSockets that were cut off, since the time of their worker to drain was
            over, or since it died.  Of one that died it is what it last told to be open.
        refused: Requests that were refused without asking the application: a head that was too
            large or too slow, a body above *body_size*, or more at once than uvicorn's
            ``limit_concurrency``.
        timed_out: Requests that were given up, since nothing had happened for ``request_timeout``.
        websockets: WebSockets that clients have asked for.
        open_websockets: Those of them that are open.
    """

    responses: Mapping[str, Histogram] = field(default_factory=dict)
    open: int = 0
    cut: int = 0
    refused: int = 0
    timed_out: int = 0
    websockets: int = 0
    open_websockets: int = 0

    @property
    def count(self) -> int:
        """How many responses there were."""
        return sum(each.count for each in self.responses.values())


NO_REQUESTS = RequestStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """The figures of one worker.

    Attributes:
        slot: Its slot; ``worker.id`` in the worker.
        generation: Which worker of the slot it is, counting from 1.
        pid: Its process id; ``None`` if there is no process.
        state: ``"ready"`` if it serves and does not drain; ``"busy"`` if it does, but can take no
            request now: none of its threads has become free for some time, it is at
            ``limit_concurrency``, or it does not take its connections; else the state of the slot (a
            :class:`asyncpool.enums.SlotState`), such as ``"starting"`` or ``"parked"``.
        ready: Whether its state is ``"ready"``.
        seconds: How long it has been starting, serving or draining.
        connections: How many connections it has open.
        handed: How many connections it was handed, or has accepted, in all.
        requests: What it has told of its requests.
        uptime: Seconds since its process was started.
        cpu: Seconds of CPU time that it has used; 0 where the system does not tell.
        memory: The bytes that it does not share; 0 where the system does not tell.
    """

    slot: int
    generation: int
    pid: int | None
    state: str
    ready: bool
    seconds: float = 0.0
    connections: int
    handed: int
    requests: RequestStats = NO_REQUESTS
    uptime: float
    cpu: float = 0.0
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStats:
    """The figures of a cluster: how it stands, and what happened since its start.

    Attributes:
        state: Where it is in its life.
        workers: How many workers the cluster aims at.
        spread: How connections get to the workers.
        addresses: Where it listens, with the real ports.
        handed: Connections that were handed to workers, or accepted by them.
        refused: Handles that a worker could not take, since it had no descriptors left.
        lost: Connections that were closed when their worker left, since the master had no
            descriptors left to hand them on.
        cut: Connections that were cut off, since the time of their worker to drain was over, or
            since it died.
        requests: The requests of all workers, also of those that are gone.
        crashes: Unplanned ends of workers, failed starts included.
        crash_kinds: The same, by kind.
        exits: All ends of workers by cause: ``"crash"``, or the *reason* of
            :class:`asyncpool.events.Exited` without what a worker says of it.  ``"roll"`` is a
            reload.
        restarts: Processes started to replace another one.
        spawned: Processes started.
        started: How long workers took from their start until they were ready.
        exited_cpu: Seconds of CPU time that the workers have used which are gone.
        loop_lag: How late the event loop of the master ran what was due, measured once a second.
        worker_loop_lag: The same of the workers that count requests.
        dropped_events: Events that slow listeners of ``events()`` have missed.
        slots: The workers, one by one, draining ones included.
    """

    state: RunState
    workers: int
    spread: str
    addresses: tuple[str, ...] = ()
    handed: int = 0
    refused: int = 0
    lost: int = 0
    cut: int = 0
    requests: RequestStats = NO_REQUESTS
    crashes: int = 0
    crash_kinds: Mapping[CrashKind, int] = field(default_factory=dict)
    exits: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    spawned: int = 0
    started: Histogram = NO_DURATIONS
    exited_cpu: float = 0.0
    loop_lag: Histogram = NO_DURATIONS
    worker_loop_lag: Histogram = NO_DURATIONS
    dropped_events: int = 0
    slots: tuple[WorkerStats, ...] = ()


# What a cluster has in common with a pool, and a worker of it with one of a pool.
_OF_POOLS = (
    "state workers crashes crash_kinds exits restarts spawned started exited_cpu loop_lag "
    "dropped_events"
)
_OF_SLOTS = "slot generation pid seconds uptime cpu memory"


def cluster_stats(
    engine: Engine, service: Service, spread: str, addresses: tuple[str, ...]
) -> ClusterStats:
    """Return the figures of a cluster that was started.

    Args:
        engine: Its engine, which has the workers.
        service: Its service.
        spread: How connections get to the workers.
        addresses: Where it listens.
    """
    stats, requests = engine.stats(), service.requests()
    balancer = service.balancer
    return ClusterStats(
        **{name: getattr(stats, name) for name in _OF_POOLS.split()},
        spread=spread,
        addresses=addresses,
        handed=balancer.core.served,
        refused=balancer.core.refused,
        lost=balancer.lost,
        cut=service.cut,
        requests=_request_stats(requests),
        worker_loop_lag=requests.lag.histogram(),
        slots=tuple(
            _worker_stats(slot, service)
            for slot in stats.slots
            if slot.state is not SlotState.REMOVED
        ),
    )


def _worker_stats(slot: SlotStats, service: Service) -> WorkerStats:
    state: str = slot.state
    connections, handed, requests = 0, 0, NO_REQUESTS
    if (link := service.links.get(slot.slot)) is not None:
        if link.share.open:
            state = "busy" if service.is_busy(link) else "ready"
        connections, handed = link.share.connections, link.share.total
        requests = _request_stats(link.figures)
    return WorkerStats(
        **{name: getattr(slot, name) for name in _OF_SLOTS.split()},
        state=state,
        ready=state == "ready",
        connections=connections,
        handed=handed,
        requests=requests,
    )


def _request_stats(figures: RequestFigures) -> RequestStats:
    durations = zip(CLASSES, figures.responses, strict=True)
    responses = {name: each.histogram() for name, each in durations if any(each.counts)}
    counts = (it for it in RequestStats.__slots__ if it != "responses")
    return RequestStats(
        responses=responses, **{name: getattr(figures, name) for name in counts}
    )
