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
from concurrent.futures import _base
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncpool import _results
from tests.helpers import jobs
from tests.helpers.executors import FORKS, Make, fill, pending_behind, run_either
from tests.helpers.loops import loop_factories
from tests.helpers.patience import PATIENCE
from tests.helpers.waiting_room import WaitingRoom

pytestmark = FORKS


class Clock:
    """What those see who count the time of many results; the calls go by another one."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_results, "time", clock)
    monkeypatch.setattr(_base, "time", clock)
    return clock


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


class TestFuture:
    """ "Future Objects"."""

    def test_the_states_of_a_call(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        first, _ = fill(executor, room)
        [pending] = pending_behind(executor)
        assert (first.running(), first.done(), first.cancelled()) == (
            True,
            False,
            False,
        )
        assert not pending.running()
        room.release()
        first.result()
        assert (first.running(), first.done(), first.cancelled()) == (
            False,
            True,
            False,
        )

    def test_a_running_call_cannot_be_cancelled(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        first, _ = fill(executor, room)
        assert not first.cancel()
        room.release()
        assert first.result() == "go"
        assert not first.cancel()

    def test_a_pending_call_that_is_cancelled_is_never_made(
        self, executor: cf.Executor, room: WaitingRoom, tmp_path: Any
    ) -> None:
        fill(executor, room)
        pending_behind(executor)
        path = str(tmp_path / "signed")
        pending = executor.submit(jobs.sign, path, 1)
        heard: list[cf.Future[int]] = []
        pending.add_done_callback(heard.append)
        assert pending.cancel()
        assert pending.cancel()
        assert (pending.cancelled(), pending.done(), heard) == (True, True, [pending])
        with pytest.raises(cf.CancelledError):
            pending.exception()
        with pytest.raises(cf.CancelledError):
            pending.result()
        pending.add_done_callback(heard.append)  # at once
        assert heard == [pending, pending]
        room.release()
        executor.shutdown()
        assert not os.path.exists(path)

    def test_who_does_not_want_to_wait_gets_a_timeout_error(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        first, _ = fill(executor, room)
        for timeout in (0, 0.0):
            with pytest.raises(TimeoutError):
                first.result(timeout=timeout)
            with pytest.raises(TimeoutError):
                first.exception(timeout=timeout)

    def test_what_the_call_raises_arrives_as_itself(
        self, executor: cf.Executor
    ) -> None:
        future = executor.submit(operator.truediv, 1, 0)
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            future.result()
        error = future.exception()
        assert type(error) is ZeroDivisionError
        assert "ZeroDivisionError" in str(error.__cause__)
        assert executor.submit(abs, -1).exception() is None

    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
    def test_also_what_is_no_exception(
        self, executor: cf.Executor, kind: type[BaseException]
    ) -> None:
        future = executor.submit(jobs.throw, kind(3))
        error = future.exception()
        assert type(error) is kind
        assert error.args == (3,)
        with pytest.raises(kind):
            future.result()
        assert executor.submit(jobs.square, 3).result() == 9

    def test_callbacks_are_called_in_their_order(
        self, executor: cf.Executor, caplog: pytest.LogCaptureFixture
    ) -> None:
        heard: list[object] = []
        last = threading.Event()

        def fail(_: cf.Future[int]) -> None:
            raise OSError("of the callback")

        with WaitingRoom() as room:
            fill(executor, room)
            future = executor.submit(jobs.square, 3)
            future.add_done_callback(heard.append)
            future.add_done_callback(fail)
            future.add_done_callback(lambda future: heard.append(future.result()))
            future.add_done_callback(lambda _: last.set())
            room.release()
            assert last.wait(PATIENCE)
        assert heard == [future, 9]
        assert "exception calling callback" in caplog.text
        caplog.clear()  # its traceback has all that the callback saw
        future.add_done_callback(heard.append)  # it is done: at once
        assert heard == [future, 9, future]

    def test_callbacks_are_called_in_this_process(self, executor: cf.Executor) -> None:
        pids: list[int] = []
        done = threading.Event()

        def tell(_: object) -> None:
            pids.append(os.getpid())
            done.set()

        with WaitingRoom() as room:
            fill(executor, room)
            executor.submit(int).add_done_callback(tell)
            room.release()
            assert done.wait(PATIENCE)
        assert pids == [os.getpid()]

    def test_what_is_done_is_done(self, executor: cf.Executor) -> None:
        future = executor.submit(jobs.square, 3)
        assert future.result() == 9
        with pytest.raises(cf.InvalidStateError):
            future.set_result(4)
        with pytest.raises(cf.InvalidStateError):
            future.set_exception(OSError())
        assert not future.cancel()
        assert future.result() == 9


class TestModuleFunctions:
    def test_wait_for_the_first(self, executor: cf.Executor, room: WaitingRoom) -> None:
        waiting: cf.Future[Any] = executor.submit(jobs.wait_at, room.path)
        quick: cf.Future[Any] = executor.submit(jobs.square, 3)
        done, rest = cf.wait([waiting, quick], return_when=cf.FIRST_COMPLETED)
        assert (done, rest) == ({quick}, {waiting})
        room.admit()
        room.release()
        done, rest = cf.wait([waiting, quick])
        assert (done, rest) == ({quick, waiting}, set())

    def test_wait_for_an_exception(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        waiting: cf.Future[Any] = executor.submit(jobs.wait_at, room.path)
        bad: cf.Future[Any] = executor.submit(operator.truediv, 1, 0)
        done, rest = cf.wait([waiting, bad], return_when=cf.FIRST_EXCEPTION)
        assert (done, rest) == ({bad}, {waiting})
        room.admit()

    def test_wait_for_an_exception_that_does_not_come(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        waiting: cf.Future[Any] = executor.submit(jobs.wait_at, room.path)
        room.admit()
        quick: cf.Future[Any] = executor.submit(jobs.square, 3)
        quick.add_done_callback(lambda _: room.release())
        found = cf.wait([waiting, quick], return_when=cf.FIRST_EXCEPTION)
        assert found == ({waiting, quick}, set())

    def test_wait_no_longer(self, executor: cf.Executor, room: WaitingRoom) -> None:
        waiting: cf.Future[Any] = executor.submit(jobs.wait_at, room.path)
        room.admit()
        found = cf.wait([waiting, waiting], timeout=0)
        assert (found.done, found.not_done) == (set(), {waiting})
        room.release()
        assert cf.wait([waiting, waiting]).done == {waiting}

    def test_futures_of_several_executors_go_together(
        self, executor: cf.Executor, make: Make
    ) -> None:
        with make(1) as second, cf.ThreadPoolExecutor(1) as third:
            futures = [e.submit(pow, 2, 3) for e in (executor, second, third)]
            assert cf.wait(futures).done == set(futures)
            assert set(cf.as_completed(futures)) == set(futures)

    def test_what_is_cancelled_is_completed(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        running = fill(executor, room)
        [pending] = pending_behind(executor)
        assert pending.cancel()
        room.release()
        assert cf.wait([*running, pending]).done == {*running, pending}
        assert set(cf.as_completed([*running, pending])) == {*running, pending}

    def test_what_was_done_before_comes_first(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        waiting: cf.Future[Any] = executor.submit(jobs.wait_at, room.path)
        room.admit()
        quick = [executor.submit(jobs.square, n) for n in range(3)]
        cf.wait(quick)
        done = cf.as_completed([waiting, *quick], timeout=PATIENCE)
        assert {next(done) for _ in quick} == set(quick)
        room.release()
        assert list(done) == [waiting]

    def test_the_time_runs_from_the_call_to_as_completed(
        self, executor: cf.Executor, room: WaitingRoom, clock: Clock
    ) -> None:
        waiting: cf.Future[Any] = executor.submit(jobs.wait_at, room.path)
        room.admit()
        quick: cf.Future[Any] = executor.submit(jobs.square, 3)
        done = cf.as_completed([quick, waiting], timeout=3600)
        assert next(done) is quick
        clock.now += 3601.0
        with pytest.raises(TimeoutError, match=r"1 \(of 2\) futures unfinished"):
            next(done)

    def test_as_completed(self, executor: cf.Executor, room: WaitingRoom) -> None:
        waiting: cf.Future[Any] = executor.submit(jobs.wait_at, room.path)
        quick: cf.Future[Any] = executor.submit(jobs.square, 3)
        done = cf.as_completed([waiting, quick, quick], timeout=PATIENCE)
        assert next(done) is quick
        room.admit()
        room.release()
        assert list(done) == [waiting]
        with WaitingRoom() as other:
            late = executor.submit(jobs.wait_at, other.path)
            other.admit()
            with pytest.raises(TimeoutError):
                next(cf.as_completed([late], timeout=0))


class TestExceptions:
    """ "Exception classes"."""

    def test_a_broken_pool_is_a_broken_executor(self, make: Make) -> None:
        with make(1) as executor:
            error = executor.submit(os._exit, 3).exception()
        assert isinstance(error, BrokenProcessPool)
        assert isinstance(error, cf.BrokenExecutor)
        assert isinstance(error, RuntimeError)


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
