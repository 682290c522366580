"""Calls that every worker of all agents makes: also those of an agent that comes later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from asyncpool._core.data_only import DataOnly
from asyncpool._core.options import JobOptions
from asyncpool._dataclass import replace
from asyncpool._engine.job import attribute_by_number
from asyncpool._engine.sessions import Broadcast, Broadcasts, error_of
from asyncpool._remote.messages import load_parts
from asyncpool._remote.node import Node
from asyncpool._remote.objects import kind_of
from asyncpool._remote.options import write_options
from asyncpool.enums import TimeLimit
from asyncpool.errors import (
    AsyncPoolError,
    BroadcastError,
    JobError,
    JobTimeoutError,
    PoolClosedError,
    ProtocolError,
    WorkerCrashedError,
)

if TYPE_CHECKING:
    from asyncpool._remote.client import Client


class ClientBroadcasts(Broadcasts):
    """The broadcasts of one client.

    Args:
        client: The client.
        data: What calls may be, if the pool is data only.
    """

    _abroad = True

    def __init__(self, client: Client, data: DataOnly | None) -> None:
        super().__init__(client.threads, data)
        self._client = client
        self._preparing: set[asyncio.Task[None]] = set()

    def _targets(self) -> list[Node]:
        return self._client.usual_nodes()

    async def _results(self, broadcast: Broadcast) -> dict[int, Any]:
        answers, succeeded = broadcast.calls, False
        self._client.hold(broadcast)
        try:
            # Also for agents that join meanwhile.
            while waiting := [one for one in answers.values() if not one.done()]:
                await asyncio.wait(waiting)
            results = await self._read(broadcast, _found(answers))
            # An agent that comes later has no time of its caller's.
            broadcast.options = replace(
                broadcast.options, queue_timeout=None, deadline=None
            )
            succeeded = True
            return results
        finally:
            self._end(broadcast, remember=succeeded)
            self._client.release(broadcast)
            if not succeeded:
                for answer in answers.values():
                    answer.cancel()

    def _call(self, target: Node, broadcast: Broadcast) -> asyncio.Task[Any]:
        """Ask an agent, after all that it was asked before."""
        options = write_options(broadcast.options, self._client.loop.time())
        question = target.ask(
            "broadcast", broadcast.payload, name=broadcast.name, options=options
        )
        task = self._client.loop.create_task(question, name="asyncpool broadcast")
        task.add_done_callback(error_of)  # the caller may be cancelled
        return task

    def _read(
        self, broadcast: Broadcast, answers: list[tuple[int, object]]
    ) -> asyncio.Future[dict[int, Any]]:
        next_id = self._client.registry.next_id
        return self._threads.pickle(
            read_broadcast, broadcast, answers, next_id, unwanted=lambda: False
        )

    def give_up(self) -> None:
        """Take back those that are under way: their callers get a ``PoolClosedError``."""
        for broadcast in self.open:
            for answer in broadcast.calls.values():
                answer.cancel()

    # Agents that come later.

    def on_join(self, node: Node) -> bool:
        """Hear of another agent; return whether it may have jobs at once.

        Else its workers have calls to make first.
        """
        asked = {call: self._call(node, call) for call in self.remembered}
        for call in self.open:
            call.calls[node] = self._call(node, call)
        under_way = [call.calls[node] for call in self.open]
        if not asked and not under_way:
            return True
        task = self._client.loop.create_task(
            self._prepare(node, asked, under_way), name="asyncpool start of an agent"
        )
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)
        return False

    async def _prepare(
        self,
        node: Node,
        asked: dict[Broadcast, asyncio.Task[Any]],
        under_way: list[asyncio.Future[Any]],
    ) -> None:
        await asyncio.wait([*under_way, *asked.values()])
        try:
            # The callers of those that are under way hear of their errors.
            for call, answer in asked.items():
                await self._read(call, [(node.first_slot, answer.result())])
        except PoolClosedError:
            return  # the agent is lost, or the client is closed
        except AsyncPoolError as error:
            self._client.lose(node, error)
        else:
            self._client.ready(node)


def _found(answers: Mapping[Node, asyncio.Future[Any]]) -> list[tuple[int, object]]:
    """Return the answers of the agents that are not lost, each with their first slot.

    Raises:
        PoolClosedError: If all are lost, or the question was taken back.
        AsyncPoolError: That of an agent that has refused the call.
    """
    found: list[tuple[int, object]] = []
    lost: AsyncPoolError | None = None
    for node, task in answers.items():
        if task.cancelled():
            raise PoolClosedError
        error = task.exception()
        if error is None:
            found.append((node.first_slot, task.result()))
        elif isinstance(error, PoolClosedError):
            lost = error
        else:
            raise error
    if lost is not None and not found:
        raise lost
    return found


def read_broadcast(
    broadcast: Broadcast,
    answers: list[tuple[int, object]],
    next_id: Callable[[], int],
    pause: Callable[[], None] | None = None,
) -> dict[int, Any]:
    """Return the result of each worker, by slot; a thread does it.

    Args:
        broadcast: The broadcast.
        answers: Those of the agents, each with the first slot of that.
        next_id: Returns the number of a job of the client.  Agents have numbers of their own.
        pause: Called now and then.

    Raises:
        BroadcastError: If some of the calls have failed.
        ProtocolError: If an answer is none.
    """
    load_value = broadcast.serializer.load_value
    values: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    for first, answer in answers:
        match answer:
            case (dict() as results, dict() as errors):
                for slot, it in results.items():
                    values[first + slot] = load_value(load_parts(it), pause)
                for slot, it in errors.items():
                    failed[first + slot] = _read_error(broadcast, it, next_id, pause)
            case _:
                raise ProtocolError(
                    f"an agent answered a broadcast by {kind_of(answer)}"
                )
    if failed:
        raise BroadcastError(broadcast.name, results=values, errors=failed)
    return values


def _read_error(
    broadcast: Broadcast,
    found: object,
    next_id: Callable[[], int],
    pause: Callable[[], None] | None,
) -> BaseException:
    """Return the error of a call that has no job at the client.

    The agent has not read what a function has raised, and knows a deadline by its own clock.
    """
    name = broadcast.name
    match found:
        case bytes():
            error = broadcast.serializer.load_error(found, pause)
            if isinstance(error, JobError):
                attribute_by_number(error, next_id(), 1, name)
            return error
        case JobTimeoutError():
            seconds = _limit_of(broadcast.options, found.limit)
            return JobTimeoutError(
                job_id=next_id(),
                attempt=found.attempt,
                limit=found.limit,
                seconds=seconds,
                stack=found.stack,
                function=name,
            )
        case WorkerCrashedError():
            number = next_id()
            crashes = tuple(
                replace(crash, job_id=number, attempt=1, function=name)
                for crash in found.crashes
            )
            return type(found)(
                job_id=number, crashes=crashes, delivery=found.delivery, function=name
            )
        case AsyncPoolError():
            return found
        case _:
            raise ProtocolError(f"an agent sent {kind_of(found)} as an error")


def _limit_of(options: JobOptions, limit: object) -> float:
    seconds = getattr(options, limit) if isinstance(limit, TimeLimit) else None
    if seconds is None:
        raise ProtocolError("an agent sent a time limit that was not set")
    found: float = seconds
    return found
