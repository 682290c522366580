"""Where the time of jobs went, as :meth:`asyncpool.Pool.profile` returns it."""

from __future__ import annotations

import html
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncpool._wire.profile import count_stack

if TYPE_CHECKING:
    from asyncpool._wire.profile import SampleChunk, Stack

__all__ = ["FrameSamples", "Profile", "ProfiledWorker", "StackSamples"]

# How many different stacks of all workers are counted.
_MOST_STACKS = 20_000

# What is counted besides stacks.
_FIGURES = ("idle", "skipped", "missed")

# Narrower rectangles than this part of the whole are left out: no screen is as wide.
_FINEST = 5000

# No text in the data can end the element that it is in, or begin another one.
_HARMLESS = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSamples:
    """How many samples have found one stack.

    Attributes:
        function: The function of the job, such as ``"shop.images.resize"``; ``"(no job)"`` for
            threads that jobs have left or started, and ``"(other)"`` for the samples of all
            stacks beyond the bound: 2000 of one worker in a second, 20 000 in all.
        frames: The calls inside the job, the outermost first, such as
            ``"shop.images.resize:12"``, with the line where the function begins.  Those of
            asyncpool and the event loop around them are left out.  A coroutine that waits ends
            with ``"(awaiting)"``; ``"(asyncpool)"`` is what the worker does for the job, such as
            pickling its result.  Empty if the job is a function in C.
        samples: The number.
    """

    function: str
    frames: tuple[str, ...]
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSamples:
    """How many samples have found one function.

    Attributes:
        name: The function, as in ``StackSamples.frames``.
        own: The samples in which it was the innermost call.
        total: Those in which it was any of the calls.
    """

    name: str
    own: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledWorker:
    """What one worker has contributed to a profile.

    Attributes:
        slot: The slot.
        generation: Which worker of the slot it is.
        pid: Its process id.
        samples: How many of the profile's samples are its.
        idle: How many times it ran no job.
        skipped: How many times it ran a job of another function than was asked for.
        missed: How many of the samples were taken late, because no other thread could run.
            They count for the stack that was found then.
        complete: Whether all of its samples have come.  If not, it has ended, or did not answer
            in time, and at least the samples of its last second are missing.
        error: Why its sampler has ended early, if it has.
    """

    slot: int
    generation: int
    pid: int
    samples: int
    idle: int
    skipped: int
    missed: int
    complete: bool
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the workers of a pool have spent their time.

    The samples are of time by the clock: a job that waits counts as one that computes.

    Attributes:
        pool: What the pool is called: ``"pool shop"``.
        seconds: How long it took.
        rate: How many times a second each worker was looked at.
        slot: The only slot that was looked at; ``None`` if all were.
        function: The only function that counts, as it was given; ``None`` if all do.
        stacks: The stacks that were found, the most frequent first.
        workers: The workers that were looked at, by slot and generation.
    """

    pool: str
    seconds: float
    rate: float
    slot: int | None
    function: str | None
    stacks: tuple[StackSamples, ...]
    workers: tuple[ProfiledWorker, ...]

    @property
    def samples(self) -> int:
        """How many samples there are in all stacks."""
        return sum(stack.samples for stack in self.stacks)

    @property
    def idle(self) -> int:
        """How many times a worker ran no job."""
        return sum(worker.idle for worker in self.workers)

    @property
    def missed(self) -> int:
        """How many samples were taken late; see ``ProfiledWorker.missed``."""
        return sum(worker.missed for worker in self.workers)

    def top(self, most: int = 20) -> tuple[FrameSamples, ...]:
        """Return the functions that were the innermost call most often, *most* of them."""
        own, total = Counter[str](), Counter[str]()
        for stack in self.stacks:
            # A job without any calls of Python counts as a call of its function.
            calls = stack.frames or (stack.function,)
            own[calls[-1]] += stack.samples
            for name in set(calls):  # one that calls itself counts once in each sample
                total[name] += stack.samples
        found = sorted(total, key=lambda name: (-own[name], -total[name], name))
        return tuple(
            FrameSamples(name=name, own=own[name], total=total[name])
            for name in found[:most]
        )

    def collapsed(self) -> str:
        """Return the stacks as text, which ``flamegraph.pl`` and https://speedscope.app read.

        Each line has one stack, the job's function first, and the number of its samples.
        """
        # Stacks that differ only in a character that the format does not have are one here.
        lines = Counter[str]()
        for stack in self.stacks:
            calls = [
                name.replace(";", ":").replace("\n", " ")
                for name in (stack.function, *stack.frames)
            ]
            lines[";".join(calls)] += stack.samples
        return "".join(f"{line} {samples}\n" for line, samples in lines.items())

    def html(self) -> str:
        """Return a page with a flame graph, which needs no other file and no other host."""
        least = self.samples // _FINEST + 1
        names: dict[str, int] = {}
        rows = [
            (names.setdefault(name, len(names)), depth, start, samples)
            for name, depth, start, samples in lay_out(self.stacks, least=least)
        ]
        data = {
            "names": list(names),
            "rows": rows,
            "rate": self.rate,
            "facts": self._facts(),
            "top": [(frame.name, frame.own, frame.total) for frame in self.top()],
        }
        packed = json.dumps(data, separators=(",", ":")).translate(_HARMLESS)
        source = resources.files("asyncpool.profile").joinpath("flame_graph.html")
        page = source.read_text(encoding="utf-8")
        before, after = page.split("@DATA@")
        title = html.escape(f"{self.pool}, {self.seconds:.3g} s")
        return before.replace("@TITLE@", title) + packed + after

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page of :meth:`html` to a file.

        Raises:
            OSError: If the file cannot be written.
        """
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - takes any path
            file.write(self.html())

    def _facts(self) -> list[str]:
        """Return what the page says in words."""
        workers, samples = self.workers, self.samples
        whole = f"{_count(samples, 'sample')} of {_count(len(workers), 'worker')}"
        facts = [f"{whole}, {self.rate:g} a second each"]
        facts.append(f"{self.idle} more found no job")
        if self.function is not None:
            skipped = sum(worker.skipped for worker in workers)
            facts.append(f"only jobs of {self.function}; {skipped} found another job")
        if self.slot is not None:
            facts.append(f"only slot {self.slot}")
        if self.missed:
            facts.append(f"{self.missed} were taken late")
        partly = [f"{it.pid} in slot {it.slot}" for it in workers if not it.complete]
        if partly:
            facts.append(f"the last samples are missing of {', '.join(partly)}")
        return facts


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class ProfileBook:
    """A profile that is being taken: the workers that were asked, and what they have sent.

    Attributes:
        open: Those from which more may come, by slot and generation.
    """

    def __init__(self) -> None:
        self.open: set[tuple[int, int]] = set()
        self._stacks: dict[Stack, int] = {}
        self._workers: dict[tuple[int, int], dict[str, Any]] = {}

    @property
    def stacks(self) -> tuple[StackSamples, ...]:
        """The stacks with their numbers of samples, the most frequent first."""
        found = sorted(self._stacks.items(), key=lambda entry: (-entry[1], entry[0]))
        return tuple(
            StackSamples(function=function, frames=frames, samples=samples)
            for (function, frames), samples in found
        )

    @property
    def workers(self) -> tuple[ProfiledWorker, ...]:
        """The workers that were asked, by slot and generation."""
        rows = [self._workers[which] for which in sorted(self._workers)]
        return tuple(ProfiledWorker(**row) for row in rows)

    def ask(self, slot: int, generation: int, pid: int) -> None:
        """Note that a worker was asked for samples."""
        self.open.add((slot, generation))
        row: dict[str, Any] = {"slot": slot, "generation": generation, "pid": pid}
        row |= dict.fromkeys(("samples", *_FIGURES), 0)
        self._workers[slot, generation] = row | {"complete": False, "error": ""}

    def hear(
        self, slot: int, generation: int, chunk: SampleChunk, *, last: bool
    ) -> None:
        """Take a part of a worker's samples; after the *last* one nothing counts."""
        if (slot, generation) not in self.open:
            return
        row = self._workers[slot, generation]
        for stack, samples in chunk.stacks.items():
            count_stack(self._stacks, stack, samples, _MOST_STACKS)
            row["samples"] += samples
        for name, count in zip(_FIGURES, chunk.figures, strict=True):
            row[name] += count
        row["error"] = row["error"] or chunk.error
        if last:
            row["complete"] = not row["error"]
            self.lost(slot, generation)

    def lost(self, slot: int, generation: int) -> None:
        """Note that no more will come from a worker."""
        self.open.discard((slot, generation))


# Where the rectangles of a flame graph are.
#
# The root is at the top, and each call is below its caller, as wide as its number of samples.


class Rectangle(NamedTuple):
    """One call, in all stacks that begin in the same way.

    Attributes:
        name: What it shows.
        depth: How many rectangles are above it.
        start: How many samples are left of it.
        samples: How wide it is.
    """

    name: str
    depth: int
    start: int
    samples: int


def lay_out(stacks: Iterable[StackSamples], *, least: int = 1) -> list[Rectangle]:
    """Return the rectangles, each before those below it, and from left to right.

    Args:
        stacks: The stacks.
        least: Those with fewer samples are left out, with all that is below them.
    """

    def place(
        name: str, depth: int, start: int, alike: list[tuple[tuple[str, ...], int]]
    ) -> Iterator[Rectangle]:
        """Yield a call, and those below it, in the stacks that are *alike* down to there."""
        yield Rectangle(name, depth, start, sum(samples for _, samples in alike))
        below = defaultdict[str, list[tuple[tuple[str, ...], int]]](list)
        for calls, samples in alike:
            if len(calls) > depth:
                below[calls[depth]].append((calls, samples))
        widths = {call: sum(it[1] for it in each) for call, each in below.items()}
        # The widest first.  What a call did itself stays free, to the right.
        for call in sorted(below, key=lambda it: (-widths[it], it)):
            if widths[call] >= least:
                yield from place(call, depth + 1, start, below[call])
            start += widths[call]

    every = [((it.function, *it.frames), it.samples) for it in stacks]
    return list(place("all", 0, 0, every))
