"""How often the jobs of each function have ended in which way, and how long they took.

A pool meets any number of functions, and whoever reads its figures keeps a series for each
name.  So the number of names is bounded: the first ones have figures of their own, and all
later ones share those of :data:`OTHER`.
"""

from __future__ import annotations

from asyncpool._core.figures.durations import Durations
from asyncpool.enums import JobOutcome
from asyncpool.events import Via
from asyncpool.stats import FunctionStats

MOST_NAMES = 200

OTHER = "other"


class FunctionFigures:
    """What is counted of one function.

    Attributes:
        name: Its name.
        via: How it is called.
        run: How long its attempts ran, as far as they came to an outcome.
        wait: How long its attempts waited before they began; of the same ones.
        ok: How many of its jobs have returned.
        others: How many have ended otherwise, by outcome.
        retries: Attempts after one that raised.
        takeovers: Attempts after one whose worker has died.
        items: How many items of maps have an outcome.
    """

    __slots__ = (
        "items",
        "name",
        "ok",
        "others",
        "retries",
        "run",
        "takeovers",
        "via",
        "wait",
    )

    def __init__(self, name: str, via: Via) -> None:
        self.name: str = name
        self.via: Via = via
        self.run: Durations = Durations()
        self.wait: Durations = Durations()
        self.ok: int = 0
        self.others: dict[JobOutcome, int] = {}
        self.retries: int = 0
        self.takeovers: int = 0
        self.items: int = 0

    def ran(self, microseconds: int, waited: int) -> None:
        """Count an attempt that has come to an outcome.

        Args:
            microseconds: How long it ran.
            waited: How many microseconds it waited before, in the queue and in its worker.
                What is below 0, since clocks differ, counts as 0.
        """
        # Durations.note twice would cost twice as much, for each job.
        run, wait = self.run, self.wait
        run.counts[microseconds.bit_length()] += 1
        run.total += microseconds
        if waited > 0:
            wait.counts[waited.bit_length()] += 1
            wait.total += waited
        else:
            wait.counts[0] += 1

    def ended(self, outcome: JobOutcome) -> None:
        """Count a job that has ended otherwise than by returning."""
        self.others[outcome] = self.others.get(outcome, 0) + 1

    def stats(self) -> FunctionStats:
        """Return what was counted until now."""
        jobs = {JobOutcome.OK: self.ok, **self.others}
        return FunctionStats(
            function=self.name,
            via=self.via,
            jobs={outcome: jobs.get(outcome, 0) for outcome in JobOutcome},
            retries=self.retries,
            takeovers=self.takeovers,
            items=self.items,
            run=self.run.histogram(),
            wait=self.wait.histogram(),
        )


class FunctionTotals:
    """The figures of all functions of a pool.

    Args:
        most: How many names have figures of their own.
    """

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: dict[tuple[str, Via], FunctionFigures] = {}
        self._others: dict[Via, FunctionFigures] = {}

    def of(self, name: str, via: Via) -> FunctionFigures:
        """Return the figures of the function that is called *name*, in this way."""
        found = self._known.get((name, via))
        if found is None:
            if len(self._known) >= self._most:
                return self._others.setdefault(via, FunctionFigures(OTHER, via))
            found = self._known[name, via] = FunctionFigures(name, via)
        return found

    def stats(self) -> tuple[FunctionStats, ...]:
        """Return the figures of each, and of all others, as far as a job has ended."""
        figures = (*self._known.values(), *self._others.values())
        return tuple(each.stats() for each in figures if each.ok or each.others)
