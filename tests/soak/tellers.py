"""Broadcast what all workers are to know."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

from asyncpool import (
    BroadcastError,
    JobTimeoutError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
)
from asyncpool.stats import PoolStats
from tests.soak import work
from tests.soak.era import BOUND, Era, Life
from tests.soak.work import OwnError

__all__ = ["teller"]

# What one of the workers comes to, and what is told of it.
_ENDS = {
    "": "",
    "raise": "raised",
    "exit": "crash",
    "SIGKILL": "crash",
    "hang": "timeout",
}


def teller(rng: Random) -> Life:
    """Broadcast numbers, one after the other, and give some of them up."""

    async def live(era: Era) -> None:
        number = 0
        while await era.pause(rng.choice((0.0, 0.02, 0.1))):
            number += 1
            how = rng.choice(("", "", "", "", "", "", *_ENDS))
            leaves_after = rng.choice((None, None, None, None, None, 0.0, 0.01, 0.2))
            stats = era.pool.stats()
            if not stats.idle + stats.busy:
                how = ""  # or else the start of some worker would come to that
            await _Telling(era, number, how, leaves_after).run()

    return live


@dataclass(frozen=True, slots=True)
class _Telling:
    """One broadcast.

    Attributes:
        era: The pool.
        number: What all workers are told, and
        how: what one of them comes to.
        leaves_after: After how many seconds it is given up.
    """

    era: Era
    number: int
    how: str
    leaves_after: float | None

    async def run(self) -> None:
        """Broadcast it, and judge what comes of it."""
        era = self.era
        before, heard, leaving = era.pool.stats(), era.heard(), set(era.leaving)
        task = asyncio.create_task(self._broadcast())
        if self.leaves_after is not None:
            await asyncio.wait([task], timeout=self.leaves_after)
            task.cancel()
        await asyncio.wait([task], timeout=BOUND)
        after = era.pool.stats()
        era.demand(task.done(), f"{self} is not over: {after}")
        # Those who were there or came meanwhile, or were to come and did not.  A worker
        # counts as spawned a little later than it gets a pinned job.
        most = len(before.slots) + len(after.slots)
        most += after.spawned - before.spawned + after.crashes - before.crashes
        if task.cancelled():
            era.demand(self.leaves_after is not None, f"nobody has cancelled {self}")
            era.tally.deed(era.name, "broadcast left", self.number)
            era.ledger.note_jobs(least=0, most=most, cancelled=most)
            return
        results, errors = self._judge(task)
        count = len(results) + len(errors)
        era.ledger.note_jobs(least=count, most=most, cancelled=most - count)
        said = [number == self.number for _, number in results.values()]
        era.demand(all(said), f"{self} has {results}")
        if era.heard() == heard and results and not errors:
            _check_slots(era, before, after, leaving, results)

    async def _broadcast(self) -> dict[int, tuple[int, int]]:
        hangs = self.how == "hang"
        # "wait" would leave it there for ever when the broadcast is left.
        limits = {"timeout": 0.5, "cancel_grace": 0.2, "on_cancel": "interrupt"}
        view = self.era.view(limits if hangs else {})
        token = f"{self.era.book}-{self.number}" if self.how else ""
        return await view.broadcast(work.configure, self.number, token, self.how)

    def _judge(
        self, task: asyncio.Task[dict[int, tuple[int, int]]]
    ) -> tuple[dict[int, tuple[int, int]], dict[int, BaseException]]:
        """Return what it has come to, by slot."""
        era = self.era
        match task.exception():
            case None:
                # The first that has run it has come to a bad end; if there was none at
                # all, that is a failed start to come.
                bad = self.how and task.result()
                era.demand(not bad, f"{self} ended well: {task.result()}")
                era.told = self.number
                era.tally.deed(era.name, "broadcast", task.result())
                return task.result(), {}
            case BroadcastError() as error:
                era.demand(error.__cause__ in error.errors.values(), "it has no cause")
                for one in error.errors.values():
                    self._judge_one(one)
                era.tally.deed(era.name, "broadcast failed", error)
                return error.results, error.errors
            case PoolClosedError():
                era.demand(era.closing.is_set(), "it is closed")
            case PoolBrokenError() as error:
                era.demand(era.climate.frail, f"it is broken: {error}")
            case error:
                raise error
        return {}, {}

    def _judge_one(self, error: BaseException) -> None:
        """Judge what it has come to in one worker."""
        era, climate = self.era, self.era.climate
        allowed = {_ENDS[self.how]} | climate.ambient
        match error:
            case OwnError():
                same = error.key == self.number
                era.demand(same, f"{error!r} is of another broadcast than {self}")
                end = "raised"
            case JobTimeoutError():
                end = error.limit
            case WorkerCrashedError():
                end = error.kind
            case _:
                end = repr(error)
        era.demand(end in allowed, f"{self} ended with {end}: {error!r}")


def _check_slots(
    era: Era,
    before: PoolStats,
    after: PoolStats,
    leaving: set[tuple[int, int]],
    results: dict[int, tuple[int, int]],
) -> None:
    """Check that all have run it that were there all the time."""
    there = {
        slot.slot: slot.pid
        for slot in before.slots
        if slot.state in {"idle", "busy"}
        and (slot.slot, slot.generation) not in leaving
    }
    have = {slot: pid for slot, (pid, _) in results.items()}
    coming = {slot.slot for slot in before.slots if slot.state == "starting"}
    # Nobody may have told yet of a worker that was killed meanwhile.
    stayed = there.items() & {(slot.slot, slot.pid) for slot in after.slots}
    era.demand(
        stayed <= have.items() and have.keys() <= there.keys() | coming,
        f"{there} were there, {coming} came, and {have} have run the broadcast",
    )
    era.tally.deed(era.name, "broadcast compared")
