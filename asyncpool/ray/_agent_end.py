"""The agent's end of the way between a client and an agent that Ray carries.

The client calls, and the agent answers a call when it has something to say.  It holds two calls
at most, so that the client may always make another one.

Ray puts what is larger than 100 KiB into its store.  If the store is full and may not write to
disk, that fails.  Then it travels in *parts*, so small that Ray sends them with calls of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from asyncpool._remote.borrowed_memory import BorrowedMemory
from asyncpool._remote.lent_memory import LentMemory

# The number of an answer, counting from 1, and what it says.
Answer: TypeAlias = tuple[int, list[bytes]]

# How many calls are held while there is nothing to say.
HELD = 2

# The most bytes of a part: a little less than Ray's max_direct_call_object_size.
PART = 90_000


class AgentEnd:
    """A :class:`~asyncpool._remote.carrier.Carrier` with one session."""

    loses = True
    process: int | None = None
    lent: LentMemory | None = None
    borrowed: BorrowedMemory | None = None

    def __init__(self) -> None:
        self.on_bytes: Callable[[bytes], None] = _drop
        self.on_gone: Callable[[Exception | None], object] = _nothing
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._held: deque[tuple[int, asyncio.Future[Answer | None]]] = deque()
        self._early: dict[int, tuple[bytes, ...]] = {}
        # The parts of calls that have not come, by piece and place; and answers that may have to
        # go in parts, by call.
        self._parts: dict[int, dict[tuple[int, int], bytes]] = {}
        self._large: dict[int, Answer] = {}
        self._fetched = 0  # the last call whose answer goes in parts
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

    async def exchange(
        self, number: int, done: int, pieces: tuple[bytes, ...]
    ) -> Answer | None:
        """Hear *pieces* in their turn, and wait for what there is to say.

        Cancellation:
            The answer may be lost.
        """
        answer: asyncio.Future[Answer | None] = self._loop.create_future()
        self._held.append((number, answer))
        for each in [one for one in self._large if one < done]:
            del self._large[each]
        self.loses = done > self._fetched
        parts = self._parts.pop(number, {})
        if number >= self._next:  # else it was heard, and the answer has been lost
            self._early[number] = _joined(parts) if parts else pieces
        while self._next in self._early:
            for piece in self._early.pop(self._next):
                self.on_bytes(piece)
            self._next += 1
        self._answer()
        return await answer

    def bring(
        self, number: int, piece: int, place: int, parts: tuple[bytes, ...]
    ) -> None:
        """Keep parts of a piece, by their place in it, until the call comes that says it."""
        if number >= self._next and number not in self._early:
            self._parts.setdefault(number, {})[piece, place] = b"".join(parts)

    def sizes(self, number: int) -> tuple[int, list[int]] | None:
        """Return the number and the sizes of the answer of a call; ``None`` if it is not kept."""
        if number not in self._large:
            return None
        # To say the same again would only hold up what takes its time.
        self._fetched, self.loses = max(self._fetched, number), False
        answer, pieces = self._large[number]
        return answer, [len(piece) for piece in pieces]

    def part(self, number: int, piece: int, begin: int) -> bytes:
        """Return a part of the answer of a call; nothing if it is not kept."""
        _, pieces = self._large.get(number, (0, []))
        return pieces[piece][begin : begin + PART] if piece < len(pieces) else b""

    def _answer_soon(self) -> None:
        if not self._answer_is_due:
            self._answer_is_due = True
            self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        self._answer_is_due = False
        while self._held and (self._waiting or self._over or len(self._held) > HELD):
            number, answer = self._held.popleft()
            if answer.done():
                continue
            if self._over and not self._waiting:
                answer.set_result(None)
                continue
            self._answers += 1
            said = self._answers, self._waiting
            if sum(map(len, self._waiting)) > PART:
                self._large[number] = said
            answer.set_result(said)
            self._waiting = []


def _joined(parts: dict[tuple[int, int], bytes]) -> tuple[bytes, ...]:
    """Return the pieces that came in *parts*."""
    pieces: dict[int, list[bytes]] = {}
    for (piece, _), part in sorted(parts.items()):
        pieces.setdefault(piece, []).append(part)
    return tuple(map(b"".join, pieces.values()))


def _drop(data: bytes) -> None:
    del data


def _nothing(_: Exception | None) -> None:
    """Do nothing."""
