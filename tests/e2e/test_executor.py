"""What the documentation of ``concurrent.futures`` promises, by its order.

Each test runs against the standard library's executor and against ours.  Where ours
differs on purpose, :data:`DIFFERENCES` says so, and ``TestDifferences`` shows both sides
of what a test can show (for what has no other side, see ``test_executor_life.py``).
"""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import multiprocessing
import operator
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import asyncpool
from asyncpool._runtime.machine import usable_cpus
from tests.helpers import jobs
from tests.helpers.loops import loop_factories
from tests.helpers.patience import PATIENCE
from tests.helpers.waiting_room import WaitingRoom

# All that is deliberately not as with ProcessPoolExecutor.
DIFFERENCES = {
    "crash": "a dead worker fails one call, and the executor stays usable",
    "by value": "lambdas, closures and what lives in __main__ can be sent",
    "not picklable": "what cannot be sent is a JobNotPicklableError, with the cause",
    "fork": "workers never inherit what this process has, whatever the mp_context",
    "max_tasks_per_child": "goes with the context of 'fork', too, and does not need 'spawn'",
    "notified": "wait() and as_completed() hear of a cancelled call at once",
    "StopIteration": "comes in a JobRaisedError, since an asyncio future refuses it",
    "running": "short calls are handed over up to 48 ms ahead, not two or three",
    "max_workers": "defaults to the CPUs that affinity and cgroup allow",
    "buffersize": "map() has it with every Python, not from 3.14 on",
    "coroutine": "coroutine functions are awaited, and their result is the call's",
    "set_start_method": "mp_context=None means a forkserver of ours, whatever is set",
    "initargs": "queues cannot be initargs, and locks only those of a 'forkserver'",
    "callbacks": "run in the thread of the loop that submitted, as a rule",
    "Ctrl-C": "does not reach workers, and calls that were handed ahead still run",
    "3.14": "there is no terminate_workers(), and no kill_workers()",
    "forked": "submit() in a fork of the executor's process is an error, not a hang",
}

Make = Callable[..., cf.Executor]

# What the standard library counts, by affinity from Python 3.13 on.
CPUS = getattr(os, "process_cpu_count", os.cpu_count)()


def process_pool(*args: Any, **kwargs: Any) -> cf.Executor:
    kwargs.setdefault("mp_context", multiprocessing.get_context("fork"))
    return cf.ProcessPoolExecutor(*args, **kwargs)


BOTH = {"ProcessPoolExecutor": process_pool, "Executor": asyncpool.Executor}

pytestmark = [
    # Its way to fork is what Python 3.12 warns of.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture(params=BOTH.values(), ids=list(BOTH))
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    before = set(threading.enumerate())
    yield request.param
    # The standard library's waits for nobody if it was told so once: neither for its
    # processes nor for the thread that closes its pipes.
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    for child in multiprocessing.active_children():
        child.join(PATIENCE)


@pytest.fixture
def executor(make: Make) -> Iterator[cf.Executor]:
    with make(2) as executor:
        yield executor


@pytest.fixture
def room() -> Iterator[WaitingRoom]:
    with WaitingRoom() as room:
        yield room


def fill(executor: cf.Executor, room: WaitingRoom, workers: int = 2) -> list[Any]:
    """Have every worker run a call that waits."""
    running = [executor.submit(jobs.wait_at, room.path) for _ in range(workers)]
    for _ in running:
        room.admit()
    return running


def pending_behind(executor: cf.Executor, count: int = 1) -> list[cf.Future[int]]:
    """Submit calls of which the last *count* are surely not handed over yet."""
    futures = [executor.submit(jobs.square, n) for n in range(20 + count)]
    return futures[-count:]


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
        text = "cannot schedule new futures after shutdown"
        with pytest.raises(RuntimeError, match=text):
            executor.submit(jobs.pid)
        with pytest.raises(RuntimeError, match=text):
            executor.map(jobs.square, [1])

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
        [running] = fill(executor, room, 1)
        [pending] = pending_behind(executor)
        executor.shutdown(wait=False, cancel_futures=True)
        room.release()
        assert running.result() == "go"
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
        with make(2) as executor:
            futures = [executor.submit(jobs.square, n) for n in range(10)]
        assert all(future.done() for future in futures)


class TestArguments:
    @pytest.mark.parametrize("workers", [0, -1])
    def test_there_must_be_workers(self, make: Make, workers: int) -> None:
        with pytest.raises(ValueError, match="max_workers must be greater than 0"):
            make(workers)

    def test_an_initializer_runs_in_each_worker(self, make: Make) -> None:
        with make(2, initializer=os.putenv, initargs=("GREETING", "hello")) as ours:
            command = "sh -c 'exit $(test \"$GREETING\" = hello)'"
            assert ours.submit(os.system, command).result() == 0

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
        room.release()
        executor.shutdown()
        assert not os.path.exists(path)

    def test_who_does_not_want_to_wait_gets_a_timeout_error(
        self, executor: cf.Executor, room: WaitingRoom
    ) -> None:
        first, _ = fill(executor, room)
        with pytest.raises(TimeoutError):
            first.result(timeout=0)
        with pytest.raises(TimeoutError):
            first.exception(timeout=0)

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


class TestDifferences:
    """Both sides of :data:`DIFFERENCES`."""

    def test_crash(self, make: Make) -> None:
        with make(1) as executor:
            with pytest.raises(BrokenProcessPool) as caught:
                executor.submit(os._exit, 3).result()
            if make is process_pool:
                with pytest.raises(BrokenProcessPool):
                    executor.submit(jobs.square, 3)
                return
            error = caught.value
            assert isinstance(error, asyncpool.WorkerCrashedError)
            assert (error.exit_code, error.delivery) == (3, "started")
            assert executor.submit(jobs.square, 3).result() == 9
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (str(again), again.exit_code) == (str(error), 3)

    def test_coroutine(self, make: Make, executor: cf.Executor) -> None:
        future: cf.Future[Any] = executor.submit(jobs.greet, "you")
        if make is process_pool:
            assert "cannot pickle 'coroutine' object" in str(future.exception())
        else:
            assert future.result() == "hello you"

    def test_3_14(self, make: Make) -> None:
        theirs = make is process_pool and sys.version_info >= (3, 14)
        assert hasattr(make(1), "kill_workers") == theirs
        assert hasattr(make(1), "terminate_workers") == theirs

    def test_by_value(self, make: Make, executor: cf.Executor) -> None:
        future = executor.submit(lambda: 3)
        if make is process_pool:
            with pytest.raises((pickle.PicklingError, AttributeError)):
                future.result()
        else:
            assert future.result() == 3

    def test_not_picklable(self, make: Make, executor: cf.Executor) -> None:
        error = executor.submit(id, threading.Lock()).exception()
        cause = error
        if make is not process_pool:
            assert isinstance(error, asyncpool.JobNotPicklableError)
            assert error.name == "args[0]"
            cause = error.__cause__
        assert type(cause) is TypeError
        assert executor.submit(jobs.square, 3).result() == 9

    def test_fork(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "inherited", True, raising=False)
        with make(1, mp_context=multiprocessing.get_context("fork")) as executor:
            inherits = executor.submit(jobs.knows, "inherited").result()
        assert inherits == (make is process_pool)

    def test_max_workers(self, make: Make) -> None:
        # By this name dask finds it out, too.
        workers = make()._max_workers  # type: ignore[attr-defined]
        assert workers == (usable_cpus() if make is not process_pool else CPUS)

    def test_max_tasks_per_child(self, make: Make) -> None:
        if make is process_pool:
            with pytest.raises(ValueError, match="incompatible"):
                make(2, max_tasks_per_child=3)
            return
        context = multiprocessing.get_context("fork")
        with make(2, context, max_tasks_per_child=3) as executor:
            pids = [executor.submit(jobs.pid) for _ in range(30)]
            found = [future.result() for future in pids]
        assert max(found.count(pid) for pid in found) == 3

    def test_notified(self, make: Make, executor: cf.Executor) -> None:
        with WaitingRoom() as room:
            fill(executor, room)
            [pending] = pending_behind(executor)
            assert pending.cancel()
            done, _ = cf.wait([pending], timeout=0)
            assert done == (set() if make is process_pool else {pending})

    def test_stop_iteration(self, make: Make, executor: cf.Executor) -> None:
        error = executor.submit(next, iter(())).exception()
        if make is process_pool:
            assert type(error) is StopIteration
        else:
            assert isinstance(error, asyncpool.JobRaisedError)
            assert type(error.exception) is StopIteration

    @pytest.mark.parametrize("chunksize", [1, 2])
    def test_buffersize(self, make: Make, chunksize: int) -> None:
        if make is process_pool and sys.version_info < (3, 14):
            return
        with make(2) as executor:
            run: Any = executor.map
            items = iter(range(100))
            results: Any = run(jobs.square, items, buffersize=3, chunksize=chunksize)
            assert next(items) == 3 * chunksize
            assert next(results) == 0
            assert next(items) == 4 * chunksize + 1
            assert sum(results) > 0
            with pytest.raises(ValueError, match="buffersize must be None or > 0"):
                run(jobs.square, items, buffersize=0)
            with pytest.raises(TypeError, match="buffersize must be an integer"):
                run(jobs.square, items, buffersize="3")
