"""What an agent answers: it has the pool do what a client asks for, in the numbers of that client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncpool._core.options import JobOptions
from asyncpool._core.slots import text_for_client
from asyncpool._engine.engine import Engine
from asyncpool._engine.job import PoolJob
from asyncpool._engine.sessions import Broadcast, SessionWorker
from asyncpool._remote.agent_errors import pack_failure, pack_results
from asyncpool._remote.client_jobs import crash_for_client
from asyncpool._remote.messages import Message, unpack_question
from asyncpool._remote.options import read_call
from asyncpool._remote.stored_calls import PACKED
from asyncpool.errors import AsyncPoolError, BroadcastError
from asyncpool.events import Broken, Crashed, Event, Exited, TakenOver
from asyncpool.stats import PoolStats, SlotStats

if TYPE_CHECKING:
    from asyncpool._remote.client_questions import ClientQuestions


def numbers_of(jobs: Mapping[int, PoolJob[Any]]) -> dict[int, int]:
    """Return the client's numbers of *jobs*, by those of the pool."""
    return {job.id: number for number, job in jobs.items()}


def stats_for_client(stats: PoolStats, numbers: Mapping[int, int]) -> PoolStats:
    """Return *stats* with the client's own numbers of its jobs.

    Args:
        stats: The figures.
        numbers: These numbers, by those of the pool.  A job of another client gets 0.
    """

    def told(slot: SlotStats) -> SlotStats:
        if not slot.job_ids:
            return slot
        ids = tuple(numbers.get(job, 0) for job in slot.job_ids)
        running = tuple(
            replace(job, job_id=numbers.get(job.job_id, 0)) for job in slot.running
        )
        first = None if slot.job_id is None else numbers.get(slot.job_id, 0)
        return replace(slot, job_id=first, job_ids=ids, running=running)

    return replace(stats, slots=tuple(map(told, stats.slots)))


def event_for_client(event: Event, numbers: Mapping[int, int]) -> Event | None:
    """Return *event* with the client's own numbers of its jobs; of others it names none.

    Args:
        event: What has happened.
        numbers: These numbers, by those of the pool.

    Returns:
        ``None`` if it is only about a job of somebody else.
    """
    match event:
        case Crashed(crash=crash):
            return Crashed(crash_for_client(crash, numbers))
        case Broken(crashes=crashes):
            told = tuple(crash_for_client(crash, numbers) for crash in crashes)
            return replace(event, crashes=told)
        case TakenOver(job_id=job):
            return replace(event, job_id=numbers[job]) if job in numbers else None
        case Exited(reason=reason):
            return replace(
                event,
                reason=text_for_client(reason, numbers),
                detail=text_for_client(event.detail, numbers),
            )
        case _:  # it names no job
            return event


# What false questions lead to; JSON has ints that are too large for a clock.
_MISTAKES = (ValueError, TypeError, TimeoutError, LookupError, OverflowError)


class Answers:
    """Answers the questions of all clients of an agent.

    Args:
        pool: The :class:`asyncpool.Pool`, which this layer may not import.
        supervisor: What runs it.
    """

    def __init__(self, pool: Any, supervisor: Engine) -> None:
        self._pool = pool
        self._supervisor = supervisor
        self._plain: dict[str, Callable[[ClientQuestions, dict[str, Any]], Any]] = {
            "stats": self._stats,
            "retire": lambda _, about: pool.retire(about["slot"]),
            "kill": lambda _, about: pool.kill(about["slot"]),
        }
        self._slow: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "stacks": lambda about: pool.stacks(slot=about["slot"]),
            "roll": lambda _: pool.roll(),
            "resize": lambda about: pool.resize(_size(about["workers"])),
            "profile": lambda about: pool.profile(
                about["seconds"],
                slot=about["slot"],
                function=about["function"],
                rate=about["rate"],
            ),
        }

    async def answer(
        self, client: ClientQuestions, message: Message
    ) -> tuple[bool, Any]:
        """Return whether the pool has done what it was asked, and what came of it.

        Cancellation:
            Safe, as far as the pool's own methods are.
        """
        try:
            about, payload = unpack_question(message.payload)
            return True, await self._find(client, message.job, about, payload)
        except AsyncPoolError as error:
            return False, error
        except _MISTAKES as error:
            return False, (type(error).__name__, str(error))

    async def _find(
        self,
        client: ClientQuestions,
        number: int,
        about: dict[str, Any],
        payload: bytes,
    ) -> object:
        what = about["what"]
        if what in self._plain:
            return self._plain[what](client, about)
        if what in self._slow:
            return await self._slow[what](about)
        match what:
            case "stack":
                job = client.jobs.get(about["job"])
                return "" if job is None else await job.stack()
            case "session":
                return await self._lend(client, number, about)
            case "broadcast":
                return await self._broadcast(about, payload)
            case "events":
                self._pool.add_listener(client.tell)
                client.listen(partial(self._pool.remove_listener, client.tell))
            case unknown:
                raise ValueError(f"there is no {unknown!r} to ask for")
        return None

    def _stats(self, client: ClientQuestions, _: dict[str, Any]) -> PoolStats:
        return stats_for_client(self._pool.stats(), numbers_of(client.jobs))

    async def _lend(
        self, client: ClientQuestions, number: int, about: dict[str, Any]
    ) -> tuple[int, int]:
        """Give a worker to the client; return its slot and its pid."""
        worker = SessionWorker()
        await self._supervisor.sessions.take(worker, about["timeout"])
        client.lend(number, worker)
        return worker.slot, worker.pid

    async def _broadcast(self, about: dict[str, Any], payload: bytes) -> Any:
        name, options = str(about["name"]), _read_call(about)
        call = Broadcast(name, payload, options, PACKED)
        try:
            results = await self._supervisor.broadcasts.broadcast_packed(call)
        except BroadcastError as error:
            return pack_failure(error)
        return pack_results(results), {}


def _read_call(about: dict[str, Any]) -> JobOptions:
    return read_call(about["options"], asyncio.get_running_loop().time())


def _size(workers: list[int]) -> int | tuple[int, int]:
    return workers[0] if len(workers) == 1 else (workers[0], workers[1])
