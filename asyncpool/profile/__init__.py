"""Where the time of jobs went, as :meth:`asyncpool.Pool.profile` returns it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncpool._core.profile.stack_counts import Stack

__all__ = ["FrameSamples", "Profile", "ProfiledWorker", "StackSamples"]


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
        from asyncpool._core.profile.stack_texts import count_frames  # noqa: PLC0415 - see above

        found = count_frames(self._counts())[:most]
        return tuple(
            FrameSamples(name=name, own=own, total=total) for name, own, total in found
        )

    def collapsed(self) -> str:
        """Return the stacks as text, which ``flamegraph.pl`` and https://speedscope.app read.

        Each line has one stack, the job's function first, and the number of its samples.
        """
        from asyncpool._core.profile.stack_texts import collapse  # noqa: PLC0415 - see above

        return collapse(self._counts())

    def html(self) -> str:
        """Return a page with a flame graph, which needs no other file and no other host."""
        from asyncpool.profile._page import flame_graph_page  # noqa: PLC0415 - see above

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
