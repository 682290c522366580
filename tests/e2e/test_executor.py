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
import signal
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers import jobs
from tests.helpers.executors import FORKS, Clock, Make, fill, pending_behind, run_either
from tests.helpers.loops import EACH_LOOP, loop_factories
from tests.helpers.patience import PATIENCE
from tests.helpers.waiting_room import WaitingRoom

pytestmark = FORKS


class TestExecutor:
    """ "Executor Objects"."""

    def test_submit_returns_a_future_of_the_call(self, executor: cf.Executor) -> None:
        assert isinstance(executor, cf.Executor)
        future = executor.submit(pow, 323, 1235)
        assert isinstance(future, cf.Future)
        assert future.result() == 323**1235
        assert executor.submit(dict, fn=1, self=2).result() == {"fn": 1, "self": 2}
        assert executor.submit(jobs.pid).result() != os.getpid()
        not_callable: Any = "no function"
        with pytest.raises(TypeError):
            executor.submit(not_callable).result()

    def test_calls_are_made_at_once_by_workers_that_stay(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        running = [executor.submit(jobs.wait_at, room.path) for _ in range(2)]
        pids = {room.admit() for _ in running}
        assert len(pids) == 2
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


class TestMap:
    def test_it_is_like_map(self, executor: cf.Executor) -> None:
        assert list(executor.map(pow, range(9), range(9))) == [n**n for n in range(9)]
        assert list(executor.map(pow, [2, 3, 4], [1, 2])) == [2, 9]
        assert list(executor.map(pow)) == []
        items = iter(range(1000))
        results = executor.map(jobs.square, items)
        assert next(items, None) is None, "they are read at once"
        assert sum(results) == sum(n * n for n in range(1000))

    @pytest.mark.parametrize("chunksize", [1, 2, 3, 100])
    def test_chunks_change_nothing(self, executor: cf.Executor, chunksize: int) -> None:
        found = executor.map(jobs.square, range(10), chunksize=chunksize)
        assert list(found) == [n * n for n in range(10)]

    def test_an_exception_is_raised_when_it_is_due(self, executor: cf.Executor) -> None:
        results = executor.map(operator.truediv, [4, 4, 4], [2, 0, 1])
        assert next(results) == 2
        with pytest.raises(ZeroDivisionError):
            next(results)
        assert list(results) == []
        # A chunk is one task.
        results = executor.map(operator.truediv, [4, 4, 4], [2, 0, 1], chunksize=2)
        with pytest.raises(ZeroDivisionError):
            next(results)
        assert list(results) == []

    def test_a_chunk_must_not_be_empty(self, executor: cf.Executor) -> None:
        with pytest.raises(ValueError, match=r"chunksize must be >= 1\."):
            executor.map(jobs.square, [1], chunksize=0)

    def test_calls_are_made_before_anybody_asks(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        results = executor.map(jobs.wait_at, [room.path] * 2)
        room.admit()
        room.admit()
        room.release()
        assert list(results) == ["go", "go"]

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

    def test_whoever_reads_no_result_has_all_calls_made(
        self, own_executor: cf.Executor, tmp_path: Path
    ) -> None:
        path = tmp_path / "signed"
        own_executor.map(partial(jobs.sign, str(path)), range(300))
        own_executor.shutdown()
        assert len(path.read_text().split()) == 300

    def test_whoever_stops_reading_cancels_the_rest(
        self, own_executor: cf.Executor, room: WaitingRoom, tmp_path: Any
    ) -> None:
        running = fill(own_executor, room)
        path = str(tmp_path / "signed")
        results: Any = own_executor.map(partial(jobs.sign, path), range(50), timeout=0)
        with pytest.raises(TimeoutError):
            next(results)
        room.release()
        cf.wait(running)
        own_executor.shutdown()
        signed = Path(path).read_text().split() if Path(path).exists() else []
        assert len(signed) <= 5  # some may have been handed over before


class TestShutdown:
    def test_it_waits_for_pending_calls_and_there_are_none_after_it(
        self, make: Make
    ) -> None:
        executor, unused = make(1), make(1)
        pid = executor.submit(jobs.pid).result()
        futures = [executor.submit(jobs.square, n) for n in range(100)]
        executor.shutdown()
        assert not psutil.pid_exists(pid)
        assert all(future.done() for future in futures)
        assert [future.result() for future in futures] == [n * n for n in range(100)]
        unused.shutdown()
        unused.shutdown()
        for call in (executor.submit, executor.map, unused.submit):
            with pytest.raises(RuntimeError) as caught:
                call(len, ["a"])
            assert type(caught.value) is RuntimeError
            assert str(caught.value) == "cannot schedule new futures after shutdown"

    def test_unless_it_shall_not(self, make: Make, room: WaitingRoom) -> None:
        executor = make(1)
        [running] = fill(executor, room, 1)
        pending = executor.submit(jobs.square, 3)
        executor.shutdown(wait=False)
        assert not running.done()
        room.release()
        assert (running.result(), pending.result()) == ("go", 9)
        executor.shutdown()

    @pytest.mark.parametrize("wait", [True, False])
    def test_it_cancels_what_is_pending(
        self, make: Make, room: WaitingRoom, *, wait: bool
    ) -> None:
        executor = make(1)
        done = executor.submit(jobs.square, 3)
        assert done.result() == 9
        [running] = fill(executor, room, 1)
        [pending] = pending_behind(executor)
        # The last call in line lets the first one go, when it is cancelled.
        pending.add_done_callback(lambda _: room.release())
        executor.shutdown(wait=wait, cancel_futures=True)
        assert running.done() or not wait
        assert (running.result(), done.result()) == ("go", 9)
        with pytest.raises(cf.CancelledError):
            pending.result()
        executor.shutdown()

    @pytest.mark.parametrize("error", [None, LookupError, KeyboardInterrupt])
    def test_leaving_the_block_waits(
        self, make: Make, error: type[BaseException] | None
    ) -> None:
        futures: list[cf.Future[int]] = []

        def leave() -> None:
            executor = make(2)
            with executor as same:
                assert same is executor
                futures.extend(executor.submit(jobs.square, n) for n in range(10))
                if error is not None:
                    raise error

        with pytest.raises(error) if error else nullcontext():
            leave()
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
    def test_what_passes_for_a_number_is_one(self, make: Make) -> None:
        two: Any = pytest.importorskip("numpy").int64(2)
        with make(two) as executor:
            found = executor.map(jobs.square, range(5), chunksize=two)
            assert list(found) == [0, 1, 4, 9, 16]

    def test_an_initializer_runs_once_in_each_worker(
        self, make: Make, room: WaitingRoom, tmp_path: Path
    ) -> None:
        path = tmp_path / "signed"
        with make(2, initializer=jobs.sign, initargs=(str(path), 1)) as executor:
            fill(executor, room)
            room.release()
            executor.submit(int).result()
        assert path.read_text().split() == ["1", "1"]

    @pytest.mark.parametrize("method", ["fork", "forkserver", "spawn", ""])
    def test_an_initializer_has_what_multiprocessing_makes(
        self, make: Make, tmp_path: Path, method: str
    ) -> None:
        source = """
            def use(lock, queue, event):
                lock.acquire()
                queue.put(3)
                event.set()

            if __name__ == "__main__":
                context = multiprocessing.get_context(sys.argv[1] or None)
                lock, queue, event = context.Lock(), context.Queue(), context.Event()
                with make(1, context, use, (lock, queue, event)) as executor:
                    print(executor.submit(abs, -1).result(), queue.get())
                    print(event.wait(), lock.acquire(False))
            """
        out = run_either(tmp_path, make, source, method)
        assert out == "1 3\nTrue False\n"

    @pytest.mark.parametrize(
        ("workers", "options", "error", "text"),
        [
            (0, {}, ValueError, "max_workers must be greater than 0"),
            (-1, {}, ValueError, "max_workers must be greater than 0"),
            (1, {"initializer": "no"}, TypeError, "initializer must be a callable"),
            (1, {"max_tasks_per_child": 0}, ValueError, "max_tasks_per_child must be"),
            (1, {"max_tasks_per_child": -1}, ValueError, "max_tasks_per_child must be"),
            (1, {"max_tasks_per_child": "2"}, TypeError, "must be an integer"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self,
        make: Make,
        workers: int,
        options: dict[str, Any],
        error: type[Exception],
        text: str,
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        with pytest.raises(error, match=text):
            make(workers, mp_context=spawn, **options)

    def test_an_initializer_that_raises_breaks_the_executor(self, make: Make) -> None:
        # The standard library's says so on stderr, too.
        with make(1, initializer=operator.truediv, initargs=(1, 0)) as executor:
            with pytest.raises(BrokenProcessPool):
                executor.submit(jobs.pid).result()
            with pytest.raises(BrokenProcessPool):
                executor.submit(jobs.pid)


@pytest.mark.parametrize("loop", EACH_LOOP)
class TestEventLoops:
    """What asyncio's documentation says of executors."""

    def test_run_in_executor(self, make: Make, loop: str) -> None:
        async def main() -> list[int]:
            with make(2) as executor:
                # A loop that waits in a blocking way is served as well.
                futures = [executor.submit(jobs.square, n) for n in range(20)]
                assert cf.wait(futures, PATIENCE).not_done == set()
                run = partial(asyncio.get_running_loop().run_in_executor, executor)
                assert await run(jobs.square, 4) == 16
                with pytest.raises(ZeroDivisionError):
                    await run(operator.truediv, 1, 0)
                return await asyncio.gather(*(run(jobs.square, n) for n in range(300)))

        with asyncio.Runner(loop_factory=loop_factories()[loop]) as runner:
            assert runner.run(main()) == [n * n for n in range(300)]

    def test_whoever_is_cancelled_need_not_wait(
        self, make: Make, loop: str, room: WaitingRoom
    ) -> None:
        async def main() -> None:
            run = asyncio.get_running_loop().run_in_executor
            waiting = run(ours, jobs.wait_at, room.path)
            await asyncio.to_thread(room.admit)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await waiting

        with make(1) as ours:
            with asyncio.Runner(loop_factory=loop_factories()[loop]) as runner:
                runner.run(main())
            room.release()

    def test_as_a_default_executor(self, make: Make, loop: str) -> None:
        async def main() -> None:
            executor: Any = make(1)
            running = asyncio.get_running_loop()
            if type(running).__module__ == "uvloop":
                running.set_default_executor(executor)
                assert await running.run_in_executor(None, jobs.square, 3) == 9
                return  # whoever ends the loop shuts it down
            with executor, pytest.raises(TypeError, match="ThreadPoolExecutor"):
                running.set_default_executor(executor)

        with asyncio.Runner(loop_factory=loop_factories()[loop]) as runner:
            runner.run(main())


class TestFuture:
    """ "Future Objects"."""

    def test_the_states_of_a_call(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        first, _ = fill(executor, room)
        [pending] = pending_behind(executor)
        states = first.running(), first.done(), first.cancelled()
        assert states == (True, False, False)
        assert not pending.running()
        assert not first.cancel()
        for timeout in (0, 0.0):
            with pytest.raises(TimeoutError):
                first.result(timeout=timeout)
            with pytest.raises(TimeoutError):
                first.exception(timeout=timeout)
        room.release()
        assert first.result() == "go"
        states = first.running(), first.done(), first.cancelled()
        assert states == (False, True, False)
        assert not first.cancel()
        with pytest.raises(cf.InvalidStateError):
            first.set_result(4)
        with pytest.raises(cf.InvalidStateError):
            first.set_exception(OSError())
        assert first.result() == "go"

    def test_a_pending_call_that_is_cancelled_is_never_made(
        self, own_executor: cf.Executor, room: WaitingRoom, tmp_path: Any
    ) -> None:
        fill(own_executor, room)
        pending_behind(own_executor)
        path = str(tmp_path / "signed")
        pending = own_executor.submit(jobs.sign, path, 1)
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
        own_executor.shutdown()
        assert not os.path.exists(path)

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
        here = os.getpid()

        def fail(_: cf.Future[int]) -> None:
            raise OSError("of the callback")

        with WaitingRoom() as room:
            fill(executor, room)
            future = executor.submit(jobs.square, 3)
            future.add_done_callback(heard.append)
            future.add_done_callback(fail)
            future.add_done_callback(lambda future: heard.append(future.result()))
            future.add_done_callback(lambda _: heard.append(os.getpid()))
            future.add_done_callback(lambda _: last.set())
            room.release()
            assert last.wait(PATIENCE)
        assert heard == [future, 9, here]
        assert "exception calling callback" in caplog.text
        caplog.clear()  # its traceback has all that the callback saw
        future.add_done_callback(heard.append)  # it is done: at once
        assert heard == [future, 9, here, future]


class TestModuleFunctions:
    def test_they_wait_for_what_they_are_told_to(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        waiting: cf.Future[Any] = executor.submit(jobs.wait_at, room.path)
        room.admit()
        assert cf.wait([waiting, waiting], timeout=0) == (set(), {waiting})
        with pytest.raises(TimeoutError):
            next(cf.as_completed([waiting], timeout=0))
        quick: cf.Future[Any] = executor.submit(jobs.square, 3)
        found = cf.wait([waiting, quick], return_when=cf.FIRST_COMPLETED)
        assert found == ({quick}, {waiting})
        bad: cf.Future[Any] = executor.submit(operator.truediv, 1, 0)
        found = cf.wait([waiting, bad], return_when=cf.FIRST_EXCEPTION)
        assert found == ({bad}, {waiting})
        # What was done before comes first.
        done = cf.as_completed([waiting, quick, bad, quick], timeout=PATIENCE)
        assert {next(done) for _ in "ab"} == {quick, bad}
        last: cf.Future[Any] = executor.submit(jobs.square, 3)
        last.add_done_callback(lambda _: room.release())
        found = cf.wait([waiting, last], return_when=cf.FIRST_EXCEPTION)
        assert found == ({waiting, last}, set())
        assert list(done) == [waiting]

    def test_futures_of_several_executors_go_together(
        self, executor: cf.Executor, make: Make, room: WaitingRoom
    ) -> None:
        running = fill(executor, room)
        [cancelled] = pending_behind(executor)
        assert cancelled.cancel()
        room.release()
        with make(1) as second, cf.ThreadPoolExecutor(1) as third:
            futures = [e.submit(pow, 2, 3) for e in (executor, second, third)]
            every = {*futures, *running, cancelled}
            assert cf.wait(every).done == every
            assert set(cf.as_completed(every)) == every


class TestExceptions:
    """ "Exception classes"."""

    @pytest.mark.parametrize("killed", [False, True])
    def test_a_broken_pool_is_a_broken_executor(
        self, make: Make, room: WaitingRoom, *, killed: bool
    ) -> None:
        with make(1) as executor:
            if killed:
                future: cf.Future[Any] = executor.submit(jobs.wait_at, room.path)
                os.kill(room.admit(), signal.SIGKILL)
            else:
                future = executor.submit(os._exit, 3)
            error = future.exception()
        assert isinstance(error, BrokenProcessPool)
        assert isinstance(error, cf.BrokenExecutor)
        assert isinstance(error, RuntimeError)
