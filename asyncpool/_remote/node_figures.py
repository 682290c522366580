"""The figures of a client's agents, as they were told last.

Whoever watches a pool wants its figures at once, and an agent takes a while to answer.  So
somebody's look has the agents asked again and again, for as long as looks may follow it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from asyncpool._engine.loop import Alarm
from asyncpool._engine.stats import oldest_queued, read_beside_loop
from asyncpool._remote.node import Node
from asyncpool.enums import JobOutcome, RunState
from asyncpool.errors import AsyncPoolError
from asyncpool.events import RollResult
from asyncpool.profile import Profile, StackSamples
from asyncpool.stats import FunctionStats, Histogram, NodeStats, PoolStats, SlotStats

if TYPE_CHECKING:
    from asyncpool._remote.client import Client


K = TypeVar("K")


def merged_stats(found: Sequence[tuple[int, PoolStats]]) -> PoolStats:
    """Return the figures of several pools, each with its first slot, as those of one."""
    if not found:
        return PoolStats(state=RunState.RUNNING, workers=0)
    one = found[0][1]
    sums: dict[str, object] = {}
    for field in fields(PoolStats):
        values = [getattr(stats, field.name) for _, stats in found]
        if field.name == "oldest_queued":
            sums[field.name] = max(values)
        elif isinstance(values[0], int | float):
            sums[field.name] = sum(values)
        elif isinstance(values[0], Histogram):
            sums[field.name] = _histogram(values)
        elif isinstance(values[0], Mapping):
            sums[field.name] = _counts(values)
    slots = tuple(
        replace(slot, slot=first + slot.slot)
        for first, stats in found
        for slot in stats.slots
    )
    functions = _functions(stats for _, stats in found)
    return replace(one, **sums, slots=slots, functions=functions)  # type: ignore[arg-type]


def merged_rolls(found: Sequence[RollResult]) -> RollResult:
    """Return the results of several rolls as that of one."""
    return RollResult(
        replaced=sum(each.replaced for each in found),
        filled=sum(each.filled for each in found),
        reason="; ".join(dict.fromkeys(each.reason for each in found if each.reason)),
        crash=next((each.crash for each in found if each.crash), None),
    )


def merged_profiles(found: Sequence[tuple[int, Profile]], pool: str) -> Profile:
    """Return several profiles, each with its first slot, as one."""
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for _, profile in found:
        for stack in profile.stacks:
            counts[stack.function, stack.frames] += stack.samples
    workers = tuple(
        replace(worker, slot=first + worker.slot)
        for first, profile in found
        for worker in profile.workers
    )
    stacks = tuple(
        StackSamples(function=function, frames=frames, samples=samples)
        for (function, frames), samples in counts.most_common()
    )
    seconds = max(profile.seconds for _, profile in found)
    return replace(
        found[0][1], pool=pool, seconds=seconds, stacks=stacks, workers=workers
    )


def _functions(found: Iterable[PoolStats]) -> tuple[FunctionStats, ...]:
    by_name: dict[tuple[str, str], list[FunctionStats]] = {}
    for stats in found:
        for one in stats.functions:
            by_name.setdefault((one.function, one.via), []).append(one)
    return tuple(
        replace(
            group[0],
            jobs=_counts([one.jobs for one in group]),
            retries=sum(one.retries for one in group),
            takeovers=sum(one.takeovers for one in group),
            items=sum(one.items for one in group),
            run=_histogram([one.run for one in group]),
            wait=_histogram([one.wait for one in group]),
        )
        for group in by_name.values()
    )


def _counts(found: Iterable[Mapping[K, int]]) -> dict[K, int]:
    counts: Counter[K] = Counter()
    for one in found:
        counts.update(one)
    return dict(counts)


def _histogram(found: Sequence[Histogram]) -> Histogram:
    counts: Counter[float] = Counter()
    for one in found:
        counts.update(dict(zip(one.bounds, one.counts, strict=True)))
    bounds = tuple(sorted(counts))
    return Histogram(
        bounds=bounds,
        counts=tuple(counts[bound] for bound in bounds),
        total=sum(one.total for one in found),
    )


# Seconds between two questions to each agent, and at least so many for each agent there is: an
# answer takes the client a millisecond.
_EVERY = 1.0
_FOR_EACH = 0.01

# For how many seconds a look has the agents asked: metrics are collected once a minute.
_WANTED = 90.0


class _Told(NamedTuple):
    stats: PoolStats
    at: float


class NodeFigures:
    """Asks the agents of a client for their figures, and puts them together.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._told: dict[Node, _Told] = {}
        self._gone: list[tuple[int, PoolStats]] = []  # what lost agents have counted
        self._wanted_until = -math.inf
        self._alarm = Alarm(self._loop, self._on_alarm)
        self._asking: asyncio.Task[None] | None = None

    async def ask(self) -> PoolStats:
        """Ask all agents, and return what they and the client have.

        Raises:
            AsyncPoolError: What an agent has raised that is not lost meanwhile.

        Cancellation:
            Safe.
        """
        nodes = [*self._client.nodes]
        asked = [self._ask(node) for node in nodes]
        for error in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(error, BaseException):
                raise error
        return self.latest()

    def latest(self) -> PoolStats:
        """Return the figures as they were told last, in any thread."""
        self._want()
        return read_beside_loop(self._read)

    def lost(self, node: Node) -> None:
        """Keep what the workers of an agent have counted that is gone: counters never fall."""
        told = self._told.pop(node, None)
        if told is None:
            return
        gone = [*self._gone, (0, _counters(told.stats))]
        self._gone = [(0, merged_stats(gone))]

    def close(self) -> None:
        """Ask no more."""
        self._alarm.cancel()
        if self._asking is not None:
            self._asking.cancel()

    # Asking.

    def _want(self) -> None:
        if self._client.left:
            return
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._begin()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._client.left:
            return
        self._wanted_until = self._loop.time() + _WANTED
        if self._asking is None and not self._alarm.is_set:
            self._on_alarm(self._loop.time())

    def _on_alarm(self, now: float) -> None:
        if now < self._wanted_until:
            self._asking = self._loop.create_task(
                self._ask_all(), name="asyncpool figures of nodes"
            )

    async def _ask_all(self) -> None:
        nodes = [*self._client.nodes]
        asked = [self._ask(node) for node in nodes]
        # Whoever awaits stats() hears of errors.
        await asyncio.gather(*asked, return_exceptions=True)
        self._asking = None
        self._alarm.set_in(max(_EVERY, _FOR_EACH * len(nodes)))

    async def _ask(self, node: Node) -> None:
        try:
            stats: PoolStats = await self._client.ask("stats", at=node)
        except AsyncPoolError:
            if node in set(self._client.nodes):
                raise
            return  # it is lost
        if node in set(self._client.nodes):
            self._told[node] = _Told(stats, self._loop.time())

    # Reading.

    def _read(self) -> PoolStats:
        client, now = self._client, self._loop.time()
        registry, told = client.registry, dict(self._told)
        functions = registry.figures.functions
        found = [
            (node.first_slot, self._as_of_now(each, now)) for node, each in told.items()
        ]
        whole = merged_stats([*found, *self._gone])
        nodes = [*client.nodes]
        return replace(
            whole,
            state=RunState.CLOSED if client.left else RunState.RUNNING,
            workers=sum(_workers(node, told) for node in nodes),
            queued=whole.queued + client.jobs.waiting,
            oldest_queued=max(whole.oldest_queued, self._oldest_queued(now)),
            submitted=registry.submitted,
            completed=registry.completed,
            failed=registry.failed,
            cancelled=functions.count(JobOutcome.CANCELLED),
            refused=registry.figures.refused,
            timeouts=functions.count(JobOutcome.TIMEOUT),
            retries=sum(each.retries for each in functions),
            takeovers=registry.figures.takeovers,
            dropped_events=client.hub.dropped,
            lost_nodes=client.nodes.lost,
            nodes=tuple(self._node_stats(node, told.get(node), now) for node in nodes),
        )

    def _oldest_queued(self, now: float) -> float:
        jobs, registry = self._client.jobs, self._client.registry
        if not jobs.waiting:
            return 0.0
        return oldest_queued(registry, now, lambda job: jobs.agent_of(job.id) is None)

    def _as_of_now(self, told: _Told, now: float) -> PoolStats:
        """Return figures whose jobs have run on meanwhile, or have ended."""
        jobs, age = self._client.registry.jobs, max(0.0, now - told.at)

        def known(slot: SlotStats) -> SlotStats:
            running = tuple(
                replace(job, seconds=job.seconds + age)
                for job in slot.running
                if not job.job_id or job.job_id in jobs
            )
            return replace(slot, running=running) if slot.running else slot

        return replace(told.stats, slots=tuple(map(known, told.stats.slots)))

    def _node_stats(self, node: Node, told: _Told | None, now: float) -> NodeStats:
        jobs, clock = self._client.jobs, node.clock.offset(now)
        stats = PoolStats(state=RunState.NEW, workers=node.lanes)
        age = None
        if told is not None:
            stats, age = told.stats, max(0.0, now - told.at)
        return NodeStats(
            name=node.name,
            first_slot=node.first_slot,
            suspected=jobs.is_suspected(node.number),
            silent=max(0.0, now - node.signs.heard_at),
            jobs=jobs.held_by(node.number),
            age=age,
            workers=stats.workers,
            idle=stats.idle,
            busy=stats.busy,
            queued=stats.queued,
            crashes=stats.crashes,
            restarts=stats.restarts,
            cpu=stats.exited_cpu + sum(slot.cpu for slot in stats.slots),
            memory=sum(slot.memory for slot in stats.slots),
            clock_ahead=clock.ahead,
            clock_error=clock.error if math.isfinite(clock.error) else None,
        )


def _workers(node: Node, told: dict[Node, _Told]) -> int:
    return told[node].stats.workers if node in told else node.lanes


def _counters(stats: PoolStats) -> PoolStats:
    """Return figures without what belongs to workers that are gone."""
    return replace(
        stats,
        workers=0,
        idle=0,
        busy=0,
        queued=0,
        oldest_queued=0.0,
        exited_cpu=stats.exited_cpu + sum(slot.cpu for slot in stats.slots),
        shared_memory=0,
        slots=(),
    )
