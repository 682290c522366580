"""What is deliberately not as with ``ProcessPoolExecutor``, and both sides of each."""

from __future__ import annotations

import concurrent.futures as cf
import multiprocessing
import os
import pickle
import sys
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

import asyncpool
from asyncpool._runtime.machine import usable_cpus
from tests.helpers import jobs
from tests.helpers.executors import (
    FORKS,
    Make,
    fill,
    pending_behind,
    process_pool,
)
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
    "forced end": "kill_workers() and terminate_workers() are there with every Python, work "
    "after shutdown(), too, and leave nobody who ignores SIGTERM",
    "forked": "submit() in a fork of the executor's process is an error, not a hang",
}

# What the standard library counts, by affinity from Python 3.13 on.
CPUS = getattr(os, "process_cpu_count", os.cpu_count)()

pytestmark = FORKS


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

    def test_forced_end(self, make: Make) -> None:
        there = make is not process_pool or sys.version_info >= (3, 14)
        assert hasattr(make(1), "kill_workers") == there
        assert hasattr(make(1), "terminate_workers") == there

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
