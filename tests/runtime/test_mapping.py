"""Maps against a pool that does whatever a pool may do, in any order."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings, strategies as st

from asyncpool._core.options import JobOptions
from asyncpool._engine import batches as turn_module
from asyncpool._engine.job import ChunkJob, PoolJob
from asyncpool._wire.page import ChunkResult
from asyncpool._wire.pickling import pack_error
from asyncpool._worker.api import run_chunk
from asyncpool.enums import Delivery
from asyncpool.errors import (
    JobNotPicklableError,
    PoolClosedError,
    PoolFullError,
    WorkerCrashedError,
)
from asyncpool.mapping import Map, MapRun, Outcome
from tests.helpers.crashes import crash_with
from tests.helpers.functions import known_function
from tests.helpers.owner import Owner
from tests.helpers.patience import patience


def identity(item: Any) -> Any:
    return item


class FakePool:
    """Runs items when it is told to; an item is a number and what happens to it.

    Attributes:
        ran: How often each item was begun.
        open: The jobs that have no outcome.
        others: How many jobs of others there are, if there may be only so many.
    """

    most_workers = 2
    counts_jobs = False
    fresh = is_remote = False
    concurrency = 1

    @staticmethod
    def are_stored(items: list[Any], *, star: bool) -> bool:
        del items, star
        return False

    def __init__(self, most_open: int | None = None) -> None:
        self.ran: Counter[int] = Counter()
        self.open: list[tuple[PoolJob[Any], list[Any]]] = []
        self.closed = False
        self.together = 0
        self.others = 0
        self.let_go: list[object] = []
        self._most_open = most_open
        self.admission = self.holds = self
        self.hold: Callable[[object], object] = id
        self.release = self.let_go.append

    async def room(self) -> None:
        await asyncio.sleep(0)

    def check_loop(self) -> None:
        pass

    def submit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        _: dict[str, Any],
        options: JobOptions,
    ) -> PoolJob[Any]:
        if self.closed:
            raise PoolClosedError
        waiting = len(self.open) + self.others
        if self._most_open is not None and waiting >= self._most_open:
            raise PoolFullError(waiting=waiting, max_queued=self._most_open)
        loop = asyncio.get_running_loop()
        chunk = function is run_chunk
        assert chunk == (options.via == "map")
        make = ChunkJob if chunk else PoolJob
        job: PoolJob[Any] = make(1, known_function(), options, Owner(), loop)
        self.together += chunk
        self.open.append((job, args[1] if chunk else [args[0]]))
        return job

    def finish(self, index: int, stop: int) -> None:
        """End one job; if it has several items, perhaps with the first *stop* of them."""
        job, items = self.open.pop(index % len(self.open))
        if job.done():
            return
        if isinstance(job, ChunkJob):
            self._finish_chunk(job, items, stop)
            return
        job.function.traits.note(60)
        [(number, what)] = items
        self.ran[number] += 1
        if what == "die":
            job.set_exception(crash())
        elif what == "raise":
            job.set_exception(LookupError(number))
        else:
            job.set_result(number)

    def _finish_chunk(self, job: ChunkJob[Any], items: list[Any], stop: int) -> None:
        if any(what == "poison" for _, what in items):
            job.set_exception(LookupError("poison"))
            return
        outcomes: list[Any] = []
        for number, what in items:
            self.ran[number] += 1
            if what == "die":
                job.found = ChunkResult(outcomes, []).load()
                job.set_exception(crash())
                return
            if what == "raise":
                payload = pack_error(LookupError(number))
                outcomes.append((payload, True))
            else:
                outcomes.append(number)
            if len(outcomes) == stop:
                break
        job.set_result(ChunkResult(outcomes, [], microseconds=1.0 * len(outcomes)))


def crash() -> WorkerCrashedError:
    crashes = (crash_with(job_id=1, attempt=1),)
    return WorkerCrashedError(job_id=1, crashes=crashes, delivery=Delivery.STARTED)


T = TypeVar("T")
Item = tuple[int, str]
kinds = st.sampled_from(["ok", "ok", "ok", "ok", "raise", "die", "poison"])


class Inputs:
    """Count what is drawn."""

    def __init__(self, items: list[Item], error: BaseException | None = None) -> None:
        self.items = items
        self.error = error
        self.drawn = 0

    def __iter__(self) -> Iterator[Item]:
        for item in self.items:
            self.drawn += 1
            yield item
        if self.error is not None:
            raise self.error

    async def slowly(self) -> AsyncIterator[Item]:
        for item in self:
            await asyncio.sleep(0)
            yield item


def map_of(
    pool: FakePool, inputs: Any, attempts: int = 1, **sizes: int | None
) -> Map[Any]:
    options: Any = {"options": JobOptions(max_attempts=attempts), **sizes}
    of_pool = partial(MapRun, pool, identity, (inputs,), submit=pool.submit)
    return Map(partial(of_pool, star=False, **options))


# None ever ends, or each at once: what is in between would depend on the machine's speed.
turn_lengths = st.sampled_from([1000.0, -1.0])


@contextmanager
def turns_of(seconds: float) -> Generator[None]:
    """Let a map have the loop for so long at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turn_module, "TURN", seconds)
        yield


# Where all is to be sent at once, which a busy machine may not do in one turn of a millisecond.
in_one_turn = turns_of(1000.0)


# Which job ends next, if any, and with how many items done.
others = st.integers(0, 3)
steps = st.tuples(st.integers(-5, 20), st.integers(1, 6))


def drive(
    pool: FakePool, data: st.DataObject, take: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """End jobs, in any order, until *take* has its map; others come and go."""

    async def main() -> T:
        running = asyncio.ensure_future(take())
        while not running.done():
            await asyncio.sleep(0)
            pool.others = data.draw(others) if pool.open else 0
            if pool.open:
                index, stop = data.draw(steps)
                if index >= 0:
                    pool.finish(index, stop)
        return await running

    with turns_of(data.draw(turn_lengths)):
        return asyncio.run(main())


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with patience():
            await main

    asyncio.run(bounded())


plans = st.fixed_dictionaries(
    {
        "chunksize": st.none() | st.integers(1, 8),
        "buffersize": st.none() | st.integers(1, 60),
        "attempts": st.integers(1, 2),
    }
)
manners = st.fixed_dictionaries({"ordered": st.booleans(), "slowly": st.booleans()})


@settings(max_examples=4 * settings().max_examples)
@given(
    st.data(),
    st.lists(kinds, max_size=40),
    plans,
    manners,
    st.none() | st.integers(1, 3),
)
def test_each_item_has_its_own_outcome(
    data: st.DataObject,
    whats: list[str],
    plan: dict[str, Any],
    manner: dict[str, bool],
    most_open: int | None,
) -> None:
    pool, inputs = FakePool(most_open), Inputs(list(enumerate(whats)))

    async def take() -> list[Outcome[Any]]:
        source = inputs.slowly() if manner["slowly"] else inputs
        results = map_of(pool, source, **plan).outcomes()
        found: list[Outcome[Any]] = []
        async for outcome in results if manner["ordered"] else results.unordered():
            if plan["buffersize"] is not None:
                assert inputs.drawn - len(found) <= plan["buffersize"], (
                    "drawn too early"
                )
            found.append(outcome)
        return found

    found = drive(pool, data, take)
    if not manner["ordered"]:
        found.sort(key=lambda outcome: outcome.index)
    assert [outcome.index for outcome in found] == list(range(len(whats)))
    assert [outcome.item for outcome in found] == inputs.items
    for outcome, what in zip(found, whats, strict=True):
        if what == "die":
            assert isinstance(outcome.error, WorkerCrashedError)
        elif what == "raise":
            assert repr(outcome.error) == f"LookupError({outcome.index})"
        else:
            assert outcome.result() == outcome.index
        # What is lost alone is tried again by the pool.
        most = plan["attempts"] if what == "die" else 1
        assert 1 <= pool.ran[outcome.index] <= most
    assert not pool.open


@in_one_turn
def test_a_result_that_is_too_large_together_is_nobodys_second_run() -> None:
    async def main() -> None:
        pool = FakePool()
        results = map_of(
            pool, [(n, "ok") for n in range(4)], chunksize=4, buffersize=40
        )
        running = asyncio.ensure_future(results.outcomes())
        await asyncio.sleep(0)
        [(job, _)] = pool.open
        error = JobNotPicklableError("too large", direction="result", name="")
        job.set_exception(error)
        assert [one.error for one in await running] == [error] * 4

    run(main())


@pytest.mark.parametrize("turns", [0, 1])
@in_one_turn
def test_what_comes_as_the_map_ends_is_not_tried_again_nor_called_unheard(
    turns: int,
) -> None:
    unheard: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: unheard.append(context)
        )
        pool = FakePool()
        items = [(n, "ok" if n < 4 else "die") for n in range(8)]
        results = map_of(pool, items, chunksize=4, buffersize=40)

        async def take() -> None:
            await anext(results)
            pool.finish(0, 9)
            for _ in range(turns):
                await asyncio.sleep(0)  # it has landed, and is not looked at yet
            await results.aclose()

        task = asyncio.create_task(take())
        await asyncio.sleep(0)
        pool.finish(0, 9)
        await task
        await asyncio.sleep(0)
        assert not pool.open

    run(main())
    gc.collect()
    assert not unheard


class Turns:
    """Count how many items are drawn, loaded and taken in each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._turn = 0
        self._counts: dict[str, Counter[int]] = {}
        load = ChunkResult.load

        def counted(result: ChunkResult) -> list[Any]:
            found = load(result)
            self.note("loaded", len(found))
            return found

        monkeypatch.setattr(ChunkResult, "load", counted)

    def note(self, what: str, items: int = 1) -> None:
        self._counts.setdefault(what, Counter())[self._turn] += items

    async def end(self) -> None:
        await asyncio.sleep(0)
        self._turn += 1

    def draw(self, count: int) -> Iterator[Item]:
        for number in range(count):
            self.note("drawn")
            yield number, "ok"

    async def take(self, results: Map[Any]) -> None:
        async for _ in results:
            self.note("taken")

    def total(self, what: str) -> int:
        return sum(self._counts.get(what, Counter()).values())

    def most(self, what: str) -> int:
        return max(self._counts[what].values())


@pytest.mark.parametrize(("turn", "most"), [(-1.0, 4), (1000.0, 40)])
def test_others_have_the_loop_after_each_turn(
    monkeypatch: pytest.MonkeyPatch, turn: float, most: int
) -> None:
    turns = Turns(monkeypatch)

    async def main() -> None:
        pool = FakePool()
        running = asyncio.create_task(
            turns.take(map_of(pool, turns.draw(40), chunksize=4, buffersize=40))
        )
        while turns.total("drawn") < 40:
            await turns.end()
        while pool.open:
            pool.finish(0, 9)
        while not running.done():
            await turns.end()
        await running

    with turns_of(turn):
        run(main())
    for what in ("drawn", "loaded", "taken"):
        assert (turns.total(what), turns.most(what)) == (40, most)
