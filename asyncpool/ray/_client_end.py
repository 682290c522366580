"""The client's end of the way between a client and an agent that Ray carries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncpool._engine.loop import Threads
from asyncpool._remote.borrowed_memory import BorrowedMemory
from asyncpool._remote.lent_memory import LentMemory
from asyncpool._remote.stored_calls import StoredCall
from asyncpool.ray._agent_end import HELD, PART, Answer

if TYPE_CHECKING:
    from asyncpool.ray._engine import Engine

# How many calls there are at once: those that the agent holds, and one on its way.
_MOST = HELD + 1

# So many bytes are given to Ray in a thread: it copies them into its object store.
_MUCH = 1 << 16

# Seconds until a call is made again that did not get through.
_PAUSE = 0.5

# So many parts of a call go to the agent at once, and of an answer come from it.  Ray sends
# 10 MiB with a call, and puts what is beyond that into its store.
_PARTS_OF_CALL = 64
_PARTS_OF_ANSWER = 8


class ClientEnd:
    """A :class:`~asyncpool._remote.carrier.Carrier`: each call carries all that waits.

    Args:
        actor: The agent's actor.
        threads: Give large calls to Ray.
        errors: Knows the errors of calls.
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

    def __init__(
        self,
        actor: Any,
        threads: Threads,
        errors: Engine,
        stored: int,
    ) -> None:
        self._may_store = asyncio.Semaphore(stored)
        self.on_unstored: Callable[[int, Exception], object] = _ignore
        self._storing: set[asyncio.Task[None]] = set()
        self.on_bytes: Callable[[bytes], None] = _drop
        self.on_gone: Callable[[Exception | None], object] = _nothing
        self.on_close: Callable[[], None] = _nothing
        self._actor, self._threads, self._errors = actor, threads, errors
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._call_is_due = False
        self._number = 0
        self._open: set[int] = set()  # the calls whose answers have not come
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
                if not self._errors.is_actors(error):
                    self.on_unstored(job, error)
                elif not self._errors.is_dead(error):
                    await asyncio.sleep(_PAUSE)
                    continue
            return

    def close(self) -> None:
        """Call no more."""
        if self._over:
            return
        self._over = True
        self._waiting.clear()
        self.on_bytes = _drop
        self.on_gone = _nothing
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
        self._open.add(number)
        answer, dead = None, None
        try:
            answer = await self._answer(number, pieces)
        except Exception as error:
            if not self._errors.is_dead(error):
                raise
            dead = error
        self._open.discard(number)
        if self._over:
            return
        if answer is None:
            self.gone(dead)
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
        """Return what the agent says; ``None`` if the session is over.

        Raises:
            Exception: That of the engine, if the actor is dead.
        """
        while True:
            reference = None
            try:
                reference = await self._call_with(number, pieces)
                found: Answer | None = await reference
            except Exception as error:
                if self._errors.is_dead(error):
                    raise
                full = self._errors.is_full(error)
            else:
                return found
            if full and reference is not None:  # it may be the answer that has no room
                found = await self._fetch(number)
                if found is not None:
                    return found
            if full and pieces:
                await self._bring(number, pieces)
                pieces = []
                continue
            self._lost = True  # maybe an answer, or only the call
            await asyncio.sleep(_PAUSE)

    async def _call_with(self, number: int, pieces: list[bytes]) -> Any:
        """Call the agent, and return what the answer can be awaited by."""
        call, done = self._actor.exchange.remote, min(self._open)
        if sum(map(len, pieces)) > _MUCH:
            return await self._threads.copy(call, number, done, *pieces)
        return call(number, done, *pieces)

    async def _bring(self, number: int, pieces: list[bytes]) -> None:
        """Have the agent keep what a call says, in parts."""
        # To say the same again would only hold up what takes its time.
        self.loses = False
        step = PART * _PARTS_OF_CALL
        for nth, piece in enumerate(pieces):
            for place in range(0, len(piece), step):
                ends = range(place, min(place + step, len(piece)), PART)
                parts = [piece[begin : begin + PART] for begin in ends]
                await self._ask(self._actor.bring, number, nth, place, *parts)
        self.loses = True

    async def _fetch(self, number: int) -> Answer | None:
        """Return the answer of a call, in parts; ``None`` if the agent does not have it."""
        kept: tuple[int, list[int]] | None = await self._ask(self._actor.sizes, number)
        if kept is None:
            return None
        pieces = list[bytes]()
        for nth, size in enumerate(kept[1]):
            parts = list[bytes]()
            for place in range(0, size, PART * _PARTS_OF_ANSWER):
                end = min(place + PART * _PARTS_OF_ANSWER, size)
                asked = [
                    self._ask(self._actor.part, number, nth, begin)
                    for begin in range(place, end, PART)
                ]
                parts += await asyncio.gather(*asked)
            pieces.append(b"".join(parts))
        return kept[0], pieces

    async def _ask(self, method: Any, *given: Any) -> Any:
        """Ask the agent for something that it may be asked again."""
        while True:
            try:
                return await method.remote(*given)
            except Exception as error:
                if self._errors.is_dead(error):
                    raise
                await asyncio.sleep(_PAUSE)

    def gone(self, why: Exception | None) -> None:
        """Call no more, and say that the agent is gone."""
        gone = self.on_gone
        self.close()
        gone(why)


def _drop(data: bytes) -> None:
    del data


def _nothing(_: Exception | None = None) -> None:
    """Do nothing."""


def _ignore(_: int, __: Exception) -> None:
    """Do nothing."""
