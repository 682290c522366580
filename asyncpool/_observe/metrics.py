"""The one table of metrics, and who is exported: for Prometheus, OpenTelemetry and the documents.

``.ci/tables.py`` writes the tables of the documents from it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from asyncpool._core.deadlines import RateLimit
from asyncpool._core.figures import CLASSES
from asyncpool._core.slots import CAUSES
from asyncpool.enums import CrashKind, RunState, SlotState
from asyncpool.stats import NO_DURATIONS, Histogram


class Reading(NamedTuple):
    """The figures of one pool or cluster at one moment.

    Attributes:
        stats: What its ``stats()`` has returned.
        cpu: Seconds of CPU time of all workers, also of those that have ended.
        untraced: How many jobs got no spans since they were too many; ``None`` without spans.
    """

    stats: Any
    cpu: float
    untraced: int | None


Figures = Iterable[tuple[tuple[str | int, ...], float | Histogram]]


class Metric(NamedTuple):
    """One metric.

    Attributes:
        kind: A counter only grows; sums of an up-down counter over attributes make sense,
            and those of a gauge do not.
        name: Its name for Prometheus; empty if it is not exported there.
        unit: Its unit for OpenTelemetry, in UCUM.
        otel: Its name for OpenTelemetry; empty if it is not exported there.
        meaning: Its description.
        labels: The labels besides the name of the pool or cluster.
        read: Returns the figure for each combination of values of the labels.
    """

    kind: str
    name: str
    unit: str
    otel: str
    meaning: str
    labels: tuple[str, ...]
    read: Callable[[Reading], Figures]

    @property
    def attributes(self) -> tuple[str, ...]:
        """What the labels are called in OpenTelemetry."""
        scope = self.otel.rpartition(".")[0]
        return tuple(_ATTRIBUTES.get(it) or f"{scope}.{it}" for it in self.labels)


_ATTRIBUTES = {
    "function": "code.function.name",
    "kind": "error.type",
    "slot": "asyncpool.worker.slot",
}

# The tables.  A row has the kind, Prometheus' name with its labels, the unit, the name for
# OpenTelemetry, and where the figure comes from: an attribute of the statistics, or a function
# below.  A dash stands for nothing.

_JOBS = """
up_down_counter pool_state{state} 1 asyncpool.pool.state states
    Where the pool is in its life: 1 for its state, 0 for the others.
counter jobs_submitted {job} asyncpool.job.submitted submitted
    Jobs that the pool has accepted.
counter jobs_refused {job} asyncpool.job.refused refused
    Calls that the pool did not take: it was full, broken or closed.
counter jobs{function,via,outcome} {job} asyncpool.job.ended ended
    Jobs that have ended, by function, by how it was called, and by outcome.
counter map_items{function} {item} asyncpool.job.items items
    Items of maps that have an outcome and travelled with others as one job.
histogram job_run_seconds{function,via} s - run
    How long those attempts ran that a worker has brought to an outcome.
histogram job_wait_seconds{function,via} s - wait
    How long these attempts waited before they began, in the queue and in the worker.
counter job_timeouts {job} asyncpool.job.timeouts timeouts
    Jobs whose timeout, queue_timeout or deadline was over.
counter job_retries {attempt} asyncpool.job.retries retries
    Attempts after one that raised.
counter job_takeovers {job} asyncpool.job.takeovers takeovers
    Jobs that went back to the queue because their worker died.
up_down_counter jobs_running {job} asyncpool.job.active running
    Jobs that workers run now.
gauge jobs_longest_running_seconds s asyncpool.job.active.age longest
    How long the job has been running that began first; 0 if none runs.
up_down_counter jobs_queued {job} asyncpool.job.queue.length queued
    Jobs that wait for a worker.
gauge queue_oldest_seconds s asyncpool.job.queue.age oldest_queued
    How long the oldest job in the queue has waited; 0 if there is none.
counter - {job} asyncpool.job.untraced untraced
    Jobs above max_traced, which got no spans unless they failed.
"""

_WORKERS = """
up_down_counter workers_wanted {worker} asyncpool.worker.wanted workers
    How many workers the pool should have.
up_down_counter workers{state} {worker} asyncpool.worker.count pool_states
    Workers by state; a slot that is vacant or parked lacks its worker.
counter worker_starts {worker} asyncpool.worker.starts spawned
    Processes that were started.
counter worker_restarts {worker} asyncpool.worker.restarts restarts
    Processes that were started to replace another one.
counter worker_exits{cause} {worker} - exits
    Ends of workers, by cause.
counter worker_crashes{kind} {crash} asyncpool.worker.crashes crash_kinds
    Unplanned deaths of workers, failed starts included, by kind.
histogram worker_start_seconds s - started
    How long workers took from their start until they were ready.
counter worker_cpu_seconds s asyncpool.worker.cpu.time cpu
    CPU time of all workers of the pool, also of those that have ended.
up_down_counter worker_memory_bytes{slot} By process.memory.usage memory
    Memory of the worker of a slot, without libraries, but with what others share with it.
counter events_dropped {event} asyncpool.event.dropped dropped_events
    Events that slow listeners of the pool have missed.
"""

_POOL = """
up_down_counter shared_memory_bytes By asyncpool.shared_memory.usage shared_memory
    Memory that the pool shares with its workers, for large arguments and results.
histogram loop_lag_seconds s - loop_lag
    How late the event loop ran what was due, measured once a second while jobs are open.
counter nodes_lost {node} asyncpool.node.lost lost_nodes
    Agents of the pool that were lost, or could not be used.
counter clients_lost {client} asyncpool.client.lost lost_clients
    Clients of a shared pool that were gone, or not heard, while they had jobs.
gauge client_jobs{client} - - clients.jobs
    Jobs of a client of the shared pool that the pool has.
gauge client_jobs_waiting{client} - - clients.waiting
    Jobs of a client that wait for their turn.
counter client_jobs_ended{client} - - clients.ended
    Jobs of a client that have ended.
counter clients_refused {client} asyncpool.client.refused refused_clients
    Clients of a shared pool that did not come in, or were cut off.
"""

_NODES = """
gauge node_trusted{node} - - trusted
    Whether the agent of the node gets jobs; 0 if it has been silent for too long.
gauge node_silent_seconds{node} - - nodes.silent
    For how long nothing was heard of the agent of the node.
gauge node_jobs{node} - - nodes.jobs
    Jobs of this client that the node has.
gauge node_jobs_queued{node} - - nodes.queued
    Jobs that wait for a worker on the node.
histogram node_job_run_seconds{node} - - nodes.run
    How long attempts ran on the node.
gauge node_workers{node,state} - - node_workers
    Workers of the node that are idle, and those that are busy.
counter node_worker_crashes{node} - - nodes.crashes
    Unplanned deaths of workers of the node.
counter node_worker_cpu_seconds{node} - - nodes.cpu
    CPU time of all workers of the node, also of those that have ended.
gauge node_worker_memory_bytes{node} - - nodes.memory
    The sum of asyncpool_worker_memory_bytes over the workers of the node.
gauge node_clock_error_seconds{node} - - nodes.clock_error
    By how much the times of what ran on the node may be wrong.
"""

_CLUSTER = """
gauge state{state} - - states
    Where the cluster is in its life: 1 for its state, 0 for the others.
counter requests{status} - - responses
    Requests that were answered, by the class of the response's status.
histogram request_seconds{status} - - response_seconds
    How long it took until a response was sent, by the class of its status.
gauge requests_open - - requests.open
    Requests that workers answer now.
counter requests_cut - - requests.cut
    Requests and WebSockets that were cut off: their worker had no more time, or died.
counter requests_refused - - requests.refused
    Requests that were refused: their head was too large or too slow, or there were too many.
counter requests_timed_out - - requests.timed_out
    Requests that were given up, since nothing had happened for the request timeout.
counter websockets - - requests.websockets
    WebSockets that clients have asked for.
gauge websockets_open - - requests.open_websockets
    WebSockets that are open.
counter connections - - handed
    Connections that workers have got.
gauge connections_open - - connections
    Connections that workers have now.
counter connections_cut - - cut
    Connections that were cut off: their worker had no more time, or died.
counter connections_lost - - lost
    Connections of leaving workers that were closed for want of descriptors.
histogram worker_loop_lag_seconds - - worker_loop_lag
    How late the event loops of workers ran what was due, measured once a second.
histogram loop_lag_seconds - - loop_lag
    How late the event loop of the master ran what was due, measured once a second.
"""


# In these states a slot has no worker, and needs none.
_UNUSED = frozenset((SlotState.UNUSED, SlotState.REMOVED))
_POOL_STATES = [it for it in SlotState if it not in _UNUSED]
_CLUSTER_STATES = ("ready", "busy", "starting", "stopping", "vacant", "parked")


def _workers(at: Reading, states: Iterable[str]) -> Figures:
    found = [slot.state for slot in at.stats.slots]
    return [((state,), found.count(state)) for state in states]


def _responses(at: Reading) -> Iterator[tuple[tuple[str], Histogram]]:
    """Yield the usual classes from the start, and the others if there is such a response."""
    found = at.stats.requests.responses
    for name in CLASSES:
        if name in CLASSES[2:] or name in found:
            yield (name,), found.get(name, NO_DURATIONS)


def _longest(at: Reading) -> float:
    seconds = (job.seconds for slot in at.stats.slots for job in slot.running)
    return max(seconds, default=0.0)


_READERS: dict[str, Callable[[Reading], Figures]] = {
    "states": lambda at: [((it,), int(at.stats.state is it)) for it in RunState],
    "pool_states": lambda at: _workers(at, _POOL_STATES),
    "cluster_states": lambda at: _workers(at, _CLUSTER_STATES),
    "ended": lambda at: [
        ((it.function, it.via, outcome), count)
        for it in at.stats.functions
        for outcome, count in it.jobs.items()
    ],
    "items": lambda at: [
        ((it.function,), it.items) for it in at.stats.functions if it.via == "map"
    ],
    "run": lambda at: [((it.function, it.via), it.run) for it in at.stats.functions],
    "wait": lambda at: [((it.function, it.via), it.wait) for it in at.stats.functions],
    "running": lambda at: [((), sum(len(slot.job_ids) for slot in at.stats.slots))],
    "longest": lambda at: [((), _longest(at))],
    "untraced": lambda at: [] if at.untraced is None else [((), at.untraced)],
    "exits": lambda at: [((it,), at.stats.exits.get(it, 0)) for it in CAUSES],
    "crash_kinds": lambda at: [
        ((it,), at.stats.crash_kinds.get(it, 0)) for it in CrashKind
    ],
    "cpu": lambda at: [((), at.cpu)],
    "memory": lambda at: [
        ((it.slot,), it.memory) for it in at.stats.slots if it.pid is not None
    ],
    "responses": lambda at: [(about, it.count) for about, it in _responses(at)],
    "response_seconds": _responses,
    "connections": lambda at: [((), sum(it.connections for it in at.stats.slots))],
    "trusted": lambda at: [((it.name,), not it.suspected) for it in at.stats.nodes],
    "node_workers": lambda at: [
        ((it.name, state), getattr(it, state))
        for it in at.stats.nodes
        for state in ("idle", "busy")
    ],
}


def _reader(source: str) -> Callable[[Reading], Figures]:
    if source in _READERS:
        return _READERS[source]
    kind, _, name = source.partition(".")
    if kind not in {"nodes", "clients"}:
        read = attrgetter(source)
        return lambda at: [((), read(at.stats))]
    read, each = attrgetter(name), attrgetter(kind)
    return lambda at: [
        ((it.name,), figure)
        for it in each(at.stats)
        if (figure := read(it)) is not None
    ]


def _metrics(prefix: str, table: str) -> Iterator[Metric]:
    rows = [row.strip() for row in table.split("\n") if row]
    for head, meaning in zip(rows[::2], rows[1::2], strict=True):
        kind, name, unit, otel, source = head.replace(" -", " ").split(" ")
        name, _, labels = name.rstrip("}").partition("{")
        yield Metric(
            kind=kind,
            name=f"{prefix}_{name}" if name else "",
            unit=unit,
            otel=otel,
            meaning=meaning,
            labels=tuple(labels.split(",")) if labels else (),
            read=_reader(source),
        )


POOL_METRICS = (*_metrics("asyncpool", _JOBS + _WORKERS + _POOL),)
NODE_METRICS = (*_metrics("asyncpool", _NODES),)
CLUSTER_METRICS = (
    *_metrics("asyncpool_cluster", _CLUSTER + _WORKERS.replace(" pool", " cluster")),
)


# Who is exported.

# How many that have ended are kept until their last figures are read.  Without this bound a
# program that has no reader of metrics would keep all of them.
_MOST_ENDED = 100

# Reentrant, since the garbage collector may run any code, also an uninstrument().
LOCK = threading.RLock()


class Exported:
    """One pool or cluster that is exported, until the garbage collector removes it.

    Args:
        it: What has its figures.
        life: What ends it, if that may outlive *it*.
        limit: What counts the jobs that got no spans, if it has spans.

    Attributes:
        name: Its name.
        it: What has its figures, as long as that is there.
        final: Its last figures, once it has ended, which are kept until they were read once.  A
            reader of metrics comes by once in a minute, and a pool may not live as long.
    """

    def __init__(
        self, it: Any, life: object = None, limit: RateLimit | None = None
    ) -> None:
        self.name: str = it.name
        self.it: weakref.ref[Any] = weakref.ref(it)
        self._life = weakref.ref(it if life is None else life)
        self._limit = limit
        self._cpu = 0.0  # the most seconds of CPU time that were read
        self.final: Reading | None = None
        self._told = False

    @property
    def over(self) -> bool:
        """Whether there is nothing more to tell."""
        if self.it() is not None:
            return False
        return self._life() is None if self.final is None else self._told

    def read(self) -> Reading | None:
        """Return the figures as they are now, if anybody has them."""
        self._told, it = self.final is not None, self.it()
        return self.final or (None if it is None else self.reading(it))

    def reading(self, it: Any) -> Reading:
        """Return the figures that *it* has."""
        stats = it.stats()
        seconds = stats.exited_cpu + sum(slot.cpu for slot in stats.slots)
        with LOCK:
            # A worker that has just ended is for a moment neither in /proc nor part of
            # exited_cpu.  If the sum fell, it would look like a restart of the service.
            self._cpu = max(self._cpu, seconds)
            untraced = None if self._limit is None else self._limit.refused
            return Reading(stats, self._cpu, untraced)


class Exports:
    """All pools, or all clusters, of one registry or provider, where each metric is once.

    Args:
        what: What errors call one: ``"pool"``.
        where: What errors say of one that is there: ``"registered in this registry"``.
        undo: What undoes it.
    """

    def __init__(self, what: str, where: str, undo: str) -> None:
        self._what, self._where, self._undo = what, where, undo
        self._by_name: dict[str, Exported] = {}

    def add(self, exported: Exported) -> None:
        """Export it from now on.

        Raises:
            ValueError: If it is exported, or another one with its name that is not closed.
        """
        what, where, name = self._what, self._where, exported.name
        with LOCK:
            known = self._by_name.get(name)
            there = None if known is None else known.it()
            if there is not None and there is exported.it():
                raise ValueError(f"{what} {name} is already {where}")
            # The garbage collector may remove a closed one much later: it blocks no new one.
            if there is not None and there.stats().state is not RunState.CLOSED:
                raise ValueError(
                    f"another {what} called {name} is {where}: give one of them another "
                    f"name, or {self._undo} the other one first"
                )
            self._by_name[name] = exported
            ended = [each for each in list(self._by_name.values()) if each.final]
            for each in ended[:-_MOST_ENDED]:
                self._forget(each)

    def remove(self, it: object) -> bool:
        """Export *it* no more; tell whether it was there."""
        with LOCK:
            known = [each for each in list(self._by_name.values()) if each.it() is it]
            for each in known:
                self._forget(each)
            return bool(known)

    def _forget(self, exported: Exported) -> None:
        if self._by_name.get(exported.name) is exported:
            del self._by_name[exported.name]

    def readings(self) -> list[tuple[str, Reading]]:
        """Return the figures of each, with its name, as they are now."""
        with LOCK:
            for each in list(self._by_name.values()):
                if each.over:
                    self._forget(each)
            exported = list(self._by_name.values())
        found = [(each.name, each.read()) for each in exported]
        return [(name, reading) for name, reading in found if reading]
