"""What several agents say of their pools, as if it were one pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TypeVar

from asyncpool.enums import RunState
from asyncpool.events import RollResult
from asyncpool.profile import Profile, StackSamples
from asyncpool.stats import FunctionStats, Histogram, PoolStats

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
