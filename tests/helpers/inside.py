"""What the package keeps to itself, for tests: the one place that reaches into it.

An end-to-end test asks here in its own words, so only this module changes when something
inside is moved.  ``tests/test_habits.py`` holds the tests to it: but for this module, only the
tests of a module read its private attributes.

Workers import this too, so it imports nothing of the package but for the type checkers.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.helpers.patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from asyncpool import Crash, Job, Pool, ProcessPoolExecutor
    from asyncpool._cluster.link import MAX_MESSAGE, MOST_MESSAGES
    from asyncpool._cluster.service import Service
    from asyncpool._core.core import Core
    from asyncpool._core.deadlines import Deadlines
    from asyncpool._core.dispatcher import AffinityQueues
    from asyncpool._core.endings import Finish
    from asyncpool._core.functions import LEAST_COST, JobTraits
    from asyncpool._core.options import MAX_FREE_RETURNS, CrashKindText, JobOptions
    from asyncpool._core.slots import Slot
    from asyncpool._engine.channel import Channel
    from asyncpool._engine.engine import Engine as PoolEngine
    from asyncpool._engine.job import PoolJob
    from asyncpool._engine.launcher import Launcher
    from asyncpool._engine.loop import Threads
    from asyncpool._engine.machine import usable_cpus
    from asyncpool._engine.options import EngineConfig
    from asyncpool._engine.registry import JobRegistry
    from asyncpool._engine.segments import Segment, Segments
    from asyncpool._engine.watch import Pings
    from asyncpool._engine.worker import WorkerHandle
    from asyncpool._observe.control.client import ControlClient
    from asyncpool._observe.control.protocol import Request
    from asyncpool._observe.control.socket_files import (
        live_names,
        path_of,
        private_folder,
    )
    from asyncpool._observe.trace import Trace
    from asyncpool._remote.agent import Agent
    from asyncpool._remote.client import Client
    from asyncpool._remote.figures import NodeFigures
    from asyncpool._remote.router import CREDITS
    from asyncpool._wire.frames import FrameKind
    from asyncpool._wire.memory import Memory
    from asyncpool._wire.messages import MAX_BROADCASTS
    from asyncpool._wire.page import CHUNK_SIZE
    from asyncpool._wire.pickling import pack_job, pack_value
    from asyncpool._wire.posix import private_memory
    from asyncpool._worker.channels import LargeBuffers
    from asyncpool.cluster import Cluster
    from asyncpool.cluster._master import ClusterOptions
    from asyncpool.executor import Call, _Engine
    from asyncpool.sharedpool import SharedPool
    from asyncpool.sharedpool._remote_pool import RemotePool

# What tests import from here, though it stands elsewhere: __getattr__() finds it.
__all__ = [
    "CHUNK_SIZE",
    "CREDITS",
    "LEAST_COST",
    "MAX_BROADCASTS",
    "MAX_FREE_RETURNS",
    "MAX_MESSAGE",
    "MOST_MESSAGES",
    "Call",
    "ControlClient",
    "CrashKindText",
    "Finish",
    "FrameKind",
    "Launcher",
    "Request",
    "Threads",
    "_Engine",
    "live_names",
    "pack_job",
    "pack_value",
    "path_of",
    "private_folder",
    "private_memory",
    "usable_cpus",
]

_PLACES = {
    "_observe.control.protocol": ["Request"],
    "_wire.page": ["CHUNK_SIZE"],
    "_wire.pickling": ["pack_job", "pack_value"],
    "_core.functions": ["LEAST_COST"],
    "_core.options": ["BURST", "CrashKindText", "MAX_FREE_RETURNS"],
    "_remote.router": ["CREDITS"],
    "_core.endings": ["Finish"],
    "_wire.frames": ["FrameKind"],
    "_wire.messages": ["MAX_BROADCASTS"],
    "executor": ["Call", "_Engine"],
    "_engine.machine": ["usable_cpus"],
    "_engine.loop": ["Threads"],
    "_cluster.link": ["MAX_MESSAGE", "MOST_MESSAGES"],
    "_observe.control.client": ["ControlClient"],
    "_observe.control.socket_files": ["live_names", "path_of", "private_folder"],
    "_engine.launcher": ["Launcher"],
    "_wire.posix": ["private_memory"],
}


def __getattr__(name: str) -> Any:
    """Return what has that name in the package, which is imported when a test asks for it."""
    for place, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"asyncpool.{place}"), name)
    raise AttributeError(name)


# A pool, and its parts.


def trace_no_more(pool: Pool | RemotePool) -> None:
    """Have an instrumented pool, or one with a trace, trace no more jobs, as if it had too many."""
    for tracer in pool._life.hub.tracers:
        tracer.limit.next_at = math.inf  # type: ignore[attr-defined]


def supervisor_of(pool: Pool | Cluster) -> PoolEngine:
    """Return what runs *pool*, which has been started; it stays after the end."""
    supervisor = pool._life.engine
    assert supervisor is not None
    return supervisor


def core_of(pool: Pool | Cluster) -> Core:
    """Return what decides for *pool*."""
    return supervisor_of(pool).core


def slot_of(pool: Pool, index: int = 0) -> Slot:
    """Return what the core knows of one worker."""
    return core_of(pool).slots[index]


def handle_of(pool: Pool, slot: int = 0) -> WorkerHandle:
    """Return the pool's end of one worker."""
    return supervisor_of(pool).handles[slot]


def registry_of(pool: Pool) -> JobRegistry:
    """Return the table of open jobs."""
    return supervisor_of(pool).registry


async def start_threads(pool: Pool) -> None:
    """Have *pool* start its threads: two that copy, and three that pickle."""
    threads = supervisor_of(pool).threads
    pickle: Any = partial(threads.pickle, unwanted=lambda: False)
    for call, most in ((threads.copy, 2), (pickle, 3)):
        met = threading.Barrier(most)
        ends = [call(lambda *_, met=met: met.wait(PATIENCE)) for _ in range(most)]
        await asyncio.gather(*ends)


def sessions_of(pool: Pool) -> list[object]:
    """Return the sessions that are open, and that wait for a worker."""
    sessions = supervisor_of(pool).sessions
    return [*sessions._session_workers, *range(sessions._waiting)]


def listeners_of(pool: Pool) -> list[object]:
    """Return what is told of the events of *pool*, or of its jobs."""
    hub = pool._life.hub
    told = [it for each in hub._hubs for it in (*each._streams, *each.listeners)]
    return [*(it for it in told if "EventHub.listen" not in repr(it)), *hub.tracers]


class _Changing(dict[int, "PoolJob[Any]"]):
    """Open jobs, of which there is one more, or one less, in the middle of the first reads."""

    reads = 4

    def values(self) -> Any:
        for job in super().values():
            if self.reads > 0:
                self.reads -= 1
                if self.pop(-1, None) is None:
                    self[-1] = job
            yield job


def change_jobs_while_read(pool: Pool) -> Callable[[], bool]:
    """Have the next reads of all open jobs meet a change; return what tells that they did."""
    registry = registry_of(pool)
    registry.jobs = changing = _Changing(registry.jobs)
    return lambda: changing.reads == 0


def segments_of(pool: Pool) -> Segments:
    """Return the shared memory."""
    return supervisor_of(pool).segments


def segments_by_number(pool: Pool) -> dict[int, Segment]:
    """Return each segment of the shared memory, the oldest first."""
    return segments_of(pool)._segments


def deciding(pool: Pool) -> bool:
    """Return whether *pool* makes a decision and carries it out just now."""
    return bool(supervisor_of(pool).turn_depth)


def break_core(pool: Pool | Cluster, error: Exception) -> None:
    """Have a bug in what decides for *pool*: the next end of a worker raises *error*."""

    def ended(*_: object, **__: object) -> Any:
        raise error

    core_of(pool).ended = ended  # type: ignore[method-assign]


def in_another_process(pool: Pool) -> None:
    """Have *pool* take itself for a copy that a fork has made."""
    pool._life._process += 1


def config_of(pool: Pool | Cluster) -> EngineConfig:
    """Return what the options of *pool* have come to."""
    return pool._config


def options_of(cluster: Cluster) -> ClusterOptions:
    """Return the options of *cluster*, checked."""
    return cluster._config


def slots_held(core: Core) -> set[int]:
    """Return the slots that get no job because a session waits for one of them."""
    return core.affinity._held


def affinity_queues_of(core: Core) -> AffinityQueues:
    """Return the queues of the jobs that have a key."""
    return core.dispatcher._affinity_queues


def due_ever(deadlines: Deadlines[Any]) -> set[Any]:
    """Return the jobs whose time is going to be over."""
    return set(deadlines._when)


# How long calls take, and how many jobs go to a worker ahead.


def traits_of(pool: Pool, function: Callable[..., Any]) -> JobTraits:
    """Return what *pool* knows of the calls of *function*."""
    return supervisor_of(pool).traffic._functions.find(function).traits


def cost_of(pool: Pool, function: Callable[..., Any]) -> float:
    """Return the microseconds that *pool* expects a call of *function* to take."""
    return traits_of(pool, function).cost


def in_hand(pool: Pool, slot: int = 0, job: Job[Any] | None = None) -> int:
    """Return how many jobs a worker has in hand, or how many times it has *job*."""
    flight = slot_of(pool, slot).in_flight.jobs
    return len(flight) if job is None else int(job.id in flight)


def loading(pool: Pool, slot: int = 0) -> bool:
    """Return whether a large argument is being copied for that worker."""
    return handle_of(pool, slot).outbox.lending


def pickling(pool: Pool) -> bool:
    """Return whether a large argument is being pickled, or waits for that."""
    return bool(supervisor_of(pool).large._begun)


def check_for_stalls(pool: Pool) -> None:
    """Look for workers that have stalled, as the timer of that does."""
    supervisor_of(pool).stalls._check_for_stalls()


# The channels.


def jobs_channel_of(pool: Pool, slot: int = 0) -> Channel:
    """Return the channel that the jobs of a worker go through."""
    return handle_of(pool, slot).job_channel


def spy_on_sends(pool: Pool) -> list[int]:
    """Return what is going to hold the bytes of each system call that sends to the first worker."""
    channel, sent = jobs_channel_of(pool), list[int]()

    class Spied(socket.socket):
        def send(self, data: Any, *flags: int) -> int:
            sent.append(len(data))
            return super().send(data, *flags)

    channel._socket = Spied(fileno=channel._socket.detach())
    return sent


def block_until_answers(pool: Pool, slots: int) -> None:
    """Block this thread, and so the loop, until so many workers have sent something."""
    for slot in range(slots):
        _block_until_readable(jobs_channel_of(pool, slot))


def _block_until_readable(channel: Channel) -> None:
    readable, _, _ = select.select([channel._fd], [], [], PATIENCE)
    assert readable


# The times of jobs.


def ring(pool: Pool, when: float) -> None:
    """Have the timer of the jobs' times fire as if it were *when* already."""
    timers = supervisor_of(pool).timers
    timers._alarm.due = when
    timers._on_alarm(when)


def run_out(pool: Pool, job: Job[Any], *, within: float = 0.0) -> None:
    """Have the time of a job be over soon, that has come to its gate and has plenty of it.

    With a limit that is short a busy machine may not have begun it when that is over.
    """
    end, own = asyncio.get_running_loop().time() + within, job._pooled
    assert own.began is not None
    if own.options.timeout is not None:
        own.began = end - own.options.timeout
    else:
        own.options = replace(own.options, deadline=end)
    supervisor_of(pool).timers._watch(job.id, end)


async def hold_up_until_due(pool: Pool) -> None:
    """Block this thread, and so the loop, from when the first worker has a deadline until then."""
    loop, slot = asyncio.get_running_loop(), core_of(pool).slots[0]
    while (due := slot.due) is None:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0)
    while loop.time() <= due:
        select.select([], [], [], 0.01)


def heartbeats_awaited(pool: Pool) -> int:
    """Return of how many workers heartbeats are going to be read."""
    return len(supervisor_of(pool).heartbeats._looks)


# Pings.


def pings_of(pool: Pool) -> Pings:
    """Return what pings the workers of *pool*."""
    return supervisor_of(pool).pings


def ping_now(pool: Pool) -> None:
    """Look after the workers as if it were time to."""
    pings = pings_of(pool)
    pings._look(pings._ledger.due)


def pinged(pool: Pool) -> set[WorkerHandle]:
    """Return the workers that owe an answer."""
    return set(pings_of(pool)._ledger._asked)


def pinged_before(pool: Pool, seconds: float) -> None:
    """Have the ping of the first worker, which owes an answer, be so much older."""
    pings_of(pool)._ledger._asked[handle_of(pool)] -= seconds


def heard_before(pool: Pool, seconds: float) -> None:
    """Have the last word of the first worker be so much older."""
    handle_of(pool)._heard_at -= seconds


def wait_for_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a pool kill a silent worker no sooner than it has written its stacks.

    A worker that gets no processor for a moment does so too late.
    """
    from asyncpool._core import endings as termination
    from asyncpool._engine import watch

    monkeypatch.setattr(termination, "STACK_GRACE", 3600.0)
    monkeypatch.setattr(watch, "_signal_at", lambda _, now: now + 0.1)


def block_until_pong(pool: Pool) -> None:
    """Block this thread, and so the loop, until the first worker has answered."""
    _block_until_readable(handle_of(pool).control_channel)


# A job.


def crashes_of(job: Job[Any]) -> tuple[Crash, ...]:
    """Return the crashes of the workers that had *job*."""
    return tuple(job._pooled.crashes)


def pickled(job: Job[Any]) -> bool:
    """Return whether the call is pickled."""
    return bool(job._pooled.payload)


def limits_of(job: Job[Any]) -> JobOptions:
    """Return the options of a job, and so its limits."""
    return job._pooled.options


def has_worker(job: Job[Any]) -> bool:
    """Return whether a worker has *job* now."""
    return job._pooled.slot is not None


def begin_of(job: Job[Any]) -> float:
    """Return when *job* began, on the loop's clock; 0.0 before that."""
    return job._pooled.began or 0.0


def return_no_more(job: Job[Any], returns: int) -> None:
    """Have *job* have come back so many times from workers that did not begin it."""
    job._pooled.times_suspected = returns


# The executor, and what else lives as long as the process.


def engine_of(executor: ProcessPoolExecutor) -> _Engine:
    """Return the thread of *executor*, and its event loop."""
    assert executor._engine is not None
    return executor._engine


def put_engine(executor: ProcessPoolExecutor, engine: _Engine) -> None:
    """Give *executor* a thread of which nothing has begun."""
    executor._engine = engine


def pool_of(executor: ProcessPoolExecutor) -> Pool:
    """Return the pool of an executor."""
    pool: Any = executor._pool
    return pool  # type: ignore[no-any-return]


def begin_call(engine: _Engine, call: Call, function: Callable[[], Any]) -> bool:
    """Have the loop of an executor begin its only pending call."""
    engine._queue[call] = function, (), {}
    return engine._begin()


def let_turn(executor: ProcessPoolExecutor) -> None:
    """Have the loop of an executor see what was submitted by now."""
    turned = threading.Event()
    engine_of(executor)._loop.call_soon_threadsafe(turned.set)
    assert turned.wait(PATIENCE)


def break_threads_of_executors(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Have a bug in the threads of executors that begin from now on."""

    async def live(_: _Engine) -> None:
        raise error

    from asyncpool import executor as delivery

    monkeypatch.setattr(delivery._Engine, "_live", live)


def shorten_grace_of_callbacks(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Give callbacks of ``on_crash`` so much time at the end of a pool."""
    from asyncpool._engine import deaths

    monkeypatch.setattr(deaths, "_CALLBACK_GRACE", seconds)


def resident_pool() -> Pool:
    """Return the pool that ``to_process`` keeps for the running event loop."""
    from asyncpool import to_process

    return to_process._residents[asyncio.get_running_loop()].pool


# A cluster.


def service_of(cluster: Cluster) -> Service:
    """Return what a running cluster does instead of jobs."""
    return cluster._service()


def messages_arrived(cluster: Cluster, slot: int = 0) -> int:
    """Return how many messages of a worker have arrived, read or not."""
    return service_of(cluster).links[slot]._heard


# In a worker.


def segments_mapped(buffers: LargeBuffers) -> dict[int, Memory]:
    """Return the shared memory that a worker has mapped, by the numbers of the segments."""
    return buffers._mapped


def wait_for_grant(buffers: LargeBuffers) -> int:
    """Wait until a worker gets the segment that it has asked for, and return its number."""
    return buffers._grants.get()


def socket_of(control: Any) -> socket.socket:
    """Return the socket of a worker's control channel."""
    found: socket.socket = control._socket
    return found


def worker_page() -> Any:
    """Return the page on which a worker writes heartbeats, and what it has done of a chunk."""
    from asyncpool._worker import api

    assert api._runner is not None
    return api._runner.page


# The trace of a pool.


def wait_for_disk(trace: Trace, size: int) -> None:
    """Have so many bytes of a trace wait for the disk, as far as the trace knows."""
    trace._file._waiting = size


def join_writer(trace: Trace) -> None:
    """Wait until the thread that writes a trace has ended."""
    trace._file._thread.join()


# The journal of a map.


def sync_every(seconds: float) -> None:
    """Have the journals of this process synced so often."""
    from asyncpool._cli.map import journal

    journal._SYNC_EVERY = seconds


# How long things wait, which a test makes so long that they never happen, or short.


def silent_launcher_hangs_after(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Have a launcher taken for hung that says nothing for so long."""
    from asyncpool._engine import launcher

    monkeypatch.setattr(launcher, "_SILENCE", seconds)


def pickle_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no second large object pickled beside the first, however long that takes."""
    from asyncpool._engine import loop

    monkeypatch.setattr(loop, "_LONG", 3600.0)


def abandon_threads_after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have a pool that ends leave alone a thread that does not come back for so long."""
    from asyncpool._engine import loop

    monkeypatch.setattr(loop, "_THREAD_GRACE", seconds)


def terminate_within(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Give workers so long to end once they have got SIGTERM."""
    from asyncpool._core import lifecycle

    monkeypatch.setattr(lifecycle, "TERM_GRACE", seconds)


def look_for_stalls_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no job moved to another worker since it waits behind one that takes long."""
    from asyncpool._engine import watch

    monkeypatch.setattr(watch, "ROUND", 3600.0)


def read_notes_by(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]
) -> None:
    """Have pools read by *function* what dead workers have noted of a chunk."""
    from asyncpool._wire import page

    monkeypatch.setattr(page, "read_log", function)


def end_cluster_workers_within(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have the workers of clusters end so soon when their time to drain is over."""
    from asyncpool.cluster import _master

    monkeypatch.setattr(_master, "_GRACE", seconds)


def terminate_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``terminate_workers()`` never go over to killing."""
    from asyncpool import executor

    monkeypatch.setattr(executor, "_TERMINATION", 3600.0)


def deliver_in_loops_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an executor call no callback in its own thread, however late a loop is."""
    from asyncpool import executor as delivery

    monkeypatch.setattr(delivery, "_PATIENCE", 3600.0)


def live_in_cgroup(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have this machine count the kills for lack of memory in *folder*."""
    from asyncpool._engine import machine

    files = [folder / "memory.events"]
    monkeypatch.setattr(machine, "_cgroup_files", lambda *_: files)


def shorten_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give workers little time to say where their jobs are."""
    from asyncpool._engine import watch

    monkeypatch.setattr(watch, "_PATIENCE", 0.2)


def pretend_machine(
    monkeypatch: pytest.MonkeyPatch, system: str, release: str, machine: str
) -> None:
    """Have sandboxes believe that this is another machine, which can enforce nothing."""
    from asyncpool._sandbox import confinement
    from asyncpool._sandbox.plan import Machine

    pretended = Machine(system, release, machine)
    monkeypatch.setattr(confinement, "this_machine", lambda: pretended)


def die_before_jobs() -> None:
    """Have this worker die when it gets a job, before it notes that it begins."""
    from asyncpool._worker.channels import EndRequests

    def claim(_: EndRequests) -> bool:
        os._exit(7)

    EndRequests.claim = claim  # type: ignore[method-assign, assignment]


def give_workers_cgroups(monkeypatch: pytest.MonkeyPatch, parent: Path) -> None:
    """Have each worker in a sandbox get a cgroup below *parent*, without any limit."""
    from asyncpool._sandbox import confinement

    none = {"cgroup.max.depth": "max"}
    monkeypatch.setattr(confinement, "_cgroup_limits", lambda *_: none)
    monkeypatch.setattr(confinement, "delegated_folder", lambda: parent)


@contextmanager
def no_pickles_in_logs() -> Iterator[None]:
    """Leave the pickles in the log of a chunk as they are: they are as good as code."""
    page: Any = importlib.import_module("asyncpool._wire.page")
    before = page.load_value, page.load_error
    page.load_value = page.load_error = bytes
    try:
        yield
    finally:
        page.load_value, page.load_error = before


async def begins_frame(channel: Channel) -> None:
    """Wait until a part of a frame has come, and no more."""
    while not channel._decoder.pending:  # noqa: ASYNC110 - nobody tells of a part
        await asyncio.sleep(0)


def ask_frame_watch(channel: Channel) -> None:
    """Have a channel look whether the peer has gone on with its frame."""
    channel._on_silence(0.0)


def unfinished_for_long(channel: Channel) -> None:
    """Have the peer be silent for twice as long as it may be, in the middle of a frame."""
    for _ in range(2):
        channel._silence_alarm.cancel()
        channel._on_silence(0.0)


def agent_of(pool: Pool, name: str) -> Agent:
    """Return an agent of *pool*, which no server has."""
    from asyncpool._remote.agent import Agent

    return Agent(pool, name)


def connect_within(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have clients wait so long for the greeting of an agent."""
    from asyncpool.sharedpool import _remote_pool

    monkeypatch.setattr(_remote_pool, "_CONNECT_TIMEOUT", seconds)


def client_of(pool: RemotePool) -> Client:
    """Return what submits the jobs of a remote pool."""
    return pool._life.running()


def only_job_of(pool: Pool) -> PoolJob[Any]:
    """Return the only job that is open in *pool*."""
    [job] = registry_of(pool).jobs.values()
    return job


def options_in(pool: Pool) -> JobOptions:
    """Return the options of the only job that is open in *pool*."""
    return only_job_of(pool).options


def figures_of(pool: RemotePool) -> NodeFigures:
    """Return what asks the agents of a pool for their figures."""
    return pool._life.running().figures


async def asked_by(figures: NodeFigures) -> None:
    """Wait until the agents have answered whom a look has had asked."""
    await asyncio.sleep(0)
    if figures._asking is not None:
        await asyncio.wait([figures._asking])
    assert figures._told


def lent_by(pool: SharedPool) -> set[int]:
    """Return the numbers of the segments that a client has lent its agent."""
    [node] = pool._life.running().nodes.values()
    assert node.carrier.lent is not None
    return {*node.carrier.lent._segments._segments}


def borrowed_by(pool: SharedPool) -> set[int]:
    """Return the numbers of the segments that an agent has lent its client."""
    [node] = pool._life.running().nodes.values()
    assert node.carrier.borrowed is not None
    return {*node.carrier.borrowed._segments}


def waiting_jobs(pool: SharedPool) -> int:
    """Return how many jobs of a client wait for its agent."""
    return pool._life.running().unassigned
