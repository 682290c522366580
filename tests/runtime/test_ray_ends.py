"""The two ends of the way that Ray carries, on a Ray that is none, whose stores may be full."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from asyncpool._engine.loop import Threads
from asyncpool.ray._ends import PART, AgentEnd, ClientEnd
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

# What Ray sends with a call: in one argument, and in all.
ARGUMENT, ALL = 100 << 10, 10 << 20

LARGE = bytes(range(256)) * 90_000


class FullError(Exception):
    """A store is full."""


class DeadError(Exception):
    """An actor is dead."""


class FakeRay:
    """Ray, with the actor of an agent.

    Attributes:
        full: Which stores are: the "client's", the "agent's", or either of them for an "answer".
        loses: Whether the next answer that says something gets lost.
        lost: Set when it is.
        dead: Whether the actor is.
        calls: The methods that were called.
    """

    def __init__(self, end: AgentEnd) -> None:
        self._end = end
        self.full = set[str]()
        self.loses = False
        self.lost = asyncio.Event()
        self.dead = False
        self.calls = list[str]()
        self.exchange = self._method("exchange", self._exchange)
        self.bring = self._method("bring", self._bring)
        self.sizes = self._method("sizes", self._sizes)
        self.part = self._method("part", self._part)

    def _method(
        self, name: str, method: Callable[..., Coroutine[Any, Any, Any]]
    ) -> SimpleNamespace:
        def remote(*given: Any) -> Coroutine[Any, Any, Any]:
            self.calls.append(name)
            sizes = [len(each) for each in given if isinstance(each, bytes)]
            stored = max(sizes, default=0) > ARGUMENT or sum(sizes) > ALL
            if stored and "client's" in self.full:
                raise FullError
            return self._called(method, given, stored=stored)

        return SimpleNamespace(remote=remote)

    async def _called(
        self,
        method: Callable[..., Coroutine[Any, Any, Any]],
        given: tuple[Any, ...],
        *,
        stored: bool,
    ) -> Any:
        if self.dead:
            raise DeadError
        if stored and "agent's" in self.full:
            raise FullError
        return await method(*given)

    async def _exchange(self, number: int, done: int, *pieces: bytes) -> Any:
        answer = await self._end.exchange(number, done, *pieces)
        size = 0 if answer is None else sum(map(len, answer))
        if size and self.loses:
            self.loses = False
            self.lost.set()
            raise ConnectionError
        if size > ARGUMENT and "answer" in self.full:
            raise FullError
        return answer

    async def _bring(self, number: int, piece: int, place: int, *parts: bytes) -> None:
        self._end.bring(number, piece, place, *parts)

    async def _sizes(self, number: int) -> Any:
        return self._end.sizes(number)

    async def _part(self, number: int, piece: int, begin: int) -> bytes:
        part = self._end.part(number, piece, begin)
        assert 0 < len(part) <= PART
        return part

    def is_dead(self, error: BaseException) -> bool:
        return isinstance(error, DeadError)

    def is_actors(self, error: BaseException) -> bool:
        return isinstance(error, DeadError | ConnectionError)

    def is_full(self, error: BaseException) -> bool:
        return isinstance(error, FullError)


class Ends:
    """Both ends, and what each has heard."""

    def __init__(self, threads: Threads, lease: float = math.inf) -> None:
        self.there = AgentEnd(lease)
        self.ray = FakeRay(self.there)
        engine: Any = self.ray
        self.here = ClientEnd(self.ray, threads, engine, lease)
        self.gone = asyncio.Event()
        self.here.on_gone = lambda _: self.gone.set()
        self.heard_here, self.heard_there = list[bytes](), list[bytes]()
        self._news = asyncio.Event()
        self.here.on_bytes = self._noted(self.heard_here)
        self.there.on_bytes = self._noted(self.heard_there)
        self.here.begin()

    def _noted(self, heard: list[bytes]) -> Callable[[bytes], None]:
        def note(piece: bytes) -> None:
            heard.append(piece)
            self._news.set()

        return note

    async def hear(self, heard: list[bytes], pieces: list[bytes]) -> None:
        """Wait until an end has heard as many pieces, which must be these."""
        async with patience():
            while len(heard) < len(pieces):
                self._news.clear()
                await self._news.wait()
        assert heard == pieces


@pytest_asyncio.fixture
async def ends() -> AsyncGenerator[Ends]:
    threads = Threads(asyncio.get_running_loop())
    ends = Ends(threads)
    yield ends
    ends.here.close()
    ends.there.close()
    await threads.close()


@pytest.mark.parametrize("store", ["client's", "agent's"])
async def test_a_call_that_no_store_takes_goes_in_parts(ends: Ends, store: str) -> None:
    ends.ray.full = {store}
    pieces = [b"one", LARGE, b"two", LARGE[1:]]
    for piece in pieces:
        ends.here.send(piece)
    await ends.hear(ends.heard_there, pieces)
    ends.here.send(b"three")
    await ends.hear(ends.heard_there, [*pieces, b"three"])
    assert ends.ray.calls.count("bring") == 2 + 2 * -(-len(LARGE) // (64 * PART))


async def test_an_answer_that_no_store_takes_goes_in_parts(ends: Ends) -> None:
    ends.ray.full = {"answer"}
    for piece in (b"one", LARGE, b"two"):
        ends.there.send(piece)
    await ends.hear(ends.heard_here, [b"one", LARGE, b"two"])
    ends.there.send(LARGE[1:])
    await ends.hear(ends.heard_here, [b"one", LARGE, b"two", LARGE[1:]])
    assert ends.ray.calls.count("sizes") == 2


async def test_an_answer_is_kept_until_the_client_has_it() -> None:
    end = AgentEnd()
    first = asyncio.create_task(end.exchange(1, 1, b"once"))
    heard = list[bytes]()
    end.on_bytes = heard.append
    end.send(LARGE)
    assert await first == [LARGE]
    assert await end.exchange(1, 1, b"once") == [LARGE], "it asks again"
    assert heard == [b"once"]
    assert end.sizes(1) == [len(LARGE)]
    assert end.part(1, 0, 0) == LARGE[:PART]
    second = asyncio.create_task(end.exchange(2, 2))
    await asyncio.sleep(0)
    assert end.sizes(1) is None
    assert end.part(1, 0, 0) == b""
    assert await end.exchange(1, 1, b"once") is None, "it was on its way for long"
    end.close()
    assert await second is None
    assert heard == [b"once"]


async def test_calls_are_heard_and_answered_in_their_order() -> None:
    end, heard = AgentEnd(), list[bytes]()
    end.on_bytes = heard.append
    late = asyncio.create_task(end.exchange(2, 1, b"b"))
    await asyncio.sleep(0)
    end.send(b"one")
    first = asyncio.create_task(end.exchange(1, 1, b"a"))
    assert await first == [b"one"]
    assert heard == [b"a", b"b"]
    end.send(b"two")
    assert await late == [b"two"]
    end.close()


async def test_an_answer_that_is_lost_comes_again(ends: Ends) -> None:
    ends.ray.loses = True
    ends.there.send(b"lost")
    async with patience():
        await ends.ray.lost.wait()
    ends.there.send(b"one")
    await ends.hear(ends.heard_here, [b"lost", b"one"])


async def test_an_end_that_is_not_heard_is_given_up_by_both_and_begins_nothing() -> (
    None
):
    loop = asyncio.get_running_loop()
    threads, never = Threads(loop), loop.create_future()
    parted = SimpleNamespace(exchange=SimpleNamespace(remote=lambda *_: never))
    engine: Any = None
    here, there = ClientEnd(parted, threads, engine, 0.05), AgentEnd(0.05)
    ends, gone = [here, there], asyncio.Queue[Any]()
    for end in ends:
        end.on_gone = gone.put_nowait
    there.send(b"hello")
    assert there.greeting() == b"hello"
    begins = [there.may_begin]
    here.begin()
    async with patience():
        found = [await gone.get(), await gone.get()]
    assert found == ["nothing was heard of it for 0.05 s", None]
    assert [*begins, there.may_begin] == [True, False]
    never.cancel()
    for end in ends:
        end.close()
    await threads.close()


async def test_a_process_that_was_held_up_hears_the_other_end_all_the_same() -> None:
    threads = Threads(asyncio.get_running_loop())
    ends = Ends(threads, lease=0.1)
    ends.there.send(b"hello")
    ends.there.greeting()
    until = time.monotonic() + 0.5
    while time.monotonic() < until:  # as a program does that computes in its loop
        pass
    ends.here.send(b"one")
    await ends.hear(ends.heard_there, [b"one"])
    assert not ends.gone.is_set()
    ends.here.close()
    ends.there.close()
    await threads.close()


async def test_an_agent_that_dies_between_parts_is_gone(ends: Ends) -> None:
    ends.ray.full = {"client's"}
    ends.ray.dead = True
    ends.here.send(LARGE)
    async with patience():
        await ends.gone.wait()
    assert ends.heard_there == []
