"""The metrics of a cluster: their names, their meanings, and where their figures come from."""

from __future__ import annotations

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from asyncpool._core.figures import CLASSES
from asyncpool._core.slots import CAUSES
from asyncpool._observe.readings import Reading
from asyncpool.cluster import ClusterStats
from asyncpool.enums import CrashKind, RunState, SlotState
from asyncpool.prometheus._families import Figures, MetricMaker
from asyncpool.stats import NO_DURATIONS

# What a worker of a cluster may be, or a slot that lacks one.
_READY = "ready"
_STATES = (
    _READY,
    "busy",
    SlotState.STARTING,
    SlotState.STOPPING,
    SlotState.VACANT,
    SlotState.PARKED,
)

# These have figures from the start; the others if there is such a response.
_USUAL = CLASSES[2:]

_MAKE: MetricMaker[ClusterStats] = MetricMaker("asyncpool_cluster", "cluster")


def _workers(reading: Reading[ClusterStats]) -> Figures:
    states = [slot.state for slot in reading.stats.slots]
    for state in _STATES:
        yield (state,), states.count(state)


def _memory(reading: Reading[ClusterStats]) -> Figures:
    for slot in reading.stats.slots:
        if slot.pid is not None:
            yield (str(slot.slot),), slot.memory


def _classes(stats: ClusterStats) -> list[str]:
    responses = stats.requests.responses
    return [name for name in CLASSES if name in _USUAL or name in responses]


def _requests(reading: Reading[ClusterStats]) -> Figures:
    responses = reading.stats.requests.responses
    for name in _classes(reading.stats):
        yield (name,), responses.get(name, NO_DURATIONS).count


def _seconds(reading: Reading[ClusterStats]) -> Figures:
    responses = reading.stats.requests.responses
    for name in _classes(reading.stats):
        yield (name,), responses.get(name, NO_DURATIONS)


CLUSTER_METRICS = (
    _MAKE.labelled(
        GaugeMetricFamily,
        "state",
        "Where the cluster is in its life: 1 for its state, 0 for the others.",
        ("state",),
        lambda at: [((state,), at.stats.state is state) for state in RunState],
    ),
    _MAKE.labelled(
        CounterMetricFamily,
        "requests",
        "Requests that were answered, by the class of the response's status.",
        ("status",),
        _requests,
    ),
    _MAKE.labelled(
        HistogramMetricFamily,
        "request_seconds",
        "How long it took until a response was sent, by the class of its status.",
        ("status",),
        _seconds,
    ),
    _MAKE.gauge(
        "requests_open",
        "Requests that workers answer now.",
        lambda at: at.requests.open,
    ),
    _MAKE.counter(
        "requests_cut",
        "Requests and WebSockets that were cut off: their worker had no more time, or died.",
        lambda at: at.requests.cut,
    ),
    _MAKE.counter(
        "requests_refused",
        "Requests that were refused: their head was too large or too slow, or there were "
        "too many.",
        lambda at: at.requests.refused,
    ),
    _MAKE.counter(
        "requests_timed_out",
        "Requests that were given up, since nothing had happened for the request timeout.",
        lambda at: at.requests.timed_out,
    ),
    _MAKE.counter(
        "websockets",
        "WebSockets that clients have asked for.",
        lambda at: at.requests.websockets,
    ),
    _MAKE.gauge(
        "websockets_open",
        "WebSockets that are open.",
        lambda at: at.requests.open_websockets,
    ),
    _MAKE.counter(
        "connections",
        "Connections that workers have got.",
        lambda at: at.handed,
    ),
    _MAKE.gauge(
        "connections_open",
        "Connections that workers have now.",
        lambda at: sum(slot.connections for slot in at.slots),
    ),
    _MAKE.counter(
        "connections_cut",
        "Connections that were cut off: their worker had no more time, or died.",
        lambda at: at.cut,
    ),
    _MAKE.counter(
        "connections_lost",
        "Connections of leaving workers that were closed for want of descriptors.",
        lambda at: at.lost,
    ),
    _MAKE.gauge(
        "workers_wanted",
        "How many workers the cluster should have.",
        lambda at: at.workers,
    ),
    _MAKE.labelled(
        GaugeMetricFamily,
        "workers",
        "Workers by state; a slot that is vacant or parked lacks its worker.",
        ("state",),
        _workers,
    ),
    _MAKE.counter(
        "worker_starts", "Processes that were started.", lambda at: at.spawned
    ),
    _MAKE.counter(
        "worker_restarts",
        "Processes that were started to replace another one.",
        lambda at: at.restarts,
    ),
    _MAKE.labelled(
        CounterMetricFamily,
        "worker_exits",
        "Ends of workers, by cause.",
        ("cause",),
        lambda at: [((cause,), at.stats.exits.get(cause, 0)) for cause in CAUSES],
    ),
    _MAKE.labelled(
        CounterMetricFamily,
        "worker_crashes",
        "Unplanned deaths of workers, failed starts included, by kind.",
        ("kind",),
        lambda at: [((kind,), at.stats.crash_kinds.get(kind, 0)) for kind in CrashKind],
    ),
    _MAKE.histogram(
        "worker_start_seconds",
        "How long workers took from their start until they were ready.",
        lambda at: at.started,
    ),
    _MAKE.labelled(
        CounterMetricFamily,
        "worker_cpu_seconds",
        "CPU time of all workers of the cluster, also of those that have ended.",
        (),
        lambda at: [((), at.cpu)],
    ),
    _MAKE.labelled(
        GaugeMetricFamily,
        "worker_memory_bytes",
        "Memory that the worker of a slot has to itself.",
        ("slot",),
        _memory,
    ),
    _MAKE.histogram(
        "worker_loop_lag_seconds",
        "How late the event loops of workers ran what was due, measured once a second.",
        lambda at: at.worker_loop_lag,
    ),
    _MAKE.histogram(
        "loop_lag_seconds",
        "How late the event loop of the master ran what was due, measured once a second.",
        lambda at: at.loop_lag,
    ),
    _MAKE.counter(
        "events_dropped",
        "Events that slow listeners of the cluster have missed.",
        lambda at: at.dropped_events,
    ),
)
