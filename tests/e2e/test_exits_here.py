"""Arguments, results and exceptions that end whoever touches them, in the pool's process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Pool, ProcessPoolExecutor
from asyncpool.errors import JobNotPicklableError
from tests.helpers import jobs, values
from tests.helpers.logs import Kept, handled_by
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import PATIENCE
from tests.helpers.pools import assert_serves
from tests.helpers.scripts import finish, start_script
from tests.helpers.waiting_room import WaitingRoom


class Own(BaseException):
    pass


# Those that a signal's handler raises, and the others.
EXITS = [SystemExit(3), KeyboardInterrupt("k")]
OTHERS = [GeneratorExit("g"), asyncio.CancelledError("c"), Own("o")]
ALL = [*EXITS, *OTHERS, ValueError("v"), StopIteration("s")]


def named(error: BaseException) -> str:
    return type(error).__name__


# Too large to be pickled in the loop: a thread does that.
def bury(value: object) -> list[object]:
    return [bytearray(1 << 20), *([0] * 100_000), value]


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1) as executor:
        executor.submit(jobs.take, bury(1)).result(PATIENCE)  # starts what it keeps
        yield executor


class TestExecutor:
    @pytest.mark.parametrize(
        "place", [lambda value: value, bury], ids=["small", "large"]
    )
    @pytest.mark.parametrize("error", ALL, ids=named)
    def test_what_an_argument_raises_is_of_its_call_alone(
        self,
        executor: ProcessPoolExecutor,
        error: BaseException,
        place: Callable[[Any], Any],
    ) -> None:
        neighbour = executor.submit(pow, 2, 5)
        bad = executor.submit(jobs.take, place(values.ExplodesHere(error)))
        found = bad.exception(PATIENCE)
        assert isinstance(found, JobNotPicklableError)
        text, _, path = str(found).partition(" - at ")
        assert text.endswith(f"cannot be pickled: {named(error)}: {error}")
        assert path in {"", "`args[0][100001]`"}
        assert neighbour.result(PATIENCE) == 32
        assert executor.submit(pow, 2, 6).result(PATIENCE) == 64

    @pytest.mark.parametrize("error", EXITS, ids=named)
    def test_it_can_be_shut_down_when_that_was_the_only_call(
        self, error: BaseException
    ) -> None:
        with ProcessPoolExecutor(1) as executor:
            bad = executor.submit(jobs.take, values.ExplodesHere(error))
        assert isinstance(bad.exception(0), JobNotPicklableError)

    def test_what_a_result_raises_is_of_its_call_alone(
        self, executor: ProcessPoolExecutor
    ) -> None:
        for error in ALL:
            bad = executor.submit(values.make_explode_elsewhere, error)
            found = bad.exception(PATIENCE)
            assert isinstance(found, JobNotPicklableError)
            assert found.direction == "result"
            assert executor.submit(pow, 2, 6).result(PATIENCE) == 64
        # And an exception that denies its class.
        found = executor.submit(values.raise_sly).exception(PATIENCE)
        assert isinstance(found, JobNotPicklableError)
        assert str(found) == (
            "the job's exception cannot be unpickled here: "
            "tests.helpers.values.SlyError: sly"
        )
        assert executor.submit(pow, 2, 6).result(PATIENCE) == 64

    @pytest.mark.logs("callback-failed")
    @pytest.mark.parametrize("error", [*EXITS, *OTHERS], ids=named)
    def test_what_a_callback_raises_is_logged(
        self, executor: ProcessPoolExecutor, error: BaseException
    ) -> None:
        def fail(_: Future[Any]) -> None:
            raise error

        kept = Kept()
        with handled_by(kept, "asyncpool"), WaitingRoom() as room:
            # Were it done before it has the callback, that would be called here.
            future = executor.submit(jobs.wait_at, room.path)
            future.add_done_callback(fail)
            room.admit()
            room.release()
            assert future.result(PATIENCE) == "go"
            assert executor.submit(pow, 2, 6).result(PATIENCE) == 64
        ids = [vars(record)["message_id"] for record in kept.records]
        assert ids == ["callback-failed"]


class TestPool:
    pytestmark = ONE_LOOP

    @pytest.mark.parametrize("error", EXITS, ids=named)
    async def test_an_exit_may_be_a_signals_and_is_raised_in_the_caller(
        self, pool: Pool, error: BaseException
    ) -> None:
        before = pool.stats()
        with pytest.raises(type(error)):
            pool.submit(jobs.take, values.ExplodesHere(error))
        assert pool.stats().submitted == before.submitted + 1
        assert pool.stats().failed == before.failed + 1
        await assert_serves(pool)

    @pytest.mark.parametrize(
        "place", [lambda value: value, bury], ids=["small", "large"]
    )
    @pytest.mark.parametrize("error", [*EXITS, *OTHERS], ids=named)
    async def test_any_other_one_is_of_its_job_alone(
        self, pool: Pool, error: BaseException, place: Callable[[Any], Any]
    ) -> None:
        """One in a thread is no signal's; broadcasts are pickled there, too."""
        value = place(values.ExplodesHere(error))
        calls: list[Awaitable[object]] = [pool.broadcast(jobs.take, value)]
        if error in OTHERS or place is bury:
            calls.append(pool.submit(jobs.take, value))
        for call in calls:
            with pytest.raises(JobNotPicklableError) as caught:
                await call
            told = f"the call cannot be pickled: {named(error)}: {error}"
            assert str(caught.value) == told
            assert caught.value.__cause__ is error
        await assert_serves(pool)

    @pytest.mark.parametrize(
        "place", [lambda value: value, bury], ids=["small", "large"]
    )
    @pytest.mark.parametrize("error", [*OTHERS, ValueError("v")], ids=named)
    async def test_in_a_map_it_is_of_its_item_alone(
        self, pool: Pool, error: BaseException, place: Callable[[Any], Any]
    ) -> None:
        items = [1, 2, place(values.ExplodesHere(error)), 4]
        found = await pool.map(jobs.take, items, chunksize=4).outcomes()
        assert [one.ok for one in found] == [True, True, False, True]
        assert isinstance(found[2].error, JobNotPicklableError)

    async def test_what_a_result_raises_is_of_its_job_alone(self, pool: Pool) -> None:
        for error in ALL:
            with pytest.raises(JobNotPicklableError) as caught:
                await pool.submit(values.make_explode_elsewhere, error)
            assert caught.value.direction == "result"
        with pytest.raises(JobNotPicklableError, match=r"values\.SlyError: sly\n"):
            await pool.submit(values.raise_sly)
        # A type to retry on has no say in what is of it.
        asking = pool.options(max_attempts=2, retry_on=[values.AskedError])
        with pytest.raises(ValueError, match="invalid literal"):
            await asking.submit(int, "x")
        await assert_serves(pool)

    @pytest.mark.parametrize("error", [*EXITS, *OTHERS], ids=named)
    async def test_an_iterator_of_a_map_ends_who_reads_it(
        self, pool: Pool, error: BaseException
    ) -> None:
        def items() -> Iterator[int]:
            yield 1
            raise error

        with pytest.raises(type(error)):
            await pool.map(jobs.square, items())
        await assert_serves(pool)


SCRIPT = """
    import asyncio, signal, sys
    import asyncpool
    from tests.helpers import jobs, values

    async def main():
        async with asyncpool.Pool(1) as pool:
            print(await pool.submit(pow, 2, 5), flush=True)
            job = pool.submit(jobs.take, values.InterruptedHere(signal.SIGINT))
            print("submitted", flush=True)
            await job
            await asyncio.Event().wait()

    def plain():
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())

    try:
        asyncio.run(main()) if sys.argv[1] == "run" else plain()
    except KeyboardInterrupt:
        print("interrupted")
    """


@pytest.mark.parametrize(
    ("way", "printed"),
    [
        ("run", "32\nsubmitted\ninterrupted\n"),  # its handler cancels the main task
        ("plain", "32\ninterrupted\n"),  # Python's raises it right there
    ],
)
def test_ctrl_c_while_an_argument_is_pickled_ends_the_program(
    tmp_path: Path, way: str, printed: str
) -> None:
    process = start_script(tmp_path, SCRIPT, way)
    out, _ = finish(process)
    assert (out, process.returncode) == (printed, 0)
