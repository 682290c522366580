"""Calls that every worker of all agents makes: also those of an agent that comes later."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncpool._core.data_only import DataOnly
from asyncpool._core.options import JobOptions
from asyncpool._core.sessions import Broadcast, StartBroadcasts
from asyncpool._engine.admission import Hold
from asyncpool._engine.loop import Threads
from asyncpool._engine.sessions import check_broadcast, pack_broadcast, serializer_of
from asyncpool._remote.agent_errors import AgentErrors, Answer, read_broadcast
from asyncpool._remote.node import Node, Questions
from asyncpool._remote.options import write_options
from asyncpool._wire.messages import MAX_BROADCASTS
from asyncpool._wire.pickling import Serializer
from asyncpool._wire.text import function_name
from asyncpool.errors import AsyncPoolError, PoolClosedError

if TYPE_CHECKING:
    from asyncpool._remote.client import Client


class _Hold(Hold):
    """The hold of a broadcast that agents have.

    Args:
        name: What logs call its function.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __str__(self) -> str:
        return f"a broadcast of {self._name}"


class _Call(NamedTuple):
    """What agents are asked for.

    Attributes:
        broadcast: The function and its arguments.
        options: The options of the calls.
        serializer: Loads what the calls return.
    """

    broadcast: Broadcast
    options: JobOptions
    serializer: Serializer

    def for_later(self) -> _Call:
        """Return what an agent runs that comes later: it has no time of its caller's."""
        timeout, silence = self.options.timeout, self.options.heartbeat_timeout
        options = JobOptions(timeout=timeout, heartbeat_timeout=silence)
        return self._replace(options=options)


class _Run(NamedTuple):
    """A broadcast that is not over.

    Attributes:
        call: What agents are asked for.
        answers: The answer of each agent, to come.
    """

    call: _Call
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
        self._later: dict[int, _Call] = {}  # those that are remembered
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
        check_broadcast(options)
        self._owner.usual_nodes()  # refuses the call before it is pickled
        serializer = serializer_of(self._data, function, options)
        async with self._order:
            payload = await pack_broadcast(
                self._threads,
                self._data,
                (function, args, kwargs),
                options,
                abroad=True,
            )
            name = function_name(function)
            called = Broadcast(next(self._numbers), name, payload)
            run = self._begin(_Call(called, options, serializer))
        hold = _Hold(called.name)
        self._owner.hold(hold)
        try:
            await run.wait()
        finally:
            self._runs.remove(run)
            hold.release()
        results = await self._read(run.call, _found(run.answers))
        self._remember(run.call)
        return results

    def _begin(self, call: _Call) -> _Run:
        """Ask all agents that there are."""
        nodes = self._owner.usual_nodes()
        under_way = [run.call.broadcast for run in self._runs]
        self._remembered.check(call.broadcast, under_way)
        run = _Run(call, {node: self._ask(node, call) for node in nodes})
        self._runs.append(run)
        return run

    def _ask(self, node: Node, call: _Call) -> asyncio.Task[Any]:
        """Ask *node*, after all that it was asked before."""
        question = self._questions.ask(
            node,
            "broadcast",
            call.broadcast.payload,
            name=call.broadcast.name,
            options=write_options(call.options, self._loop.time()),
        )
        task = self._loop.create_task(question, name="asyncpool broadcast")
        task.add_done_callback(_mark_as_read)
        return task

    def _read(
        self, call: _Call, answers: list[Answer]
    ) -> asyncio.Future[dict[int, Any]]:
        errors = AgentErrors(
            call.broadcast.name,
            call.options,
            call.serializer,
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

    def _remember(self, call: _Call) -> None:
        self._remembered.add(call.broadcast)
        known = self._later | {call.broadcast.number: call.for_later()}
        self._later = {number: known[number] for number in self._remembered.numbers}

    def on_join(self, node: Node) -> bool:
        """Hear of another agent; return whether it may have jobs at once.

        Else its workers have calls to make first.
        """
        asked = [(call, self._ask(node, call)) for call in self._later.values()]
        for run in self._runs:
            run.answers[node] = self._ask(node, run.call)
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
        asked: list[tuple[_Call, asyncio.Task[Any]]],
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
