"""What the documentation of ``concurrent.futures`` promises, by its order.

Each test runs against the standard library's executor and against ours.  Where ours
differs on purpose, ``test_executor_differences.py`` says so, and shows both sides.
"""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import multiprocessing
import operator
import os
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers import jobs
from tests.helpers.executors import (
    FORKS,
    Clock,
    Make,
    fill,
    pending_behind,
    run_either,
)
from tests.helpers.loops import loop_factories
from tests.helpers.patience import PATIENCE
from tests.helpers.waiting_room import WaitingRoom

pytestmark = FORKS


class TestExecutor:
    """ "Executor Objects"."""

    def test_it_is_an_executor(self, executor: cf.Executor) -> None:
        assert isinstance(executor, cf.Executor)

    def test_submit_returns_a_future_of_the_call(self, executor: cf.Executor) -> None:
        future = executor.submit(pow, 323, 1235)
        assert isinstance(future, cf.Future)
        assert future.result() == 323**1235

    def test_submit_takes_any_keyword(self, executor: cf.Executor) -> None:
        assert executor.submit(dict, fn=1, self=2).result() == {"fn": 1, "self": 2}

    def test_calls_run_in_other_processes(self, executor: cf.Executor) -> None:
        assert executor.submit(jobs.pid).result() != os.getpid()

    def test_calls_are_made_at_once_with_each_other(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        running = [executor.submit(jobs.wait_at, room.path) for _ in range(2)]
        assert len({room.admit() for _ in running}) == 2
        room.release()

    def test_there_are_no_more_workers_than_wanted_and_they_stay(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        running = [executor.submit(jobs.wait_at, room.path) for _ in range(2)]
        pids = {room.admit() for _ in running}
        room.release()
        cf.wait(running)
        assert {executor.submit(jobs.pid).result() for _ in range(50)} <= pids

    def test_any_thread_may_submit(self, executor: cf.Executor) -> None:
        results: list[list[int]] = []

        def go() -> None:
            futures = [executor.submit(jobs.square, n) for n in range(50)]
            results.append([future.result() for future in futures])

        threads = [threading.Thread(target=go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [[n * n for n in range(50)]] * 4

    def test_what_cannot_be_called_is_a_type_error(self, executor: cf.Executor) -> None:
        not_callable: Any = "no function"
        with pytest.raises(TypeError):
            executor.submit(not_callable).result()


class TestMap:
    def test_it_is_like_map(self, executor: cf.Executor) -> None:
        assert list(executor.map(pow, range(9), range(9))) == [n**n for n in range(9)]
        assert list(executor.map(pow, [2, 3, 4], [1, 2])) == [2, 9]
        assert list(executor.map(pow)) == []

    @pytest.mark.parametrize("chunksize", [1, 2, 3, 100])
    def test_chunks_change_nothing(self, executor: cf.Executor, chunksize: int) -> None:
        found = executor.map(jobs.square, range(10), chunksize=chunksize)
        assert list(found) == [n * n for n in range(10)]

    def test_a_chunk_is_one_task(self, executor: cf.Executor) -> None:
        results = executor.map(operator.truediv, [4, 4, 4], [2, 0, 1], chunksize=2)
        with pytest.raises(ZeroDivisionError):
            next(results)
        assert list(results) == []

    def test_a_chunk_must_not_be_empty(self, executor: cf.Executor) -> None:
        with pytest.raises(ValueError, match=r"chunksize must be >= 1\."):
            executor.map(jobs.square, [1], chunksize=0)

    def test_the_iterables_are_read_at_once(self, executor: cf.Executor) -> None:
        items = iter(range(1000))
        results = executor.map(jobs.square, items)
        assert next(items, None) is None
        assert sum(results) == sum(n * n for n in range(1000))

    def test_calls_are_made_before_anybody_asks(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        results = executor.map(jobs.wait_at, [room.path] * 2)
        room.admit()
        room.admit()
        room.release()
        assert list(results) == ["go", "go"]

    def test_what_is_late_is_a_timeout_error(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        results = executor.map(jobs.perhaps_wait, ["", room.path], timeout=PATIENCE)
        assert next(results) > 0
        room.admit()
        room.release()
        assert next(results) > 0
        late = executor.map(jobs.wait_at, [room.path], timeout=0)
        room.admit()
        with pytest.raises(TimeoutError):
            next(late)

    def test_an_exception_is_raised_when_it_is_due(self, executor: cf.Executor) -> None:
        results = executor.map(operator.truediv, [4, 4, 4], [2, 0, 1])
        assert next(results) == 2
        with pytest.raises(ZeroDivisionError):
            next(results)
        assert list(results) == []

    def test_the_time_runs_from_the_call_to_map(
        self, executor: cf.Executor, room: WaitingRoom, clock: Clock
    ) -> None:
        gates = ["", room.path]
        results: Any = executor.map(jobs.perhaps_wait, gates, timeout=3600)
        assert next(results) > 0
        room.admit()
        clock.now += 3601.0
        with pytest.raises(TimeoutError):
            next(results)
        assert next(results, None) is None

    def test_an_iterable_that_raises_does_so_at_once(
        self, executor: cf.Executor
    ) -> None:
        def items() -> Iterator[int]:
            yield 1
            raise LookupError("no more")

        with pytest.raises(LookupError, match="no more"):
            executor.map(jobs.square, items())

    def test_whoever_stops_reading_cancels_the_rest(
        self, executor: cf.Executor, room: WaitingRoom, tmp_path: Any
    ) -> None:
        running = fill(executor, room)
        path = str(tmp_path / "signed")
        results: Any = executor.map(partial(jobs.sign, path), range(50), timeout=0)
        with pytest.raises(TimeoutError):
            next(results)
        room.release()
        cf.wait(running)
        executor.shutdown()
        signed = Path(path).read_text().split() if Path(path).exists() else []
        assert len(signed) <= 5  # some may have been handed over before


class TestShutdown:
    def test_no_calls_after_it(self, executor: cf.Executor) -> None:
        executor.shutdown()
        for call in (executor.submit, executor.map):
            with pytest.raises(RuntimeError) as caught:
                call(len, ["a"])
            assert type(caught.value) is RuntimeError
            assert str(caught.value) == "cannot schedule new futures after shutdown"

    def test_also_if_there_were_none_before(self, make: Make) -> None:
        executor = make(1)
        executor.shutdown()
        executor.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(jobs.pid)

    def test_nothing_is_left_of_it(self, make: Make) -> None:
        executor = make(1)
        pid = executor.submit(jobs.pid).result()
        executor.shutdown()
        assert not psutil.pid_exists(pid)

    def test_it_waits_for_pending_calls(self, make: Make) -> None:
        executor = make(1)
        futures = [executor.submit(jobs.square, n) for n in range(100)]
        executor.shutdown()
        assert all(future.done() for future in futures)
        assert [future.result() for future in futures] == [n * n for n in range(100)]

    def test_unless_it_shall_not(self, make: Make, room: WaitingRoom) -> None:
        executor = make(1)
        [running] = fill(executor, room, 1)
        pending = executor.submit(jobs.square, 3)
        executor.shutdown(wait=False)
        assert not running.done()
        room.release()
        assert (running.result(), pending.result()) == ("go", 9)
        executor.shutdown()

    def test_it_cancels_what_is_pending(self, make: Make, room: WaitingRoom) -> None:
        executor = make(1)
        done = executor.submit(jobs.square, 3)
        assert done.result() == 9
        [running] = fill(executor, room, 1)
        [pending] = pending_behind(executor)
        executor.shutdown(wait=False, cancel_futures=True)
        room.release()
        assert (running.result(), done.result()) == ("go", 9)
        with pytest.raises(cf.CancelledError):
            pending.result()
        executor.shutdown()

    def test_it_cancels_what_is_pending_and_waits(
        self, make: Make, room: WaitingRoom
    ) -> None:
        executor = make(1)
        [running] = fill(executor, room, 1)
        [pending] = pending_behind(executor)
        # The last call in line lets the first one go, when it is cancelled.
        pending.add_done_callback(lambda _: room.release())
        executor.shutdown(wait=True, cancel_futures=True)
        assert (running.done(), pending.cancelled()) == (True, True)

    def test_leaving_the_block_waits(self, make: Make) -> None:
        executor = make(2)
        with executor as same:
            assert same is executor
            futures = [executor.submit(jobs.square, n) for n in range(10)]
        assert all(future.done() for future in futures)

    def test_also_by_an_exception(self, make: Make) -> None:
        futures: list[cf.Future[int]] = []

        def fail() -> None:
            with make(2) as executor:
                futures.extend(executor.submit(jobs.square, n) for n in range(10))
                raise LookupError

        with pytest.raises(LookupError):
            fail()
        assert [future.result(0) for future in futures] == [n * n for n in range(10)]

    def test_the_program_ends_when_pending_calls_are_done(
        self, make: Make, tmp_path: Path
    ) -> None:
        source = """
            if __name__ == "__main__":
                executor = make(1)
                futures = [executor.submit(pow, 2, n) for n in range(30)]
                for future in futures:
                    future.add_done_callback(lambda done: print(done.result()))
                executor.shutdown(wait=False)
            """
        powers = [str(2**n) for n in range(30)]
        assert run_either(tmp_path, make, source).splitlines() == powers


class TestArguments:
    @pytest.mark.parametrize("workers", [0, -1])
    def test_there_must_be_workers(self, make: Make, workers: int) -> None:
        with pytest.raises(ValueError, match="max_workers must be greater than 0"):
            make(workers)

    def test_what_passes_for_a_number_is_one(self, make: Make) -> None:
        two: Any = pytest.importorskip("numpy").int64(2)
        with make(two) as executor:
            found = executor.map(jobs.square, range(5), chunksize=two)
            assert list(found) == [0, 1, 4, 9, 16]

    def test_an_initializer_runs_in_each_worker(self, make: Make) -> None:
        with make(2, initializer=os.putenv, initargs=("GREETING", "hello")) as ours:
            command = "sh -c 'exit $(test \"$GREETING\" = hello)'"
            assert ours.submit(os.system, command).result() == 0

    def test_it_runs_once_in_each(
        self, make: Make, room: WaitingRoom, tmp_path: Path
    ) -> None:
        path = tmp_path / "signed"
        with make(2, initializer=jobs.sign, initargs=(str(path), 1)) as executor:
            fill(executor, room)
            room.release()
            executor.submit(int).result()
        assert path.read_text().split() == ["1", "1"]

    @pytest.mark.parametrize("method", ["fork", "forkserver", "spawn", ""])
    @pytest.mark.parametrize("kind", ["Lock", "Queue", "Event"])
    def test_an_initializer_has_what_multiprocessing_makes(
        self, make: Make, tmp_path: Path, method: str, kind: str
    ) -> None:
        source = """
            if __name__ == "__main__":
                context = multiprocessing.get_context(sys.argv[2] or None)
                thing = getattr(context, sys.argv[1])()
                use = {"Lock": "acquire", "Queue": "put", "Event": "set"}[sys.argv[1]]
                use = operator.methodcaller(use, *[3][sys.argv[1] != "Queue":])
                with make(1, context, use, (thing,)) as executor:
                    print(executor.submit(abs, -1).result())
                    if sys.argv[1] == "Queue":
                        print(thing.get())
                    else:
                        ask = {"Lock": "acquire", "Event": "wait"}[sys.argv[1]]
                        print(int(getattr(thing, ask)(sys.argv[1] == "Event")) + 2)
            """
        out = run_either(tmp_path, make, source, kind, method)
        assert out == ("1\n2\n" if kind == "Lock" else "1\n3\n")

    def test_an_initializer_must_be_callable(self, make: Make) -> None:
        with pytest.raises(TypeError, match="initializer must be a callable"):
            make(1, initializer="no function")

    @pytest.mark.parametrize("limit", [0, -1])
    def test_a_worker_makes_a_call_at_least(self, make: Make, limit: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        with pytest.raises(ValueError, match="max_tasks_per_child must be >= 1"):
            make(1, mp_context=spawn, max_tasks_per_child=limit)

    def test_the_limit_is_an_integer(self, make: Make) -> None:
        spawn = multiprocessing.get_context("spawn")
        with pytest.raises(TypeError, match="max_tasks_per_child must be an integer"):
            make(1, mp_context=spawn, max_tasks_per_child="two")

    def test_an_initializer_that_raises_breaks_the_executor(self, make: Make) -> None:
        # The standard library's says so on stderr, too.
        with make(1, initializer=operator.truediv, initargs=(1, 0)) as executor:
            with pytest.raises(BrokenProcessPool):
                executor.submit(jobs.pid).result()
            with pytest.raises(BrokenProcessPool):
                executor.submit(jobs.pid)


@pytest.mark.parametrize("loop", loop_factories().values(), ids=list(loop_factories()))
class TestEventLoops:
    """What asyncio's documentation says of executors."""

    def test_run_in_executor(self, make: Make, loop: Any) -> None:
        async def main() -> list[int]:
            with make(2) as executor:
                run = partial(asyncio.get_running_loop().run_in_executor, executor)
                assert await run(jobs.square, 4) == 16
                with pytest.raises(ZeroDivisionError):
                    await run(operator.truediv, 1, 0)
                return await asyncio.gather(*(run(jobs.square, n) for n in range(300)))

        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(main()) == [n * n for n in range(300)]

    def test_whoever_is_cancelled_need_not_wait(
        self, make: Make, loop: Any, room: WaitingRoom
    ) -> None:
        async def main() -> None:
            run = asyncio.get_running_loop().run_in_executor
            waiting = run(ours, jobs.wait_at, room.path)
            await asyncio.to_thread(room.admit)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await waiting

        with make(1) as ours:
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(main())
            room.release()

    def test_a_loop_that_waits_in_a_blocking_way_is_served(
        self, make: Make, loop: Any
    ) -> None:
        async def main() -> None:
            with make(2) as executor:
                futures = [executor.submit(jobs.square, n) for n in range(20)]
                assert cf.wait(futures, PATIENCE).not_done == set()
                assert executor.submit(jobs.square, 5).result(PATIENCE) == 25

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())

    def test_as_a_default_executor(self, make: Make, loop: Any) -> None:
        async def main() -> None:
            executor: Any = make(1)
            running = asyncio.get_running_loop()
            if type(running).__module__ == "uvloop":
                running.set_default_executor(executor)
                assert await running.run_in_executor(None, jobs.square, 3) == 9
                return  # whoever ends the loop shuts it down
            with executor, pytest.raises(TypeError, match="ThreadPoolExecutor"):
                running.set_default_executor(executor)

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())
