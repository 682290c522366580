"""``terminate_workers`` and ``kill_workers``, which Python documents from 3.14 on.

Ours are there with every Python; the standard library's are tested where they are.
"""

from __future__ import annotations

import concurrent.futures as cf
import pickle
import sys
import threading
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import psutil
import pytest

import asyncpool
from tests.helpers import jobs
from tests.helpers.executors import (
    FORKS,
    Make,
    fill,
    pending_behind,
    process_pool,
    wait_gone,
)
from tests.helpers.inside import (
    _Engine,
    pool_of,
    put_engine,
    terminate_for_ever,
    terminate_within,
)
from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import run_script
from tests.helpers.waiting_room import WaitingRoom

# The standard library's has these methods from Python 3.14 on, and leaves its pipes to the
# garbage collector now and then.
THEIRS = pytest.param(process_pool, marks=pytest.mark.leaks_allowed, id="standard")
OURS = pytest.param(asyncpool.ProcessPoolExecutor, id="asyncpool")
MAKES = [THEIRS, OURS] if sys.version_info >= (3, 14) else [OURS]

pytestmark = [
    FORKS,
    pytest.mark.parametrize("how", ["terminate_workers", "kill_workers"]),
]


def end(executor: cf.Executor, how: str) -> None:
    getattr(executor, how)()


@pytest.mark.parametrize("standard_or_ours", MAKES, indirect=True)
class TestForcedEnd:
    """What both do."""

    def test_what_runs_fails_and_what_is_pending_is_cancelled(
        self, make: Make, how: str, room: WaitingRoom
    ) -> None:
        executor = make(2)
        results = executor.map(jobs.wait_at, [room.path])
        running = [executor.submit(jobs.wait_at, room.path)]
        pids = [room.admit() for _ in range(2)]
        [pending] = pending_behind(executor)
        end(executor, how)
        with pytest.raises(BrokenProcessPool):
            next(results)
        for future in running:
            assert isinstance(future.exception(PATIENCE), BrokenProcessPool)
        with pytest.raises(cf.CancelledError):
            pending.result(PATIENCE)
        with pytest.raises(RuntimeError):
            executor.submit(jobs.pid)
        executor.shutdown()
        for pid in pids:
            wait_gone(pid)

    def test_workers_that_do_nothing_end_too_and_there_need_not_be_any(
        self, make: Make, how: str
    ) -> None:
        executor, unused = make(1), make(1)
        pid = executor.submit(jobs.pid).result()
        end(executor, how)
        wait_gone(pid)
        executor.shutdown()
        end(unused, how)
        with pytest.raises(RuntimeError, match="after shutdown"):
            unused.submit(jobs.pid)

    def test_by_several_threads_at_once(
        self, make: Make, how: str, room: WaitingRoom
    ) -> None:
        executor = make(2)
        running = fill(executor, room)
        ready, errors = threading.Barrier(8), []

        def go() -> None:
            ready.wait(PATIENCE)
            try:
                for _ in range(3):
                    executor.terminate_workers()  # type: ignore[attr-defined]
                    executor.kill_workers()  # type: ignore[attr-defined]
                    end(executor, how)
            except BaseException as error:  # noqa: BLE001 - there is to be none
                errors.append(error)

        threads = [threading.Thread(target=go) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert cf.wait(running, PATIENCE).not_done == set()
        executor.shutdown()
        end(executor, how)


def test_the_error_says_what_has_become_of_the_call(
    how: str, room: WaitingRoom
) -> None:
    executor = asyncpool.ProcessPoolExecutor(1)
    [running] = fill(executor, room, 1)
    behind = executor.submit(jobs.square, 3)  # if it is handed over by now
    executor.shutdown(wait=False)  # what runs after a shutdown is ended, too
    end(executor, how)
    executor.shutdown()
    error = running.exception()
    assert isinstance(error, asyncpool.errors.PoolClosedError)
    assert error.delivery == "started"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    late = None if behind.cancelled() else behind.exception()
    assert late is None or isinstance(late, BrokenProcessPool)
    with pytest.raises(
        RuntimeError, match="cannot schedule new futures after shutdown"
    ):
        executor.submit(jobs.pid)


def test_only_one_of_them_is_a_request(
    how: str, room: WaitingRoom, tmp_path: Path
) -> None:
    executor = asyncpool.ProcessPoolExecutor(1)
    path = tmp_path / "signed"
    future: cf.Future[Any] = executor.submit(jobs.sign_at_sigterm, room.path, str(path))
    room.admit()
    end(executor, how)
    executor.shutdown()
    assert path.exists() == (how == "terminate_workers")
    assert isinstance(future.exception(), BrokenProcessPool)


def test_the_stricter_of_two_counts(
    how: str, room: WaitingRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminate_within(monkeypatch, 3600.0)
    terminate_for_ever(monkeypatch)
    [other] = {"terminate_workers", "kill_workers"} - {how}
    executor = asyncpool.ProcessPoolExecutor(1)
    executor.submit(jobs.refuse_to_end, room.path, "")
    pid = room.admit()
    end(executor, how)
    end(executor, other)
    wait_gone(pid)
    executor.shutdown()


def test_workers_that_start_are_ended(
    how: str, room: WaitingRoom, caplog: pytest.LogCaptureFixture
) -> None:
    executor = asyncpool.ProcessPoolExecutor(
        1, initializer=jobs.wait_at, initargs=(room.path,)
    )
    future = executor.submit(jobs.pid)
    pid = room.admit()
    end(executor, how)
    executor.shutdown()
    assert future.cancelled()
    assert not psutil.pid_exists(pid)
    assert not caplog.records


def test_nothing_is_started_any_more(how: str) -> None:
    executor = asyncpool.ProcessPoolExecutor(1)
    # The thread, as it is before it has begun.
    engine = _Engine(pool_of(executor))
    put_engine(executor, engine)
    end(executor, how)
    engine.thread.start()
    executor.shutdown()
    assert pool_of(executor).stats().spawned == 0
    assert pool_of(executor).stats().state == "new"


def test_a_callback_may_do_it(how: str) -> None:
    executor = asyncpool.ProcessPoolExecutor(2)
    done = threading.Event()

    def finish(_: object) -> None:
        end(executor, how)
        done.set()

    with WaitingRoom() as first, WaitingRoom() as second:
        one: cf.Future[Any] = executor.submit(jobs.wait_at, first.path)
        other = executor.submit(jobs.wait_at, second.path)
        one.add_done_callback(finish)
        second.admit()
        first.admit()
        first.release()
        assert done.wait(PATIENCE)
        assert isinstance(other.exception(PATIENCE), BrokenProcessPool)
    executor.shutdown()


def test_a_fork_ends_no_workers_of_its_parent(how: str, tmp_path: Path) -> None:
    source = """
        import asyncpool, os, sys, warnings

        warnings.simplefilter("ignore", DeprecationWarning)  # of forks, from 3.12 on
        executor = asyncpool.ProcessPoolExecutor(1)
        worker = executor.submit(os.getpid).result()
        pid = os.fork()
        if pid == 0:
            getattr(executor, sys.argv[1])()
        else:
            print(os.waitpid(pid, 0)[1], executor.submit(os.getpid).result() == worker)
        """
    assert run_script(tmp_path, source, how) == "0 True\n"
