"""What a client asks its agent about the pool."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from asyncpool._core.remote_wire.remote_messages import Kind, Message, pack_question
from asyncpool._runtime.node.node import Node
from asyncpool._runtime.remote.own_objects import kind_of, load_own
from asyncpool.errors import AsyncPoolError, PoolClosedError, ProtocolError

_MISTAKES: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "TypeError": TypeError,
    "TimeoutError": TimeoutError,
}


class Questions:
    """The questions of a client that have no answer yet.

    Args:
        flush: Sends what was put.
    """

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Node, asyncio.Future[Any]]] = {}

    def next_number(self) -> int:
        """Return a number that no question has had."""
        return next(self._numbers)

    async def ask(
        self,
        node: Node,
        what: str,
        payload: bytes = b"",
        *,
        number: int = 0,
        **details: Any,
    ) -> Any:
        """Ask an agent, and return its answer.

        Raises:
            AsyncPoolError: What the agent's pool has raised.
            ValueError: If the agent has found the question wrong; or TypeError, TimeoutError.

        Cancellation:
            Takes the question back.
        """
        answer = asyncio.get_running_loop().create_future()
        number = self.send(node, what, payload, number=number, **details)
        self._open[number] = node, answer
        try:
            await asyncio.wait([answer])
        finally:
            del self._open[number]
            if not answer.done():
                node.put(Message(Kind.FORGET, number))
                self._flush()
            else:
                answer.exception()  # marks it as retrieved, if the caller was cancelled
        return _read(answer.result())

    def send(
        self,
        node: Node,
        what: str,
        payload: bytes = b"",
        *,
        number: int = 0,
        **details: Any,
    ) -> int:
        """Ask an agent, and return the number of the question; nobody waits for the answer."""
        number = number or self.next_number()
        question = pack_question(what, payload, details)
        node.put(Message(Kind.ASK, number, payload=question))
        self._flush()
        return number

    def answered(self, message: Message) -> None:
        """Hear an answer; it may come too late.

        Raises:
            ProtocolError: If it cannot be read.
        """
        _, answer = self._open.get(message.job, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(load_own(message.payload))

    def lost(self, node: Node) -> None:
        """Hear that an agent is gone."""
        for asked, answer in self._open.values():
            if asked is node and not answer.done():
                answer.set_exception(gone(node))


def gone(node: Node) -> PoolClosedError:
    """Return the error for asking an agent that is lost."""
    return PoolClosedError(f"the agent {node.name} is gone")


def _read(answer: object) -> Any:
    match answer:
        case (True, found):
            return found
        case (False, AsyncPoolError() as error):
            raise error
        case (False, (str(name), str(text))):
            raise _MISTAKES.get(name, ValueError)(text)
        case _:
            raise ProtocolError(f"an agent answered by {kind_of(answer)}")
