"""What is documented of futures, of those who wait for them, and of errors.

Each test runs against the standard library's executor and against ours, see
``test_executor.py``.
"""

from __future__ import annotations

import concurrent.futures as cf
import operator
import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from tests.helpers import jobs
from tests.helpers.executors import (
    FORKS,
    Clock,
    Make,
    fill,
    pending_behind,
)
from tests.helpers.patience import PATIENCE
from tests.helpers.waiting_room import WaitingRoom

pytestmark = FORKS


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

    def test_a_worker_that_is_killed_breaks_it(
        self, make: Make, room: WaitingRoom
    ) -> None:
        with make(1) as executor:
            future: cf.Future[Any] = executor.submit(jobs.wait_at, room.path)
            os.kill(room.admit(), signal.SIGKILL)
            with pytest.raises(BrokenProcessPool):
                future.result()
