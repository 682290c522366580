"""The figures of a client's agents, as they were told last.

Whoever watches a pool wants its figures at once, and an agent takes a while to answer.  So
somebody's look has the agents asked again and again, for as long as looks may follow it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from asyncpool._engine.loop import Alarm, call_in
from asyncpool._engine.stats import oldest_queued, read_beside_loop
from asyncpool._remote.node import Node
from asyncpool.enums import JobOutcome, RunState
from asyncpool.errors import AsyncPoolError
from asyncpool.events import RollResult
from asyncpool.profile import Profile, StackSamples
from asyncpool.stats import FunctionStats, Histogram, NodeStats, PoolStats, SlotStats

if TYPE_CHECKING:
    from asyncpool._remote.client import Client


R = TypeVar("R", PoolStats, FunctionStats)


def merged_stats(found: Sequence[PoolStats]) -> PoolStats:
    """Return the figures of several pools as those of one."""
    if not found:
        return PoolStats(state=RunState.RUNNING, workers=0)
    by_name: dict[tuple[str, str], list[FunctionStats]] = {}
    for one in chain.from_iterable(stats.functions for stats in found):
        by_name.setdefault((one.function, one.via), []).append(one)
    return replace(
        _merged(found),
        oldest_queued=max(stats.oldest_queued for stats in found),
        functions=tuple(map(_merged, by_name.values())),
    )


def _merged(found: Sequence[R]) -> R:
    """Return records of one kind as one: what can be added up is, and the first has the rest."""
    sums: dict[str, Any] = {}
    for field in fields(found[0]):
        values = [getattr(one, field.name) for one in found]
        if isinstance(values[0], int | float):
            sums[field.name] = sum(values)
        elif isinstance(values[0], Histogram):
            sums[field.name] = merged_histogram(values)
        elif isinstance(values[0], Mapping):
            sums[field.name] = dict(sum(map(Counter, values), Counter()))
        elif isinstance(values[0], tuple):
            sums[field.name] = tuple(chain.from_iterable(values))
    return replace(found[0], **sums)


def merged_rolls(found: Sequence[RollResult]) -> RollResult:
    """Return the results of several rolls as that of one."""
    return RollResult(
        replaced=sum(each.replaced for each in found),
        filled=sum(each.filled for each in found),
        reason="; ".join(dict.fromkeys(each.reason for each in found if each.reason)),
        crash=next((each.crash for each in found if each.crash), None),
    )


def merged_profiles(found: Sequence[Profile], pool: str) -> Profile:
    """Return several profiles as one."""
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for profile in found:
        for stack in profile.stacks:
            counts[stack.function, stack.frames] += stack.samples
    workers = tuple(worker for profile in found for worker in profile.workers)
    stacks = tuple(
        StackSamples(function=function, frames=frames, samples=samples)
        for (function, frames), samples in counts.most_common()
    )
    seconds = max(profile.seconds for profile in found)
    return replace(found[0], pool=pool, seconds=seconds, stacks=stacks, workers=workers)


def merged_histogram(found: Iterable[Histogram]) -> Histogram:
    """Return the durations of several histograms."""
    found = [*found]
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
    """What an agent has told, when that was, and how far its clock was ahead, give or take."""

    stats: PoolStats
    at: float
    ahead: float
    error: float


class NodeFigures:
    """Asks the agents of a client for their figures, and puts them together.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self._client, self._loop = client, client.loop
        self._told: dict[Node, _Told] = {}
        self._gone: list[PoolStats] = []  # what lost agents have counted
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
        for error in await self._answers():
            if isinstance(error, BaseException):
                raise error
        return self.latest()

    def latest(self) -> PoolStats:
        """Return the figures as they were told last, in any thread."""
        if not (self._client.left or self._loop.is_closed()):
            call_in(self._loop, self._begin)
        return read_beside_loop(self._read)

    def lost(self, node: Node) -> None:
        """Keep what the workers of an agent have counted that is gone: counters never fall."""
        told = self._told.pop(node, None)
        if told is not None:
            self._gone = [merged_stats([*self._gone, _counters(told.stats)])]

    def close(self) -> None:
        """Ask no more."""
        self._alarm.cancel()
        if self._asking is not None:
            self._asking.cancel()

    # Asking.

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
        count = len(await self._answers())  # whoever awaits stats() hears of errors
        self._asking = None
        self._alarm.set_in(max(_EVERY, _FOR_EACH * count))

    async def _answers(self) -> list[BaseException | None]:
        asked = map(self._ask, self._client.nodes.values())
        return await asyncio.gather(*asked, return_exceptions=True)

    async def _ask(self, node: Node) -> None:
        began = time.monotonic()
        try:
            stats: PoolStats = await node.ask("stats")
        except AsyncPoolError:
            if not node.gone:
                raise
            return
        if not node.gone:
            # Its answer was made between the two times, so its clock is within half of that.
            ended = time.monotonic()
            ahead = node.stamp / 1e6 - (began + ended) / 2
            error = (ended - began) / 2
            self._told[node] = _Told(stats, self._loop.time(), ahead, error)

    # Reading.

    def _read(self) -> PoolStats:
        client, now = self._client, self._loop.time()
        registry, told = client.registry, dict(self._told)
        functions = registry.figures.functions
        nodes = [*client.nodes.values()]
        found = [self._as_of_now(told[node], now) for node in nodes if node in told]
        whole = merged_stats([*found, *self._gone])
        return replace(
            whole,
            state=RunState.CLOSED if client.left else RunState.RUNNING,
            workers=sum(_workers(node, told) for node in nodes),
            queued=whole.queued + client.unassigned,
            oldest_queued=max(whole.oldest_queued, self._oldest_queued(now)),
            submitted=registry.submitted,
            completed=registry.completed,
            failed=registry.failed,
            cancelled=functions.count(JobOutcome.CANCELLED),
            refused=registry.figures.refused,
            timeouts=functions.count(JobOutcome.TIMEOUT),
            retries=sum(each.retries for each in functions),
            takeovers=sum(each.takeovers for each in functions),
            dropped_events=client.hub.dropped,
            lost_nodes=client.lost_nodes,
            nodes=tuple(_node_stats(node, told.get(node), now) for node in nodes),
        )

    def _oldest_queued(self, now: float) -> float:
        client = self._client
        if not client.unassigned:
            return 0.0
        return oldest_queued(client.registry, now, lambda job: job.slot is None)

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


# The figures of an agent's pool that its summary has as they are.
_OF_NODES = "workers", "idle", "busy", "queued", "crashes", "restarts"


def _node_stats(node: Node, told: _Told | None, now: float) -> NodeStats:
    stats = PoolStats(state=RunState.NEW, workers=node.window.lanes)
    age, ahead, error = None, 0.0, None
    if told is not None:
        stats, age = told.stats, max(0.0, now - told.at)
        ahead, error = told.ahead, told.error
    return NodeStats(
        name=node.name,
        first_slot=node.first_slot,
        suspected=node.suspected,
        silent=max(0.0, now - node.carrier.heard_at),
        jobs=len(node.jobs),
        age=age,
        **{name: getattr(stats, name) for name in _OF_NODES},
        run=merged_histogram(it.run for it in stats.functions),
        cpu=_cpu_of(stats),
        memory=sum(slot.memory for slot in stats.slots),
        clock_ahead=ahead,
        clock_error=error,
    )


def _workers(node: Node, told: dict[Node, _Told]) -> int:
    return told[node].stats.workers if node in told else node.window.lanes


# Of the figures of a pool, those that nobody has any more when its workers are gone.
_GAUGES = "workers", "idle", "busy", "queued", "oldest_queued", "shared_memory"


def _counters(stats: PoolStats) -> PoolStats:
    """Return figures without what belongs to workers that are gone."""
    nothing: dict[str, Any] = dict.fromkeys(_GAUGES, 0)
    cpu = _cpu_of(stats)
    return replace(stats, **nothing, exited_cpu=cpu, slots=(), clients=())


def _cpu_of(stats: PoolStats) -> float:
    return stats.exited_cpu + sum(slot.cpu for slot in stats.slots)
