"""How an executor's thread and workers begin and end."""

from __future__ import annotations

import asyncio
import atexit
import gc
import itertools
import logging
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Generator
from concurrent.futures import as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

import asyncpool
from asyncpool import Pool, ProcessPoolExecutor, connect
from tests.helpers import jobs
from tests.helpers.inside import Call, begin_call, engine_of, let_turn
from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import finish, run_script, start_script
from tests.helpers.serving import until
from tests.helpers.shared_pools import server
from tests.helpers.waiting_room import WaitingRoom


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("asyncpool")]


@pytest.mark.parametrize("wait", [True, False])
def test_nothing_starts_before_the_first_call_and_nothing_is_left(
    *, wait: bool
) -> None:
    # Not with both executors: theirs leaves its pipes to the collector.
    executor = asyncpool.ProcessPoolExecutor(1)
    assert threads() == []
    pid = executor.submit(jobs.pid).result()
    [thread] = threads()
    executor.shutdown(wait=wait)
    assert threads() == [] or not wait
    thread.join(PATIENCE)
    assert not psutil.pid_exists(pid)
    assert repr(executor).endswith("shut down: 1 workers>")


def test_its_workers_end_of_their_own_accord(tmp_path: Path) -> None:
    """Killed, they would not call what is registered for their end."""
    farewell = tmp_path / "farewell"
    with asyncpool.ProcessPoolExecutor(1) as executor:
        executor.submit(atexit.register, farewell.touch).result()
        assert not farewell.exists()
    assert farewell.exists()


def test_an_executor_that_nobody_has_any_more_ends() -> None:
    with WaitingRoom() as room:
        executor = asyncpool.ProcessPoolExecutor(1)
        running = executor.submit(jobs.wait_at, room.path)
        pending = executor.submit(jobs.square, 3)
        room.admit()
        [thread] = threads()
        gone = weakref.ref(executor)
        del executor
        gc.collect()
        assert gone() is None
        assert not running.done()
        room.release()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    # What was pending is done first.
    assert (running.result(), pending.result()) == ("go", 9)


def test_the_results_of_map_need_no_executor() -> None:
    results = asyncpool.ProcessPoolExecutor(1).map(jobs.square, range(20), chunksize=3)
    assert list(results) == [n * n for n in range(20)]
    for thread in threads():
        thread.join(PATIENCE)


def test_a_callback_may_shut_it_down_and_does_not_wait() -> None:
    executor = asyncpool.ProcessPoolExecutor(1)
    over = threading.Event()

    def end(_: object) -> None:
        executor.shutdown()
        over.set()

    with WaitingRoom() as room:
        future = executor.submit(jobs.wait_at, room.path)
        future.add_done_callback(end)
        room.admit()
        room.release()
        assert over.wait(PATIENCE)
    executor.shutdown()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_the_start_method_is_that_of_the_context(method: str) -> None:
    context = multiprocessing.get_context(method)
    with asyncpool.ProcessPoolExecutor(1, context) as executor:
        line = Path("/proc") / str(executor.submit(jobs.pid).result()) / "cmdline"
        # A worker that was forked has the command line of its launcher.
        last = executor.submit(line.read_text).result().split("\0")
    assert ("worker" in last) == (method == "spawn")


def test_a_context_must_be_one() -> None:
    wrong: Any = "fork"
    with pytest.raises(TypeError, match="must be a context of multiprocessing"):
        asyncpool.ProcessPoolExecutor(1, wrong)


# Not with both executors: what the standard library starts besides, for a context that
# goes with a limit, outlives the test.
@pytest.mark.parametrize("limit", [1, 2])
def test_a_limit_makes_no_more_calls_at_once_than_workers(limit: int) -> None:
    with asyncpool.ProcessPoolExecutor(2, max_tasks_per_child=limit) as executor:
        spans = list(executor.map(jobs.stay, [0.2] * 6))
    assert max(sum(b <= t < e for b, e in spans) for t, _ in spans) <= 2


def test_what_breaks_the_executor_is_told_to_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    boom = partial(jobs.throw, OSError("no licence"))
    with asyncpool.ProcessPoolExecutor(2, initializer=boom) as executor:
        futures = [executor.submit(jobs.pid) for _ in range(3)]
        for future in futures:
            error = future.exception()
            assert isinstance(error, asyncpool.errors.PoolBrokenError)
            assert "OSError: no licence" in str(error)
            assert error.retry_after is None
        with pytest.raises(asyncpool.errors.PoolBrokenError, match="no licence"):
            executor.submit(jobs.pid)


def test_a_call_from_a_loop_that_is_closed_meanwhile_is_settled() -> None:
    async def main() -> Any:
        return executor.submit(jobs.wait_at, room.path)

    with asyncpool.ProcessPoolExecutor(1) as executor, WaitingRoom() as room:
        future = asyncio.run(main())
        room.admit()
        room.release()
        assert future.result(PATIENCE) == "go"


def test_a_call_that_is_cancelled_in_the_last_moment_is_not_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with asyncpool.ProcessPoolExecutor(1) as executor:
        executor.submit(int).result()
        engine, call = engine_of(executor), Call()
        call.queue = OrderedDict()  # the loop has just taken it out
        assert call.cancel()
        assert wait([call], timeout=0).done == set()
        assert not begin_call(engine, call, int)
        assert wait([call], timeout=0).done == {call}
    assert not caplog.records


def test_whoever_ends_a_map_cancels_what_no_worker_runs() -> None:
    with ProcessPoolExecutor(1) as executor, WaitingRoom() as room:
        list(executor.map(jobs.perhaps_wait, [""] * 100))  # they are known to be short
        results = executor.map(jobs.perhaps_wait, [room.path] * 60, timeout=0)
        last = executor.submit(jobs.perhaps_wait, room.path)
        room.admit()
        let_turn(executor)
        until(lambda: not last.running(), "the worker gives its calls back")
        with pytest.raises(TimeoutError):
            next(results)
        assert last.cancel()
        room.release()
        room.admit()  # the one that was next
        room.release()


def test_the_end_of_the_program_waits_for_pending_calls(tmp_path: Path) -> None:
    source = """
        import asyncpool, atexit

        executor = asyncpool.ProcessPoolExecutor(1)
        executor.submit(pow, 2, 3).add_done_callback(lambda f: print(f.result()))
        executor.submit(pow, 2, 4).add_done_callback(lambda f: print(f.result()))
        atexit.register(lambda: print("end"))
        """
    assert run_script(tmp_path, source).splitlines() == ["8", "16", "end"]


def test_no_calls_at_the_end_of_the_program(tmp_path: Path) -> None:
    source = """
        import asyncpool, atexit

        started, fresh = asyncpool.ProcessPoolExecutor(1), asyncpool.ProcessPoolExecutor(1)
        started.submit(int).result()

        def late():
            for executor in started, fresh:
                try:
                    executor.submit(int)
                except RuntimeError as error:
                    print(error)

        atexit.register(late)
        """
    text = "cannot schedule new futures after interpreter shutdown"
    assert run_script(tmp_path, source).splitlines() == [text, text]


@pytest.mark.parametrize("end", ["", "executor.kill_workers()"])
def test_a_program_that_is_interrupted_ends(tmp_path: Path, end: str) -> None:
    source = f"""
        import sys, asyncpool
        from tests.helpers import jobs

        with asyncpool.ProcessPoolExecutor(1) as executor:
            running = executor.submit(jobs.wait_at, sys.argv[1])
            pending = executor.submit(pow, 2, 3)
            pending.add_done_callback(lambda it: print(it.cancelled() or it.exception()))
            try:
                running.result()
            finally:
                print("interrupted", flush=True)
                {end}
        """
    with WaitingRoom() as room:
        process = start_script(tmp_path, source, room.path)
        worker = room.admit()
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupted\n"
        if not end:
            room.release()  # it waits for what is running, and for what is pending
        out, err = finish(process)
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1
    assert err.endswith("\nKeyboardInterrupt\n")
    assert end or out == "None\n"
    assert not psutil.pid_exists(worker)


def test_a_program_that_is_interrupted_twice_waits_for_nobody(tmp_path: Path) -> None:
    source = """
        import sys, asyncpool, threading
        from tests.helpers import jobs

        join = threading.Thread.join

        def tell_and_join(self):
            print("joining", flush=True)
            join(self)

        threading.Thread.join = tell_and_join
        with asyncpool.ProcessPoolExecutor(1) as executor:
            executor.submit(jobs.wait_at, sys.argv[1])
        """
    with WaitingRoom() as room:
        process = start_script(tmp_path, source, room.path)
        worker = room.admit()
        assert process.stdout is not None
        # In the block's end, and in the program's; with Python 3.11 one is enough.
        while process.stdout.readline() == "joining\n":
            os.killpg(process.pid, signal.SIGINT)
        _, err = finish(process)
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") <= 2
    assert not psutil.pid_exists(worker)


def test_tqdm_maps_with_it(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    source = """
        import concurrent.futures, multiprocessing
        import asyncpool
        from tqdm import tqdm
        from tqdm.contrib.concurrent import process_map

        if __name__ == "__main__":
            # The standard library's needs as much, unless it forks this process.
            tqdm.set_lock(multiprocessing.get_context("forkserver").RLock())
            concurrent.futures.ProcessPoolExecutor = asyncpool.ProcessPoolExecutor
            print(*process_map(abs, range(9), max_workers=2, chunksize=2, disable=True))
        """
    assert run_script(tmp_path, source) == "0 1 2 3 4 5 6 7 8\n"


def test_calls_and_results_have_no_bound_but_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with the standard library's; what a pool has by default is not for it."""
    defaults = asyncpool.Pool.__init__.__kwdefaults__ or {}
    assert defaults["max_message_size"] == 1 << 30
    monkeypatch.setitem(defaults, "max_message_size", 1024)
    with asyncpool.ProcessPoolExecutor(1) as executor:
        assert executor.submit(len, bytes(5000)).result() == 5000
        assert executor.submit(bytes, 5000).result() == bytes(5000)


# An executor whose pool was given to it: a shared one, or one with other options.
@pytest.fixture
def path(tmp_path: Path) -> Generator[Path]:
    path = tmp_path / "pool.sock"
    with server(path, workers=2):
        yield path


def test_calls_of_two_executors_run_in_the_same_workers(path: Path) -> None:
    with (
        ProcessPoolExecutor(pool=connect(f"unix:{path}")) as one,
        ProcessPoolExecutor(pool=connect(f"unix:{path}")) as two,
    ):
        pids = {*one.map(jobs.pid_for, range(50)), *two.map(jobs.pid_for, range(50))}
        assert len(pids) <= 2
        assert os.getpid() not in pids
        assert [*one.map(jobs.square, range(500), chunksize=7)] == [
            n * n for n in range(500)
        ]
        with pytest.raises(ZeroDivisionError):
            two.submit(divmod, 1, 0).result(PATIENCE)
        with pytest.raises(BrokenProcessPool):
            one.submit(signal.raise_signal, signal.SIGKILL).result(PATIENCE)
        assert one.submit(jobs.square, 3).result(PATIENCE) == 9
        one.shutdown()
        assert two.submit(jobs.square, 4).result(PATIENCE) == 16


@pytest.mark.parametrize("is_after_short_ones", [False, True])
@pytest.mark.parametrize("kind", ["local", "shared", "under a frozen clock"])
def test_calls_that_no_worker_runs_can_be_cancelled(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_after_short_ones: bool
) -> None:
    if kind == "under a frozen clock":
        frozen = itertools.repeat(time.monotonic())
        monkeypatch.setattr(time, "monotonic", frozen.__next__)
    with WaitingRoom() as room:
        pool = connect(f"unix:{path}") if kind == "shared" else Pool(2)
        executor = ProcessPoolExecutor(pool=pool)
        if is_after_short_ones:
            # A shared pool takes back nothing that was sent too far ahead.
            short = jobs.square if kind == "shared" else jobs.perhaps_wait
            list(executor.map(short, [0] * 1000))
        calls = [executor.submit(jobs.perhaps_wait, room.path) for _ in range(300)]
        room.admit()
        room.admit()
        executor.shutdown(wait=False, cancel_futures=True)
        # For each of two workers: one that runs, and one that is next where others share them.
        most = 4 if kind == "shared" else 2
        ended = [*itertools.islice(as_completed(calls, PATIENCE), len(calls) - most)]
        assert all(call.cancelled() for call in ended)
        let_turn(executor)
        running = [call for call in calls if not call.cancelled()]
        for _ in running[2:]:
            room.release()
            room.admit()
        room.release()
        assert len({call.result(PATIENCE) for call in running}) == 2


async def _in_a_loop(executor: ProcessPoolExecutor) -> list[int]:
    loop = asyncio.get_running_loop()
    calls = (loop.run_in_executor(executor, jobs.square, n) for n in range(20))
    return await asyncio.gather(*calls)


def _begin_and_wait(path: str) -> None:
    Path(path).write_text("begun")
    signal.pause()


def test_it_ends_its_own_calls_only(path: Path, tmp_path: Path) -> None:
    with (
        ProcessPoolExecutor(pool=connect(f"unix:{path}")) as one,
        ProcessPoolExecutor(pool=connect(f"unix:{path}")) as two,
    ):
        assert asyncio.run(_in_a_loop(two)) == [n * n for n in range(20)]
        assert one.submit(jobs.square, 2).result(PATIENCE) == 4
        os.mkfifo(begun := tmp_path / "begun")
        hangs = one.submit(_begin_and_wait, str(begun))
        assert begun.read_text() == "begun"
        one.kill_workers()
        with pytest.raises(BrokenProcessPool):
            hangs.result(PATIENCE)
        one.shutdown()
        assert two.submit(jobs.square, 5).result(PATIENCE) == 25


def test_where_nobody_shares_a_pool_the_first_result_says_so(tmp_path: Path) -> None:
    with ProcessPoolExecutor(pool=connect(f"unix:{tmp_path}/none")) as executor:
        with pytest.raises(
            BrokenProcessPool, match="no process shares a pool there"
        ) as broken:
            executor.submit(jobs.square, 1).result(PATIENCE)
        assert isinstance(broken.value.__cause__, FileNotFoundError)
        with pytest.raises(BrokenProcessPool, match="could not be started"):
            executor.submit(jobs.square, 1)


def test_a_local_pool_brings_its_options() -> None:
    pool = Pool(1, worker_env={"ASYNCPOOL_TEST": "given"}, name="mine")
    with ProcessPoolExecutor(pool=pool) as executor:
        assert executor.submit(os.getenv, "ASYNCPOOL_TEST").result(PATIENCE) == "given"
        assert "mine" in repr(executor)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"pool": 5}, TypeError, r"pool must be an asyncpool\.Pool, or what"),
        ({"pool": Thread()}, TypeError, r"pool must be an asyncpool\.Pool, or what"),
        (
            {"pool": Pool(1).options(timeout=3.0)},
            TypeError,
            r"pool must be an asyncpool\.Pool, or what",
        ),
        ({"pool": Pool(1), "max_workers": 2}, ValueError, "max_workers must not be"),
        ({"pool": Pool(1), "initargs": (1,)}, ValueError, "initargs must not be"),
    ],
)
def test_what_the_pool_decides_is_not_asked_for_twice(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        ProcessPoolExecutor(**options)


@pytest.mark.asyncio
async def test_a_pool_that_has_been_started_is_refused(path: Path) -> None:
    async with Pool(1) as local, connect(f"unix:{path}") as shared:
        pools: list[Any] = [local, shared]
        for pool in pools:
            with pytest.raises(ValueError, match="pool has been started: the executor"):
                ProcessPoolExecutor(pool=pool)
            assert await pool.submit(jobs.square, 3) == 9
    for pool in pools:  # and when it is over
        with pytest.raises(ValueError, match="pool has been started: the executor"):
            ProcessPoolExecutor(pool=pool)
