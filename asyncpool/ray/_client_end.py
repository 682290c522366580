"""The client's end of the way between a client and an agent that Ray carries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.remote.borrowed_memory import BorrowedMemory
from asyncpool._runtime.remote.lent_memory import LentMemory
from asyncpool._runtime.remote.stored_calls import StoredCall
from asyncpool.errors import ProtocolError
from asyncpool.ray._agent_end import HELD, Answer

# How many calls there are at once: those that the agent holds, and one on its way.
_MOST = HELD + 1

# So many bytes are given to Ray in a thread: it copies them into its object store.
_MUCH = 1 << 16

# Seconds until a call is made again that did not get through.
_PAUSE = 0.5


class ClientEnd:
    """A :class:`~asyncpool._runtime.remote.carrier.Carrier`: each call carries all that waits.

    Args:
        actor: The agent's actor.
        threads: Give large calls to Ray.
        is_dead: Tells whether an error says that the actor is dead.
        is_actors: Tells whether an error is about the actor, and not about what it was given.
        stored: How many calls with stored arguments the agent may have that its pool has not got:
            Ray copies most values for each of them.

    Attributes:
        on_unstored: Called with a job whose stored arguments cannot be had, and the reason.
        on_close: Called once when no more calls are made.
    """

    loses = True
    process: int | None = None
    lent: LentMemory | None = None
    borrowed: BorrowedMemory | None = None
    why: ProtocolError | None = None

    def __init__(
        self,
        actor: Any,
        threads: Threads,
        is_dead: Callable[[BaseException], bool],
        is_actors: Callable[[BaseException], bool],
        stored: int,
    ) -> None:
        self._may_store = asyncio.Semaphore(stored)
        self.on_unstored: Callable[[int, Exception], object] = _ignore
        self._is_actors = is_actors
        self._storing: set[asyncio.Task[None]] = set()
        self.on_bytes: Callable[[bytes], None] = _drop
        self.on_gone: Callable[[], None] = _nothing
        self.on_close: Callable[[], None] = _nothing
        self._actor, self._threads, self._is_dead = actor, threads, is_dead
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._call_is_due = False
        self._number = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._over = False
        self._answers: dict[int, list[bytes]] = {}
        self._next_answer = 1
        self._lost = False

    def allow(self, limit: int) -> None:
        """Let a piece have *limit* bytes; here each may have as many as Ray carries."""
        del limit

    def begin(self) -> None:
        """Make the calls that the agent answers when it has something to say."""
        self._call_soon()

    def send(self, data: bytes) -> None:
        """Have *data* be part of the next call."""
        self._waiting.append(data)
        self._call_soon()

    def store(self, job: int, stored: StoredCall) -> None:
        """Have Ray bring the call of *job* and its values to the agent."""
        task = self._loop.create_task(
            self._store(job, stored), name="asyncpool stored call"
        )
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store(self, job: int, stored: StoredCall) -> None:
        async with self._may_store:
            await self._have_taken(job, stored)

    async def _have_taken(self, job: int, stored: StoredCall) -> None:
        take, much = self._actor.take.remote, len(stored.call) > _MUCH
        while not self._over:
            try:
                if much:
                    reference = await self._threads.copy(
                        take, job, stored.call, *stored.references
                    )
                else:
                    reference = take(job, stored.call, *stored.references)
                await reference
            except Exception as error:  # noqa: BLE001 - Ray has many
                if not self._is_actors(error):
                    self.on_unstored(job, error)
                elif not self._is_dead(error):
                    await asyncio.sleep(_PAUSE)
                    continue
            return

    def close(self) -> None:
        """Call no more."""
        if self._over:
            return
        self._over = True
        self._waiting.clear()
        self.on_bytes, self.on_gone = _drop, _nothing
        for call in (*self._calls, *self._storing):
            call.cancel()
        self.on_close()

    def abort(self) -> None:
        """Call no more."""
        self.close()

    def _call_soon(self) -> None:
        if not self._call_is_due and not self._over:
            self._call_is_due = True
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._call_is_due = False
        if self._over or len(self._calls) >= _MOST:
            return
        if not self._waiting and self._calls:
            return
        pieces, self._waiting = self._waiting, []
        self._number += 1
        call = self._loop.create_task(
            self._exchange(self._number, pieces), name="asyncpool call of an agent"
        )
        self._calls.add(call)
        call.add_done_callback(self._called)

    def _called(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._call()

    async def _exchange(self, number: int, pieces: list[bytes]) -> None:
        answer = await self._answer(number, pieces)
        if self._over:
            return
        if answer is None:
            self._gone()
            return
        self._answers[answer[0]] = answer[1]
        self._hear()

    def _hear(self) -> None:
        """Hear the answers in their order; behind one that is lost, hear what there is."""
        if self._lost:
            self._lost, self._next_answer = False, min(self._answers)
        while self._next_answer in self._answers:
            for piece in self._answers.pop(self._next_answer):
                self.on_bytes(piece)
            self._next_answer += 1

    async def _answer(self, number: int, pieces: list[bytes]) -> Answer | None:
        """Return what the agent says; ``None`` if it is gone."""
        exchange = self._actor.exchange.remote
        while True:
            try:
                if sum(map(len, pieces)) > _MUCH:
                    reference = await self._threads.copy(exchange, number, *pieces)
                else:
                    reference = exchange(number, *pieces)
                found: Answer | None = await reference
            except Exception as error:  # noqa: BLE001 - Ray has many
                if self._is_dead(error):
                    return None
                self._lost = True  # maybe an answer, or only the call
                await asyncio.sleep(_PAUSE)
            else:
                return found

    def _gone(self) -> None:
        gone = self.on_gone
        self.close()
        gone()


def _drop(data: bytes) -> None:
    del data


def _nothing() -> None:
    """Do nothing."""


def _ignore(_: int, __: Exception) -> None:
    """Do nothing."""
