"""Where the time of jobs went, as :meth:`asyncpool.Pool.profile` returns it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from asyncpool._wire.profile import Stack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpool._wire.profile import Stack

__all__ = ["FrameSamples", "Profile", "ProfiledWorker", "StackSamples"]


# The page of a flame graph: one file, with the data, the style and the script in it.

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


class _Call:
    __slots__ = ("calls", "name", "samples")

    def __init__(self, name: str) -> None:
        self.name = name
        self.samples = 0
        self.calls: dict[str, _Call] = {}


def lay_out(
    stacks: Iterable[tuple[Stack, int]], root: str, *, least: int = 1
) -> list[Rectangle]:
    """Return the rectangles, each before those below it, and from left to right.

    Args:
        stacks: The stacks and their samples.
        root: The name of the one that has all others below it.
        least: Those with fewer samples are left out, with all that is below them.
    """
    top = _Call(root)
    for (function, frames), samples in stacks:
        call = top
        call.samples += samples
        for name in (function, *frames):
            call = call.calls.setdefault(name, _Call(name))
            call.samples += samples
    found: list[Rectangle] = []
    todo = [(top, 0, 0)]
    while todo:
        call, depth, start = todo.pop()
        found.append(Rectangle(call.name, depth, start, call.samples))
        below: list[tuple[_Call, int, int]] = []
        # The widest first.  What a call did itself stays free, to the right.
        for inner in sorted(
            call.calls.values(), key=lambda each: (-each.samples, each.name)
        ):
            if inner.samples >= least:
                below.append((inner, depth + 1, start))
            start += inner.samples
        todo += reversed(below)
    return found


# Narrower rectangles than this part of the whole are left out: no screen is as wide.
_FINEST = 5000

# No text in the data can end the element that it is in, or begin another one.
_HARMLESS = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028"}
)


def flame_graph_page(
    stacks: list[tuple[Stack, int]],
    *,
    title: str,
    rate: float,
    facts: list[str],
    top: Iterable[tuple[str, int, int]],
) -> str:
    """Return the page.

    Args:
        stacks: The stacks and their samples.
        title: What it shows.
        rate: How many samples a worker has in a second.
        facts: What it says in words.
        top: The most frequent functions: the name, its own samples, and all of them.
    """
    least = sum(samples for _, samples in stacks) // _FINEST + 1
    names: dict[str, int] = {}
    rows = [
        (names.setdefault(name, len(names)), depth, start, samples)
        for name, depth, start, samples in lay_out(stacks, "all", least=least)
    ]
    data = {
        "names": list(names),
        "rows": rows,
        "rate": rate,
        "facts": facts,
        "top": list(top),
    }
    packed = json.dumps(data, separators=(",", ":")).translate(_HARMLESS)
    source = resources.files("asyncpool.profile").joinpath("flame_graph.html")
    page = source.read_text(encoding="utf-8")
    for element in ("style", "script"):
        # The browser runs nothing that has another hash.
        text = page.split(f"<{element}>")[1].split(f"</{element}>")[0]
        page = page.replace(f"@{element.upper()}@", _hash_of(text))
    before, after = page.split("@DATA@")
    return before.replace("@TITLE@", html.escape(title)) + packed + after


def _hash_of(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


# What a profile is as text and as a table.


def collapse(stacks: Iterable[tuple[Stack, int]]) -> str:
    """Return the stacks in the format of ``flamegraph.pl``: one in a line, and its samples."""
    # Stacks that differ only in a character that the format does not have are one here.
    lines = Counter[str]()
    for (function, frames), samples in stacks:
        lines[";".join(map(_in_line, (function, *frames)))] += samples
    return "".join(f"{line} {samples}\n" for line, samples in lines.items())


def _in_line(name: str) -> str:
    return name.replace(";", ":").replace("\n", " ")


def count_frames(
    stacks: Iterable[tuple[Stack, int]],
) -> list[tuple[str, int, int]]:
    """Return each call with its samples: on top of the stack, and anywhere in it.

    A job without any calls of Python counts as a call of its function.  The calls that were
    on top most often come first.  A call that calls itself counts once in each sample.
    """
    own, total = Counter[str](), Counter[str]()
    for (function, frames), samples in stacks:
        calls = frames or (function,)
        own[calls[-1]] += samples
        for name in set(calls):
            total[name] += samples
    found = [(name, own[name], samples) for name, samples in total.items()]
    return sorted(found, key=lambda entry: (-entry[1], -entry[2], entry[0]))


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
        found = count_frames(self._counts())[:most]
        return tuple(
            FrameSamples(name=name, own=own, total=total) for name, own, total in found
        )

    def collapsed(self) -> str:
        """Return the stacks as text, which ``flamegraph.pl`` and https://speedscope.app read.

        Each line has one stack, the job's function first, and the number of its samples.
        """
        return collapse(self._counts())

    def html(self) -> str:
        """Return a page with a flame graph, which needs no other file and no other host."""
        return flame_graph_page(
            self._counts(),
            title=f"{self.pool}, {self.seconds:.3g} s",
            rate=self.rate,
            facts=self._facts(),
            top=[(frame.name, frame.own, frame.total) for frame in self.top()],
        )

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page of :meth:`html` to a file.

        Raises:
            OSError: If the file cannot be written.
        """
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - takes any path
            file.write(self.html())

    def _counts(self) -> list[tuple[Stack, int]]:
        return [((each.function, each.frames), each.samples) for each in self.stacks]

    def _facts(self) -> list[str]:
        """Return what the page says in words."""
        workers, samples = self.workers, self.samples
        whole = f"{_count(samples, 'sample')} of {_count(len(workers), 'worker')}"
        facts = [
            f"{whole}, {self.rate:g} a second each",
            f"{self.idle} more found no job",
        ]
        if self.function is not None:
            skipped = sum(worker.skipped for worker in workers)
            facts.append(f"only jobs of {self.function}; {skipped} found another job")
        if self.slot is not None:
            facts.append(f"only slot {self.slot}")
        if self.missed:
            facts.append(f"{self.missed} were taken late")
        partly = [worker for worker in workers if not worker.complete]
        if partly:
            slots = ", ".join(
                f"{worker.pid} in slot {worker.slot}" for worker in partly
            )
            facts.append(f"the last samples are missing of {slots}")
        return facts


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
