"""What a pool went through, gathered while it runs."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import asyncpool
from asyncpool.events import Crash, Crashed, Ready, TakenOver
from asyncpool.stats import PoolStats


@dataclass(slots=True)
class Account:
    """The story of one pool.

    Attributes:
        seconds: From the first job to the last outcome.
        crashes: Every unplanned death, in the order in which they were noticed.
        healed: Seconds between a death and its replacement being ready, each.
        attempts: How many jobs needed how many attempts.
        unbegun: How many jobs were taken over from a worker that died before it
            could begin them; this is no attempt.
        kills: Workers that were killed from outside.
        stats: The pool's own figures at the end.
    """

    seconds: float = 0.0
    crashes: list[Crash] = field(default_factory=list)
    healed: list[float] = field(default_factory=list)
    attempts: Counter[int] = field(default_factory=Counter)
    unbegun: int = 0
    kills: int = 0
    stats: PoolStats | None = None

    async def follow(self, pool: asyncpool.Pool) -> None:
        """Listen to *pool* until it is closed."""
        now = asyncio.get_running_loop().time
        empty_since: dict[int, float] = {}
        async for event in pool.events():
            match event:
                case Crashed(crash):
                    # A start that fails leaves the slot empty for longer.
                    empty_since.setdefault(crash.slot, now())
                case Ready(slot) if slot in empty_since:
                    self.healed.append(now() - empty_since.pop(slot))
                case TakenOver(attempt=0):
                    self.unbegun += 1
                case _:
                    pass
