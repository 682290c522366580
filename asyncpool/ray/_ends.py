"""The two ends of the way between a client and an agent that Ray carries.

The client calls, and the agent answers a call when it has something to say.  It holds two calls
at most, so that the client may always make another one.  A call that does not get through, or whose
answer does not, is made again with its number; the agent hears it once, and keeps its answer until
the client has it.  So each end hears all that the other one says, once and in its order.

Neither knows at once when the other one is out of reach.  So the client calls now and then.  An
agent that does not hear it for the length of a *lease* gives its jobs up, and begins none of them any
more.  The client is half as long again more patient: then the agent is lost.

Ray puts what is larger than 100 KiB into its store.  If the store is full and may not write to
disk, that fails.  Then it travels in *parts*, so small that Ray sends them with calls of their own.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from asyncpool._engine.loop import Alarm, Threads
from asyncpool._remote.carrier import Carrier, Why, ignore

if TYPE_CHECKING:
    from asyncpool.ray._engine import Engine

# How many calls the agent holds while there is nothing to say.  The client makes one more at once.
_HELD = 2

# The most bytes of a part: a little less than Ray's max_direct_call_object_size.
PART = 90_000

# So many bytes are given to Ray in a thread: it copies them into its object store.
_MUCH = 1 << 16

# Seconds until a call is made again that did not get through.
_PAUSE = 0.5

# So many parts of a call go to the agent at once, and of an answer come from it.  Ray sends
# 10 MiB with a call, and puts what is beyond that into its store.
_PARTS_OF_CALL = 64
_PARTS_OF_ANSWER = 8

# For how many leases a client waits for an agent, and how often in a lease it calls.
PATIENCE = 1.5
_BEATS = 8


class _End(Carrier):
    """What both ends have in common.

    Args:
        lease: For how many seconds the agent works for a client that it does not hear.
    """

    certain = False

    def __init__(self, lease: float) -> None:
        super().__init__()
        self._lease = lease
        self._waiting: list[bytes] = []
        self._is_due = self._over = False
        self._beat = Alarm(self._loop, self._on_beat)

    @property
    def unsent(self) -> int:
        """How many pieces are in no call and no answer yet."""
        return len(self._waiting)

    def send(self, data: bytes) -> None:
        """Have *data* be part of what is said next."""
        self._waiting.append(data)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._say)

    @abstractmethod
    def _say(self) -> None:
        """Say what waits, if that is possible now."""

    def _on_beat(self, now: float) -> None:
        """Note that this process could hear nobody while it was held up."""
        late = now - self._beat.due
        if late > self._lease / _BEATS:
            self.heard_at += late
        self._rest()

    def _rest(self) -> None:
        if math.isfinite(self._lease):
            self._beat.set_in(self._lease / _BEATS)


class AgentEnd(_End):
    """The agent's end.

    Args:
        lease: How many seconds the client may be silent.
    """

    def __init__(self, lease: float = math.inf) -> None:
        super().__init__(lease)
        self._next = 1  # the call that is heard next
        self._done = 0  # the client has the answers of all calls before that one
        self._early: dict[int, Sequence[bytes]] = {}
        self._held: deque[int] = deque()
        self._answers: dict[int, asyncio.Future[list[bytes] | None]] = {}
        # The parts of calls that have not come, by piece and place; they come in their order.
        self._parts: dict[int, dict[int, dict[int, bytes]]] = {}

    @property
    def may_begin(self) -> bool:
        """Whether the client was heard not long ago."""
        return self._loop.time() < self.heard_at + self._lease

    def close(self) -> None:
        """Send what there is, and end the session."""
        self._over = True
        self._beat.cancel()
        self._forget()
        self._loop.call_soon(self._say)

    def abort(self) -> None:
        """End the session."""
        self._waiting.clear()
        self.close()

    def greeting(self) -> bytes:
        """Return the first piece that was sent."""
        self._rest()
        return self._waiting.pop(0)

    async def exchange(
        self, number: int, done: int, *pieces: bytes
    ) -> list[bytes] | None:
        """Hear *pieces* in their turn, and return what there is to say, when there is something.

        Args:
            number: Which of the client's calls it is, counting from 1.
            done: The client has the answers of all calls before that one.
            pieces: What it says.

        Returns:
            ``None`` if the session is over.

        Cancellation:
            Safe: the client may ask again.
        """
        self.heard_at = self._loop.time()
        self._done = max(self._done, done)
        for each in [one for one in self._answers if one < self._done]:
            del self._answers[each]
        if number < self._done:
            return None  # it has been on its way for long, and nobody waits for it any more
        answer = self._answers.setdefault(number, self._loop.create_future())
        parts = self._parts.pop(number, {})
        if number >= self._next:
            brought = [b"".join(each.values()) for each in parts.values()]
            self._early[number] = brought or pieces
        while self._next in self._early:
            for piece in self._early.pop(self._next):
                self.on_bytes(piece)
            self._held.append(self._next)
            self._next += 1
        self._say()
        return await asyncio.shield(answer)

    def bring(self, number: int, piece: int, place: int, *parts: bytes) -> None:
        """Keep parts of a piece, by their place in it, until the call comes that says it."""
        if number >= self._next and number not in self._early:
            of_piece = self._parts.setdefault(number, {}).setdefault(piece, {})
            of_piece[place] = b"".join(parts)

    def sizes(self, number: int) -> list[int] | None:
        """Return the sizes of the pieces of an answer; ``None`` if there is none yet."""
        return [*map(len, self._pieces(number))] or None

    def part(self, number: int, piece: int, begin: int) -> bytes:
        """Return a part of an answer; nothing if it is not kept."""
        pieces = self._pieces(number)
        return pieces[piece][begin : begin + PART] if piece < len(pieces) else b""

    def _pieces(self, number: int) -> list[bytes]:
        answer = self._answers.get(number)
        return (answer.result() or []) if answer is not None and answer.done() else []

    def _say(self) -> None:
        self._is_due = False
        while self._held and (self._waiting or self._over or len(self._held) > _HELD):
            said, self._waiting = self._waiting, []
            answer = self._answers[self._held.popleft()]
            answer.set_result(None if self._over and not said else said)

    def _on_beat(self, now: float) -> None:
        super()._on_beat(now)
        if not self.may_begin:
            gone, self.on_gone = self.on_gone, ignore
            gone(f"nothing was heard of it for {self._lease:g} s")


class ClientEnd(_End):
    """The client's end: each call carries all that waits.

    Args:
        actor: The agent's actor.
        threads: Give large calls to Ray.
        errors: Knows the errors of calls.
        lease: For how many seconds the agent works for a client that it does not hear.

    Attributes:
        on_close: Called once when no more calls are made.
    """

    def __init__(
        self, actor: Any, threads: Threads, errors: Engine, lease: float = math.inf
    ) -> None:
        super().__init__(lease)
        self.patience = PATIENCE * lease
        self.on_close: Callable[[], object] = ignore
        self._actor, self._threads, self._errors = actor, threads, errors
        self._number, self._late = 0, 0.0
        self._calls: dict[int, asyncio.Task[None]] = {}  # whose answers have not come
        self._answers: dict[int, list[bytes]] = {}
        self._next = 1

    @property
    def own_silence(self) -> float:
        """For how long this process was held up, if that is about as long as a lease."""
        late = max(self._late, self._loop.time() - self._beat.due)
        return late if self._beat.due and late >= self._lease / 2 else 0.0

    def begin(self) -> None:
        """Make the calls that the agent answers when it has something to say."""
        self._say()
        self._rest()

    def close(self) -> None:
        """Call no more."""
        if self._over:
            return
        self._over = True
        self._beat.cancel()
        self._waiting.clear()
        self._forget()
        for call in self._calls.values():
            call.cancel()
        self.on_close()

    def abort(self) -> None:
        """Call no more."""
        self.close()

    def gone(self, why: Why) -> None:
        """Call no more, and say that the agent is gone."""
        self.on_gone(why)
        self.close()

    def _on_beat(self, now: float) -> None:
        self._late = now - self._beat.due
        super()._on_beat(now)
        if now - self.heard_at >= self.patience:
            self.gone(None)
        else:
            self._call()

    def _say(self) -> None:
        self._is_due = False
        if self._waiting or not self._calls:
            self._call()

    def _call(self) -> None:
        if self._over or len(self._calls) > _HELD:
            return
        pieces, self._waiting = self._waiting, []
        self._number += 1
        self._calls[self._number] = self._loop.create_task(
            self._exchange(self._number, pieces), name="asyncpool call of an agent"
        )

    async def _exchange(self, number: int, pieces: list[bytes]) -> None:
        try:
            answer = await self._answer(number, pieces)
        except Exception as error:
            if not self._errors.is_dead(error):
                raise
            self.gone(error)
            return
        del self._calls[number]
        if answer is None:
            self.gone(None)
            return
        self.heard_at = self._loop.time()
        self._answers[number] = answer
        while self._next in self._answers:
            for piece in self._answers.pop(self._next):
                self.on_bytes(piece)
            self._next += 1
        if not self._over:
            self._say()

    async def _answer(self, number: int, pieces: list[bytes]) -> list[bytes] | None:
        """Return what the agent says; ``None`` if the session is over.

        Raises:
            Exception: That of the engine, if the actor is dead.
        """
        while True:
            try:
                said = number, min(self._calls), *pieces
                answer: list[bytes] | None = await self._call_of("exchange", *said)
            except Exception as error:
                if self._errors.is_dead(error):
                    raise
                full = self._errors.is_full(error)
            else:
                return answer
            # The store may have no room for the answer.
            if full and (answer := await self._fetch(number)) is not None:
                return answer
            if full and pieces:
                await self._bring(number, pieces)
                pieces = []
            else:
                await asyncio.sleep(_PAUSE)

    async def _call_of(self, name: str, *given: Any) -> Any:
        """Call a method of the actor once; a thread gives Ray what is large."""
        method = getattr(self._actor, name).remote
        if sum(len(each) for each in given if type(each) is bytes) > _MUCH:
            return await (await self._threads.copy(method, *given))
        return await method(*given)

    async def _bring(self, number: int, pieces: list[bytes]) -> None:
        """Have the agent keep what a call says, in parts."""
        step = PART * _PARTS_OF_CALL
        for nth, piece in enumerate(pieces):
            for place in range(0, len(piece), step):
                ends = range(place, min(place + step, len(piece)), PART)
                parts = [piece[begin : begin + PART] for begin in ends]
                await self._ask("bring", number, nth, place, *parts)

    async def _fetch(self, number: int) -> list[bytes] | None:
        """Return the answer of a call, in parts; ``None`` if the agent does not have it."""
        sizes: list[int] | None = await self._ask("sizes", number)
        if sizes is None:
            return None
        few = asyncio.Semaphore(_PARTS_OF_ANSWER)

        async def part(piece: int, begin: int) -> Any:
            async with few:
                return await self._ask("part", number, piece, begin)

        pieces = list[bytes]()
        for nth, size in enumerate(sizes):
            asked = [part(nth, begin) for begin in range(0, size, PART)]
            pieces.append(b"".join(await asyncio.gather(*asked)))
        return pieces

    async def _ask(self, name: str, *given: Any) -> Any:
        """Ask the agent for something that it may be asked again."""
        while True:
            try:
                return await self._call_of(name, *given)
            except Exception as error:
                if self._errors.is_dead(error):
                    raise
                await asyncio.sleep(_PAUSE)

    async def take(self, job: int, call: bytes, references: Sequence[Any]) -> None:
        """Have Ray bring the call of a job to the agent, and the values in its store.

        Raises:
            Exception: That of the engine, if a value cannot be had there.
        """
        while not self._over:
            try:
                await self._call_of("take", job, call, *references)
            except Exception as error:
                if not self._errors.is_actors(error):
                    raise
                await asyncio.sleep(_PAUSE)  # if it is dead, the next call finds that
            else:
                return
