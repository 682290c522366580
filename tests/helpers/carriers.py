"""A Ray that is none: it loses, doubles and delays the calls that the two ends of a way make."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

from asyncpool._engine.loop import Threads
from asyncpool._remote.messages import Kind, Message, pack_batches, unpack_batch
from asyncpool.ray._ends import AgentEnd, ClientEnd

__all__ = ["Network"]


class Network:
    """Carries what ends say to each other.

    Args:
        seed: Of the random faults.
        faults: How likely each call is lost, and each answer; as likely it is doubled, or late.
        lease: For how many seconds agents work for clients that they do not hear.

    Attributes:
        faults: As above; it may be changed.
        parted: Whether nothing comes through.
        mute: Whether no answer comes through.
        counts: How many calls were made, and how many were lost.
        ahead: Seconds that the clocks of agents are ahead.
    """

    def __init__(self, seed: int, faults: float, lease: float = 2.0) -> None:
        self._random = random.Random(seed)
        self.faults, self._lease = faults, lease
        self.parted = self.mute = False
        self.counts = [0, 0]
        self.ahead = 0

    def way(self, threads: Threads) -> tuple[ClientEnd, AgentEnd]:
        """Return the two ends of a way."""
        there = AgentEnd(self._lease)
        errors: Any = SimpleNamespace(is_dead=lambda _: False, is_full=lambda _: False)
        actor = SimpleNamespace(exchange=SimpleNamespace(remote=self._remote(there)))
        return ClientEnd(actor, threads, errors, self._lease), there

    def _remote(self, there: AgentEnd) -> Any:
        async def exchange(number: int, done: int, *pieces: bytes) -> Any:
            self.counts[0] += 1
            told = [self._shifted(piece, -self.ahead) for piece in pieces]
            await self._through()
            if self._random.random() < self.faults:  # what comes once more is no news
                late = there.exchange(number, done, *told)
                asyncio.get_running_loop().create_task(late)
            answer = await there.exchange(number, done, *told)
            await self._through(back=True)
            return answer and [self._shifted(piece, self.ahead) for piece in answer]

        return exchange

    async def _through(self, *, back: bool = False) -> None:
        if self._random.random() < self.faults:
            await asyncio.sleep(self._random.uniform(0, 0.02))
        if self.parted or (back and self.mute):
            await asyncio.get_running_loop().create_future()  # for good
        if self._random.random() < self.faults:
            self.counts[1] += 1
            raise ConnectionError

    def _shifted(self, data: bytes, ahead: int) -> bytes:
        """Return a batch with other times of the agent's clock in it."""
        if not ahead:
            return data
        stamp, messages = unpack_batch(data)
        micro = ahead * 1_000_000
        told = [
            one._replace(priority=one.priority + micro)
            if one.kind is Kind.FENCE
            else one
            for one in messages
        ]
        packed = map(Message.pack, told)
        [batch] = pack_batches(packed, stamp and stamp + micro)
        return batch
