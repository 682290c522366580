"""One pool, from its start to its close, and everything that happens to it."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from asyncpool import BoundPool, Crash, Job, LeaseKeeper, Pool, PoolStats, events
from asyncpool.errors import (
    AsyncPoolError,
    LeaseLostError,
    PoolBrokenError,
    PoolClosedError,
    PoolFullError,
    ThrottledError,
)
from tests.helpers.patience import PATIENCE
from tests.soak.climates import Climate
from tests.soak.oracle import (
    FailureError,
    Ledger,
    Record,
    check_attempts,
    judge,
    read_book,
)
from tests.soak.plans import Plan
from tests.soak.tally import Tally
from tests.soak.work import OwnError


class Lease(NamedTuple):
    """A lease.

    Attributes:
        number: Tells it from the others.
        beats: With which of its beats it is found to be gone; 0 for never.
    """

    number: int
    beats: int


class Outside:
    """The system, and who extends leases in it.

    Attributes:
        keeper: Who does.
        beats: How many each lease has had.
        gone: Those that were found to be gone.
        over: Those whose jobs have come to an end by themselves.
        troubles: What must not be.
    """

    def __init__(self) -> None:
        self.keeper: LeaseKeeper[Lease] = LeaseKeeper(
            self._send, max_rate=200, interval=0.5
        )
        self.beats: Counter[Lease] = Counter()
        self.gone: set[Lease] = set()
        self.over: set[Lease] = set()
        self.troubles: list[str] = []
        self._numbers = itertools.count(1)

    def grant(self, beats: int) -> Lease:
        """Return a new lease."""
        return Lease(next(self._numbers), beats)

    def watch(self, lease: Lease, job: Job[object]) -> None:
        """Have no beat any more when *job* has returned, or raised."""

        def on_done(job: Job[object]) -> None:
            if not job.cancelled() and isinstance(job.exception(), OwnError | None):
                self.over.add(lease)

        job.add_done_callback(on_done)

    async def _send(self, lease: Lease) -> None:
        if lease in self.over or lease in self.gone:
            self.troubles.append(f"{lease} is extended, and nobody has it")
        self.beats[lease] += 1
        count = self.beats[lease]
        if count == lease.beats:
            self.gone.add(lease)
            raise LeaseLostError
        if lease.number % 7 == 3 and count == 1:
            raise ThrottledError(retry_after=0.01)
        if lease.number % 11 == 5 and count == 2:
            raise ConnectionError("it cannot be reached")


__all__ = ["BOUND", "Era", "Life"]

# Seconds in which everything settles.
BOUND = 3 * PATIENCE

# Events that are not about who is there.
_IDLE_TALK = (events.QueueEmptied, events.QueueFull, events.TakenOver)

Life = Callable[["Era"], Coroutine[Any, Any, None]]


class Era:
    """A pool, and what is known about its jobs.

    Args:
        name: The pool's.
        climate: How it is set up.
        tally: Where everything is counted.
        folder: Where its jobs sign.

    Attributes:
        pool: The pool.
        closing: Set when somebody begins to close it.
        largest: The most workers that it was ever to have.
        book: Where its jobs sign.
        outside: Where they have leases.
        ledger: What is done besides plain jobs and streams.
        told: What was broadcast at last.
        leaving: The workers that are on their way out, each a slot and a generation.
    """

    def __init__(self, name: str, climate: Climate, tally: Tally, folder: Path) -> None:
        self.name = name
        self.climate = climate
        self.tally = tally
        self.closing = asyncio.Event()
        self.largest = climate.most
        self.book = folder / name
        self.outside = Outside()
        self.ledger = Ledger()
        self.told = 0
        self.leaving: set[tuple[int, int]] = set()
        self._heard = 0
        self._records: list[Record] = []
        self._crashes: list[Crash] = []
        self._living: dict[tuple[int, int], bool] = {}
        self.pool = Pool(**climate.options, name=name, on_crash=self._crashes.append)

    async def pause(self, seconds: float) -> bool:
        """Wait, and tell whether it is not being closed by then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.closing.wait()
        return not self.closing.is_set()

    # Jobs.

    def submit(self, plan: Plan) -> Record | None:
        """Submit a job, unless the pool is full, broken or closed; those tell why."""
        key, options = self.ledger.next_key(), dict(plan.options)
        beats = options.pop("beats", None)
        lease = None if beats is None else self.outside.grant(beats)
        if lease is not None:
            options["lease"] = self.outside.keeper, lease
        told, heard = self.told, self._heard
        view = self.view(options)
        try:
            job: Job[Any] = view.submit(plan.function, str(self.book), key, *plan.args)
        except AsyncPoolError as error:
            self.refused(error)
            return None
        if lease is not None:
            self.outside.watch(lease, job)
        return self.enter(plan, key, job, told=told, since=heard, lease=lease)

    def view(self, options: dict[str, Any]) -> BoundPool:
        """Return the pool with these options; *within* is a deadline."""
        options = dict(options)
        within = options.pop("within", None)
        if within is not None:
            options["deadline"] = asyncio.get_running_loop().time() + within
        return self.pool.options(**options)

    def enter(self, plan: Plan, key: int, job: Job[Any], **known: Any) -> Record:
        """Take note of a job that was submitted."""
        record = Record(plan, key, job, self.heard, **known)
        self._records.append(record)
        return record

    def heard(self) -> int:
        """Return how many events there were in the lives of workers."""
        return self._heard

    def refused(self, error: AsyncPoolError) -> None:
        """Check that there is a reason to take no job."""
        match error:
            case PoolFullError():
                self.demand(error.waiting >= error.max_queued == 40, f"{error}")
                self.tally.deed(self.name, "refused: full")
            case PoolBrokenError():
                self.demand(self.climate.frail, f"it is broken: {error}")
                self.tally.deed(self.name, "refused: broken")
            case PoolClosedError():
                self.demand(self.closing.is_set(), "it is closed")
            case _:
                raise error

    async def settle(self, *records: Record) -> None:
        """Wait until jobs are settled, and judge them."""
        jobs = [record.job for record in records]
        if jobs:
            await asyncio.wait(jobs, timeout=BOUND)
        for record in records:
            record.demand(record.job.done(), f"it has not settled within {BOUND:g} s")
        await asyncio.sleep(0)  # their callbacks
        for record in records:
            if not record.end:
                record.forsaken |= record.lease in self.outside.gone
                judge(record, self.climate.ambient)
                self.tally.ends[record.plan.kind, record.end] += 1
                self.tally.note(self.name, f"{record.job!r}: {record.end}")

    # The life of the pool.

    async def run(self, *lives: Life) -> None:
        """Start the pool, do all these things to it, close it and look back."""
        async with self.outside.keeper:
            await self._run(*lives)
        self._look_back()

    async def _run(self, *lives: Life) -> None:
        try:
            async with asyncio.timeout(BOUND):
                await self.pool.start()
        except PoolBrokenError:
            self.demand(self.climate.frail, "it did not come up")
            self.closing.set()  # that is what start() does then
        listener = asyncio.create_task(self._listen())
        async with asyncio.TaskGroup() as tasks:
            living = [tasks.create_task(life(self)) for life in lives]
            await asyncio.sleep(self.climate.seconds)
            self.closing.set()
            if self.climate.rest:
                await asyncio.wait(living)
                await self._recover()
            await self._close()
        await self.settle(*self._records)
        await listener
        kept = self.outside.keeper.stats()
        self.demand(kept.leases == 0, f"leases of a closed pool are kept: {kept}")

    async def _recover(self) -> None:
        """Wait until all workers are there and idle; nobody does anything any more."""
        if self.climate.frail:
            return  # it may be broken
        loop = asyncio.get_running_loop()
        give_up_at, stats = loop.time() + BOUND, self.pool.stats()
        while stats.queued or not self._is_quiet(stats):
            self.demand(loop.time() < give_up_at, f"it does not recover: {stats}")
            await asyncio.sleep(0.01)
            stats = self.pool.stats()
        self.tally.deed(self.name, "recovered")

    def _is_quiet(self, stats: PoolStats) -> bool:
        if self.climate.options["worker_limits"].max_age is None:
            return stats.idle == stats.workers == _up(stats)
        # On a busy machine a start may take longer than workers live: then one always comes.
        coming = sum(slot.state == "starting" for slot in stats.slots)
        return not stats.busy and stats.idle + coming >= stats.workers

    async def _close(self) -> None:
        climate = self.climate
        how = f"close: {climate.finish}, {climate.ending}"
        self.tally.deed(self.name, how, f"in {climate.closes_in:g} s")
        try:
            async with asyncio.timeout(climate.closes_in + BOUND):
                await self._end()
        except TimeoutError:
            raise FailureError(f"{self.name} does not close: {self.pool!r}") from None
        self.tally.deed(self.name, "closed pools")

    async def _end(self) -> None:
        """Close the pool, in one of the ways."""
        pool, climate = self.pool, self.climate
        close = functools.partial(
            pool.close, finish=climate.finish, timeout=climate.closes_in
        )
        match climate.ending:
            case "one":
                await close()
            case "cancelled":
                closing = asyncio.create_task(close())
                await asyncio.sleep(0.01)
                closing.cancel()
                await asyncio.wait([closing])
                await close()
            case "second":
                closing = asyncio.create_task(close())
                await asyncio.sleep(0.3)
                summary = await pool.close(finish="none", timeout=0.0)
                self.demand(summary == await closing, "two closes, two summaries")
            case "error":
                try:
                    await self._leave_by_error()
                except LookupError:
                    pass
                except PoolBrokenError as error:  # it is not entered again
                    self.demand(climate.frail, f"it is broken: {error}")
                    await close()

    async def _leave_by_error(self) -> None:
        async with self.pool:
            raise LookupError

    async def _listen(self) -> None:
        async for event in self.pool.events(buffer=100_000):
            self._heard += not isinstance(event, _IDLE_TALK)
            self.tally.deeds[type(event).__name__] += 1
            self.tally.note(self.name, event)
            match event:
                case events.Spawned(slot, generation):
                    self._living[slot, generation] = True
                    self._count_workers()
                case events.Retiring(slot, generation):
                    self.leaving.add((slot, generation))
                case events.Exited(slot, generation):
                    self._bury(slot, generation)
                case events.Crashed(crash):
                    self.tally.deeds["crashed beside others"] += bool(
                        crash.concurrent_jobs
                    )
                    self._bury(crash.slot, crash.generation)
                case _:
                    pass

    def _bury(self, slot: int, generation: int) -> None:
        # Those of the first moment were started before anybody listened.
        was = self._living.get((slot, generation))
        self.demand(was is not False, f"slot {slot}/{generation} ended twice")
        self._living[slot, generation] = False

    def _count_workers(self) -> None:
        most = self.largest + self.climate.options["max_surge"]
        living = sum(self._living.values())
        self.demand(living <= most, f"{living} workers, and {most} are the most")

    # What must hold when it is over.

    def _look_back(self) -> None:
        stats, book = self.pool.stats(), read_book(self.book)
        for record in self._records:
            check_attempts(record, book.get(record.key, []))
            self.ledger.visit(
                record.plan.options.get("key"),
                since=record.since,
                until=record.until,
                pids={begun.pid for begun in book.get(record.key, [])},
            )
        self.book.unlink(missing_ok=True)
        self.demand(not self.outside.troubles, f"{self.outside.troubles}")
        self.tally.deeds["beats"] += self.outside.beats.total()
        self.tally.deeds["leases gone"] += len(self.outside.gone)
        self.tally.deeds["same workers"] += self.ledger.check(
            stats, book, self._records
        )
        self.demand(stats.state == "closed", f"it is {stats.state}")
        self.demand(
            stats.crashes == len(self._crashes), f"on_crash missed some: {stats}"
        )
        self.demand(stats.shared_memory == 0, f"shared memory is left: {stats}")
        left = [worker for worker, lives in self._living.items() if lives]
        self.demand(not left, f"nobody has told of the end of {left}")
        self._records.clear()  # results hold shared memory

    def demand(self, fact: object, what: str) -> None:
        """Fail unless *fact* holds."""
        if not fact:
            raise FailureError(f"pool {self.name}: {what}")


def _up(stats: PoolStats) -> int:
    """Return how many workers there are, those included that come and go."""
    return sum(slot.pid is not None for slot in stats.slots)
