"""Calls that every worker of all agents makes: also those of an agent that comes later."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncpool._core.data_only import DataOnly
from asyncpool._core.options import JobOptions
from asyncpool._dataclass import replace
from asyncpool._engine.loop import Threads
from asyncpool._engine.sessions import Broadcast, StartBroadcasts, make_broadcast
from asyncpool._remote.agent_errors import AgentErrors, Answer, read_broadcast
from asyncpool._remote.node import Node, Questions
from asyncpool._remote.options import write_options
from asyncpool._wire.messages import MAX_BROADCASTS
from asyncpool.errors import AsyncPoolError, PoolClosedError

if TYPE_CHECKING:
    from asyncpool._remote.client import Client


class _Run(NamedTuple):
    """A broadcast that is not over.

    Attributes:
        broadcast: What agents are asked for.
        answers: The answer of each agent, to come.
    """

    broadcast: Broadcast
    answers: dict[Node, asyncio.Task[Any]]

    async def wait(self) -> None:
        """Wait for all answers, also of agents that join meanwhile.

        Cancellation:
            Takes the questions back.
        """
        try:
            while waiting := [one for one in self.answers.values() if not one.done()]:
                await asyncio.wait(waiting)
        finally:
            for one in self.answers.values():
                one.cancel()


class ClientBroadcasts:
    """The broadcasts of one client.

    Args:
        owner: The client.
        questions: Asks the agents.
        threads: Pickle the calls.
        data: What calls may be, if the pool is data only.
    """

    def __init__(
        self,
        owner: Client,
        questions: Questions,
        threads: Threads,
        data: DataOnly | None,
    ) -> None:
        self._owner = owner
        self._questions = questions
        self._threads = threads
        self._data = data
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._runs: list[_Run] = []
        self._remembered = StartBroadcasts(MAX_BROADCASTS)
        # They reach the agents in the order of the calls, as in a local pool.
        self._order = asyncio.Lock()
        self._preparing: set[asyncio.Task[None]] = set()

    async def broadcast(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> dict[int, Any]:
        """Have every worker of all agents make a call; see :meth:`asyncpool.Pool.broadcast`."""
        self._owner.usual_nodes()  # refuses the call before it is pickled
        async with self._order:
            broadcast = await make_broadcast(
                next(self._numbers),
                self._threads,
                self._data,
                (function, args, kwargs),
                options,
                abroad=True,
            )
            run = self._begin(broadcast)
        self._owner.draining.hold(broadcast)
        try:
            await run.wait()
        finally:
            self._runs.remove(run)
            self._owner.draining.release(broadcast)
        results = await self._read(broadcast, _found(run.answers))
        # An agent that comes later has no time of its caller's.
        later = replace(options, queue_timeout=None, deadline=None)
        self._remembered.add(broadcast._replace(options=later))
        return results

    def _begin(self, broadcast: Broadcast) -> _Run:
        """Ask all agents that there are."""
        nodes = self._owner.usual_nodes()
        self._remembered.check(broadcast, [run.broadcast for run in self._runs])
        run = _Run(broadcast, {node: self._ask(node, broadcast) for node in nodes})
        self._runs.append(run)
        return run

    def _ask(self, node: Node, broadcast: Broadcast) -> asyncio.Task[Any]:
        """Ask *node*, after all that it was asked before."""
        question = self._questions.ask(
            node,
            "broadcast",
            broadcast.payload,
            name=broadcast.name,
            options=write_options(broadcast.options, self._loop.time()),
        )
        task = self._loop.create_task(question, name="asyncpool broadcast")
        task.add_done_callback(_mark_as_read)
        return task

    def _read(
        self, broadcast: Broadcast, answers: list[Answer]
    ) -> asyncio.Future[dict[int, Any]]:
        errors = AgentErrors(
            broadcast.name,
            broadcast.options,
            broadcast.serializer,
            self._owner.next_id,
        )
        return self._threads.pickle(
            read_broadcast, answers, errors, unwanted=lambda: False
        )

    def give_up(self) -> None:
        """Take back those that are under way: their callers get a ``PoolClosedError``."""
        for run in self._runs:
            for answer in run.answers.values():
                answer.cancel()

    # Agents that come later.

    def on_join(self, node: Node) -> bool:
        """Hear of another agent; return whether it may have jobs at once.

        Else its workers have calls to make first.
        """
        asked = [(call, self._ask(node, call)) for call in self._remembered]
        for run in self._runs:
            run.answers[node] = self._ask(node, run.broadcast)
        if not asked and not self._runs:
            return True
        under_way = [run.answers[node] for run in self._runs]
        task = self._loop.create_task(
            self._prepare(node, asked, under_way), name="asyncpool start of an agent"
        )
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)
        return False

    async def _prepare(
        self,
        node: Node,
        asked: list[tuple[Broadcast, asyncio.Task[Any]]],
        under_way: list[asyncio.Task[Any]],
    ) -> None:
        await asyncio.wait([*under_way, *(answer for _, answer in asked)])
        try:
            # The callers of those that are under way hear of their errors.
            for call, answer in asked:
                await self._read(call, [(node.first_slot, answer.result())])
        except PoolClosedError:
            return  # the agent is lost, or the client is closed
        except AsyncPoolError as error:
            self._owner.on_unfit(node, error)
        else:
            self._owner.on_ready(node)


def _mark_as_read(answer: asyncio.Task[Any]) -> None:
    """Have nobody told that an answer was not read: its caller was cancelled."""
    if not answer.cancelled():
        answer.exception()


def _found(answers: Mapping[Node, asyncio.Task[Any]]) -> list[Answer]:
    """Return the answers of the agents that are not lost.

    Raises:
        PoolClosedError: If all are lost, or the question was taken back.
        AsyncPoolError: That of an agent that has refused the call.
    """
    found: list[Answer] = []
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
