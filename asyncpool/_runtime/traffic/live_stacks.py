"""Ask workers where their jobs are, while the jobs go on.

The control thread of a worker answers.  It cannot while C code holds the GIL.  Then nobody gets the
stacks: the signal whose handler in C writes them may only be sent to a worker that is about to be
killed, since it could come just when the GIL was let go of.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asyncpool._core.base.text import printable_lines
from asyncpool._core.slots.slots import UP
from asyncpool._runtime.base.machine import is_stopped
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import SlotState
from asyncpool.errors import NoWorkerError, ProtocolError

# Seconds that a worker has to answer, which takes 1 ms on a machine that has time.
_PATIENCE = 2.0

MAX_TEXT = 1 << 16

_THERE = UP | {SlotState.STARTING}


class LiveStacks:
    """The questions that have no answer yet.

    Args:
        state: The pool's state.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._asked: dict[tuple[WorkerHandle, int], list[asyncio.Future[str]]] = {}

    def answered(self, handle: WorkerHandle, job: int, payload: bytes) -> None:
        """Hear where a worker is, or a job of it.

        Raises:
            ProtocolError: If it tells too much.
        """
        if len(payload) > MAX_TEXT:
            raise ProtocolError(f"it sent stacks of {len(payload)} bytes")
        asked = self._asked.pop((handle, job), ())
        if not asked:
            return  # to look at 64 KiB of text takes 3 ms, and a worker may send it often
        text = printable_lines(bytes(payload).decode(errors="replace"))
        for future in asked:
            if not future.done():
                future.set_result(text)

    async def of_workers(self, slot: int | None = None) -> dict[int, str]:
        """Return the stacks of all workers, or of that in *slot*, by slot.

        Raises:
            NoWorkerError: If there is none in *slot*.

        Cancellation:
            Safe.
        """
        core, handles = self._state.core, self._state.handles
        there = {it.index: handles[it.index] for it in core.slots if it.state in _THERE}
        if slot is not None:
            if slot not in there:
                raise NoWorkerError(slot, there=tuple(there))
            there = {slot: there[slot]}
        texts = await asyncio.gather(*(self._ask(each, 0) for each in there.values()))
        return dict(zip(there, texts, strict=True))

    async def of_job(self, job: Job[Any]) -> str:
        """Return the stack of a job; empty if no worker runs it.

        Cancellation:
            Safe.
        """
        if job._slot is None:
            return ""
        return await self._ask(self._state.handles[job._slot], job.id)

    async def _ask(self, handle: WorkerHandle, job: int) -> str:
        if handle.pid is None or handle.ignored:  # it starts, or ends
            return ""
        asked = self._asked.setdefault((handle, job), [])
        future: asyncio.Future[str] = self._state.loop.create_future()
        asked.append(future)
        if len(asked) == 1:
            handle.requests.ask_where(job)
        try:
            async with asyncio.timeout(_PATIENCE):
                return await future
        except TimeoutError:
            return self._silence(handle, handle.pid)
        finally:
            if future in asked:
                asked.remove(future)
            if not asked:
                self._asked.pop((handle, job), None)

    def _silence(self, handle: WorkerHandle, pid: int) -> str:
        if self._state.handles.get(handle.slot) is not handle or handle.ignored:
            return ""  # it has ended meanwhile
        if is_stopped(pid):
            return f"The process {pid} is stopped, and cannot say where it is."
        return (
            f"The process {pid} has not said for {_PATIENCE:g} s where it is: C code holds its "
            "GIL, or it gets no CPU."
        )
