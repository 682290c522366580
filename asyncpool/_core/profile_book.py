"""What a pool knows of a profile that is being taken: whom it has asked, and what they sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncpool._wire.profile import Stack, StackCounts

if TYPE_CHECKING:
    from asyncpool._wire.profile import SampleChunk

# How many different stacks of all workers are counted.
_MOST_STACKS = 20_000


@dataclass(slots=True, kw_only=True)
class WorkerRecord:
    """What came from one worker.

    Attributes:
        slot: Its slot.
        generation: Its generation.
        pid: Its process.
        samples: How many samples have found what was asked for.
        idle: How many have found no job.
        skipped: How many have found a job of another function.
        missed: How many were late.
        is_open: Whether more may come from it.
        complete: Whether everything has come from it.
        error: Why its sampler has ended early, if it has.
    """

    slot: int
    generation: int
    pid: int
    samples: int = 0
    idle: int = 0
    skipped: int = 0
    missed: int = 0
    is_open: bool = True
    complete: bool = False
    error: str = ""


class ProfileBook:
    """The workers of one profile, and their samples."""

    def __init__(self) -> None:
        self._counts = StackCounts(_MOST_STACKS)
        self._records: dict[tuple[int, int], WorkerRecord] = {}

    @property
    def is_open(self) -> bool:
        """Whether more samples may come."""
        return any(record.is_open for record in self._records.values())

    @property
    def stacks(self) -> list[tuple[Stack, int]]:
        """The stacks with their numbers of samples, the most frequent first."""
        counts = self._counts.counts
        return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))

    @property
    def records(self) -> list[WorkerRecord]:
        """The workers that were asked, by slot and generation."""
        return [self._records[which] for which in sorted(self._records)]

    def ask(self, slot: int, generation: int, pid: int) -> None:
        """Note that a worker was asked for samples."""
        self._records[slot, generation] = WorkerRecord(
            slot=slot, generation=generation, pid=pid
        )

    def hear(
        self, slot: int, generation: int, chunk: SampleChunk, *, last: bool
    ) -> None:
        """Take a part of a worker's samples; after the *last* one nothing counts."""
        record = self._records.get((slot, generation))
        if record is None or not record.is_open:
            return
        for stack, samples in chunk.stacks.items():
            self._counts.add(stack, samples)
            record.samples += samples
        record.idle += chunk.figures.idle
        record.skipped += chunk.figures.skipped
        record.missed += chunk.figures.missed
        record.error = record.error or chunk.error
        if last:
            record.is_open, record.complete = False, not record.error

    def lost(self, slot: int, generation: int) -> None:
        """Note that a worker has ended: no more will come from it."""
        record = self._records.get((slot, generation))
        if record is not None:
            record.is_open = False
