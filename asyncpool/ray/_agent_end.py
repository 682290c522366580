"""The agent's end of the way between a client and an agent that Ray carries.

The client calls, and the agent answers a call when it has something to say.  It holds two calls
at most, so that the client may always make another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from asyncpool._runtime.remote.borrowed_memory import BorrowedMemory
from asyncpool._runtime.remote.lent_memory import LentMemory
from asyncpool.errors import ProtocolError

# The number of an answer, counting from 1, and what it says.
Answer: TypeAlias = tuple[int, list[bytes]]

# How many calls are held while there is nothing to say.
HELD = 2


class AgentEnd:
    """A :class:`~asyncpool._runtime.remote.carrier.Carrier` with one session."""

    loses = True
    process: int | None = None
    lent: LentMemory | None = None
    borrowed: BorrowedMemory | None = None
    why: ProtocolError | None = None

    def __init__(self) -> None:
        self.on_bytes: Callable[[bytes], None] = _drop
        self.on_gone: Callable[[], None] = _nothing
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._held: deque[asyncio.Future[Answer | None]] = deque()
        self._early: dict[int, tuple[bytes, ...]] = {}
        self._next = 1
        self._answers = 0
        self._answer_is_due = False
        self._over = False

    def allow(self, limit: int) -> None:
        """Let a piece have *limit* bytes; here each may have as many as Ray carries."""
        del limit

    def send(self, data: bytes) -> None:
        """Have *data* be part of the next answer."""
        self._waiting.append(data)
        self._answer_soon()

    def close(self) -> None:
        """Send what there is, and end the session."""
        self._over = True
        self.on_bytes = _drop
        self._answer_soon()

    def abort(self) -> None:
        """End the session."""
        self._waiting.clear()
        self.close()

    def greeting(self) -> bytes:
        """Return the first piece that was sent."""
        return self._waiting.pop(0)

    async def exchange(self, number: int, pieces: tuple[bytes, ...]) -> Answer | None:
        """Hear *pieces* in their turn, and wait for what there is to say.

        Cancellation:
            The answer may be lost.
        """
        answer: asyncio.Future[Answer | None] = self._loop.create_future()
        self._held.append(answer)
        if number >= self._next:  # else it was heard, and the answer has been lost
            self._early[number] = pieces
        while self._next in self._early:
            for piece in self._early.pop(self._next):
                self.on_bytes(piece)
            self._next += 1
        self._answer()
        return await answer

    def _answer_soon(self) -> None:
        if not self._answer_is_due:
            self._answer_is_due = True
            self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        self._answer_is_due = False
        while self._held and (self._waiting or self._over or len(self._held) > HELD):
            answer = self._held.popleft()
            if answer.done():
                continue
            if self._over and not self._waiting:
                answer.set_result(None)
                continue
            self._answers += 1
            answer.set_result((self._answers, self._waiting))
            self._waiting = []


def _drop(data: bytes) -> None:
    del data


def _nothing() -> None:
    """Do nothing."""
