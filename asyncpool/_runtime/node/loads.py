"""The large buffers of a client's jobs, on their way into memory that an agent sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._core.remote_wire.remote_messages import pack_parts
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.node.node import Node
from asyncpool._runtime.remote.lent_memory import LentMemory


class Loads:
    """The loads of one client that take more than a moment.

    Args:
        loaded: Called with an agent, a job, and what the agent gets as its call.
    """

    def __init__(self, loaded: Callable[[Node, Job[Any], bytes], object]) -> None:
        self._loaded = loaded
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def __contains__(self, job: int) -> bool:
        return job in self._tasks

    def begin(self, node: Node, job: Job[Any]) -> bytes | None:
        """Return what the agent gets as the call of *job*; ``None`` if that comes later."""
        payload, lent = job._payload, node.carrier.lent
        assert isinstance(payload, OutOfBandPickle)
        if lent is None:
            return pack_parts(payload)
        at_once = lent.lend_at_once(payload)
        if at_once is None:
            self._tasks[job.id] = asyncio.get_running_loop().create_task(
                self._load(lent, node, job, payload), name="asyncpool large call"
            )
        return at_once

    async def _load(
        self, lent: LentMemory, node: Node, job: Job[Any], payload: OutOfBandPickle
    ) -> None:
        task = asyncio.current_task()
        packed = await lent.lend(payload, lambda: self._tasks.get(job.id) is task)
        if self._tasks.get(job.id) is task:
            del self._tasks[job.id]
            self._loaded(node, job, packed or pack_parts(payload))

    def give_up(self, job: int) -> bool:
        """Forget a job that is on its way, and tell whether it was."""
        return self._tasks.pop(job, None) is not None

    def close(self) -> None:
        """Forget all."""
        self._tasks.clear()
