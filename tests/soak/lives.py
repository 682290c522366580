"""What is done to a pool: by its clients, its owner, who broadcasts, and the world."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from asyncpool.errors import (
    BroadcastError,
    JobTimeoutError,
    PoolBrokenError,
    PoolClosedError,
    ResizeError,
    RollInProgressError,
    WorkerCrashedError,
)
from asyncpool.stats import PoolStats
from tests.helpers.guards import marked_processes
from tests.soak import work
from tests.soak.era import BOUND, Era, Life
from tests.soak.mappers import mapper
from tests.soak.oracle import Record
from tests.soak.plans import draw_key, draw_plan, square
from tests.soak.readers import reader
from tests.soak.work import OwnError

__all__ = ["draw_lives"]

# Jobs that a client may have open.
_OPEN = 40


def draw_lives(rng: Random, era: Era) -> list[Life]:
    """Draw who does something to a pool; each of them has choices of its own."""
    kinds = [client] * rng.randint(1, 6)
    kinds += [owner] * rng.randint(0, 2)
    kinds += [reader] * rng.randint(0, 2)
    kinds += [mapper] * rng.choice((0, 1, 1))
    kinds += [teller] * rng.choice((0, 1, 1))
    climate = era.climate
    if climate.kills or climate.stops:
        kinds.append(killer)
    if climate.launcher:
        kinds.append(killer_of_launchers)
    return [kind(Random(rng.getrandbits(64))) for kind in kinds]


def client(rng: Random) -> Life:
    """Submit jobs, wait for them or cancel them."""

    async def live(era: Era) -> None:
        waiting: list[Record] = []
        while not era.closing.is_set():
            plans = [draw_plan(rng, era.climate)]
            if rng.random() < 0.08:
                plans = [square(rng, era.climate) for _ in range(rng.choice((20, 200)))]
                share = rng.choice((0.0, 0.0, 0.0, 0.5))
                for plan in plans:
                    plan.options.update(draw_key(rng, share))
                era.tally.deed(era.name, "batch")
            cancels = [_draw_cancel(rng) for _ in plans]
            pause = rng.choice((0.0, 0.0, 0.0, 0.002, 0.02, 0.05))
            records = [era.submit(plan) for plan in plans]
            async with asyncio.TaskGroup() as tasks:
                for record, when in zip(records, cancels, strict=True):
                    if record is not None:
                        waiting.append(record)
                        if when is not None:
                            tasks.create_task(_cancel(era, record, when))
                        if record.plan.kind == "count":
                            tasks.create_task(_follow(era, record))
            refused = None in records
            await asyncio.sleep(pause + 0.02 * refused)
            most = rng.randrange(_OPEN)
            while len(waiting) > most:
                await era.settle(waiting.pop(0))
        await era.settle(*waiting)

    return live


def _draw_cancel(rng: Random) -> float | None:
    """Draw after how many seconds a job is cancelled; below 0 when it runs."""
    if rng.random() < 0.8:
        return None
    return rng.choice((0.0, 0.0, 0.001, 0.01, 0.1, 0.5, -1.0, -1.0))


async def _cancel(era: Era, record: Record, when: float) -> None:
    if when < 0:
        while record.job.state == "queued" and await era.pause(0.001):
            pass  # no job tells that it begins
    elif when:
        await asyncio.wait([record.job], timeout=when)
    phase = record.job.state
    if record.cancel():
        era.tally.deed(era.name, f"cancelled {phase}", record.job.id)


async def _follow(era: Era, record: Record) -> None:
    """Listen to what a job says of itself, which must not miss the last step."""
    try:
        async with asyncio.timeout(BOUND):
            steps = [step async for step in record.job.progress()]
    except TimeoutError:
        record.demand(False, "its progress does not end")
        raise
    era.tally.deed(era.name, "followed", steps[-1:])
    record.demand(record.job.done(), "its progress has ended before it")
    record.demand(steps == sorted(set(steps)), f"its steps were {steps}")
    if not record.cancelled and record.job.exception() is None:
        record.demand(steps[-1:] == [record.plan.args[0]], f"its steps were {steps}")


def owner(rng: Random) -> Life:
    """Roll and resize."""

    async def live(era: Era) -> None:
        while await era.pause(rng.choice((0.05, 0.3, 1.0))):
            least, more = rng.randint(1, 4), rng.choice((0, 0, 2))
            act = (
                _roll(era) if rng.random() < 0.5 else _resize(era, least, least + more)
            )
            with suppress(PoolClosedError):
                try:
                    await act
                except PoolBrokenError:
                    era.demand(era.climate.frail, "it is broken")

    return live


async def _roll(era: Era) -> None:
    era.tally.deed(era.name, "roll")
    try:
        async with asyncio.timeout(BOUND):
            result = await era.pool.roll()
    except RollInProgressError:
        era.tally.deed(era.name, "roll refused")
        return
    except TimeoutError:
        era.demand(False, f"a roll does not end: {era.pool.stats()}")
        raise
    era.tally.deed(era.name, "rolled" if result.ok else "not rolled", result.reason)
    may_fail = _starts_may_fail(era) or era.climate.orphans or era.closing.is_set()
    era.demand(result.ok or may_fail, f"{result}")


def _starts_may_fail(era: Era) -> bool:
    it = era.climate
    return bool(it.frail or it.stumbles or it.kills or it.stops)


async def _resize(era: Era, least: int, most: int) -> None:
    era.tally.deed(era.name, "resize", (least, most))
    era.largest = max(era.largest, most)
    try:
        async with asyncio.timeout(BOUND):
            await era.pool.resize((least, most))
    except TimeoutError:
        era.demand(False, f"it is not resized to {least}, {most}: {era.pool.stats()}")
    except ResizeError as error:
        era.demand(_starts_may_fail(era), f"{error}")
        era.tally.deed(era.name, "not resized", str(error.crash))
        return
    era.tally.deed(era.name, "resized")


def killer(rng: Random) -> Life:
    """Kill and stop workers."""

    async def live(era: Era) -> None:
        climate, stopped = era.climate, list[int]()
        while await era.pause(rng.choice((0.01, 0.1, 0.4, 1.0))):
            which, stop, go_on = rng.random(), rng.random() < 0.4, rng.random() < 0.5
            pids = [slot.pid for slot in era.pool.stats().slots if slot.pid is not None]
            if go_on and stopped:
                _send(stopped.pop(0), signal.SIGCONT)
            if not pids:
                continue
            pid = pids[int(which * len(pids))]
            if stop and climate.stops:
                era.tally.deed(era.name, "stop a worker", pid)
                _send(pid, signal.SIGSTOP)
                stopped.append(pid)
            elif climate.kills:
                era.tally.deed(era.name, "kill a worker", pid)
                _send(pid, signal.SIGKILL)

    return live


def killer_of_launchers(rng: Random) -> Life:
    """Kill the launcher, now and then, or stop it."""

    async def live(era: Era) -> None:
        while await era.pause(rng.choice((0.3, 1.0, 2.0))):
            stop = rng.random() < 0.5
            parents = {
                _parent(slot.pid) for slot in era.pool.stats().slots if slot.pid
            } & set(marked_processes())
            if parents:
                launcher = min(parents)
                if stop and era.climate.stops:
                    era.tally.deed(era.name, "stop the launcher", launcher)
                    _send(launcher, signal.SIGSTOP)
                else:
                    era.tally.deed(era.name, "kill the launcher", launcher)
                    _send(launcher, signal.SIGKILL)

    return live


def _send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that is ours, if it is there yet."""
    if pid in marked_processes():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _parent(pid: int) -> int:
    with suppress(OSError, ValueError), open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])
    return 0


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
