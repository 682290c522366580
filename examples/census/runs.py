"""The two ways to take the census: in a pool, and in this process."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncpool
from census.account import Account
from census.chaos import Saboteur, attempts_needed, measure_or_die
from census.library import Library
from census.measure import Finding, measure
from census.progress import Ticker

# Jobs in flight for each worker: enough to keep it busy, few enough for a library
# of any size to fit into memory.
WINDOW = 4

Findings = dict[str, Finding]


def in_this_process(library: Library, ticker: Ticker) -> Findings:
    """Measure the files of *library* one after the other, without a pool."""
    findings: Findings = {}
    for path in library.paths:
        findings[path] = measure(library.root, path)
        ticker.tick(findings[path])
    return findings


@dataclass(slots=True)
class PooledCensus:
    """Measure a library in a pool, and keep account of what that went through.

    Args:
        library: The files.
        ticker: Is told of every finding.
        workers: How many workers; ``None`` for one on each CPU.
        chaos: The share of attempts that kill their worker.
        seed: Which ones.
    """

    library: Library
    ticker: Ticker
    workers: int | None
    chaos: float
    seed: int
    findings: Findings = field(default_factory=dict)
    account: Account = field(default_factory=Account)

    async def run(self) -> None:
        """Fill *findings* and *account*."""
        async with (
            asyncpool.Pool(
                workers=self.workers,
                name="census",
                on_crash=self.account.crashes.append,
                preload=("census.chaos",),  # once, not in every new worker
            ) as pool,
            _alongside(self.account.follow(pool)),
        ):
            now = asyncio.get_running_loop().time
            began = now()
            if self.chaos:
                await self._under_fire(pool)
            else:
                await self._measure(pool, self.library.paths)
            self.account.seconds = now() - began
            self.account.stats = pool.stats()

    async def _under_fire(self, pool: asyncpool.Pool) -> None:
        paths = self.library.paths
        saboteur = Saboteur(pool, self.chaos, len(paths), self.seed)
        third = len(paths) // 3
        async with _alongside(saboteur.run()):
            await self._measure(pool, paths[:third])
            # Nobody has a job now.  First the next jobs go to workers that are dead
            # without the pool knowing it, then the pool has to see it by itself.
            saboteur.kill_all()
            await self._measure(pool, paths[third : 2 * third])
            await saboteur.kill_all_and_wait()
            await self._measure(pool, paths[2 * third :])
        self.account.kills = saboteur.kills

    async def _measure(self, pool: asyncpool.Pool, paths: Sequence[str]) -> None:
        waiting = iter(paths)  # shared: each path goes to one of the tasks

        async def measure_some() -> None:
            for path in waiting:
                job = self._submit(pool, path)
                self.findings[path] = await job
                self.account.attempts[job.attempt] += 1
                self.ticker.tick(self.findings[path], pool.stats())

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(WINDOW * pool.stats().workers):
                    group.create_task(measure_some())
        except ExceptionGroup as failed:
            # What is wrong with the pool is wrong with it for every task.
            raise failed.exceptions[0] from None

    def _submit(self, pool: asyncpool.Pool, path: str) -> asyncpool.Job[Finding]:
        if not self.chaos:
            return pool.submit(measure, self.library.root, path)
        attempts = attempts_needed(self.chaos, len(self.library.paths))
        stubborn = pool.options(max_attempts=attempts)
        return stubborn.submit(
            measure_or_die, self.library.root, path, self.chaos, self.seed
        )


@asynccontextmanager
async def _alongside(coroutine: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
