"""What is deliberately not as with ``ProcessPoolExecutor``, and both sides of each."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

import asyncpool
from tests.helpers import jobs
from tests.helpers.executors import (
    FORKS,
    Make,
    fill,
    pending_behind,
    process_pool,
    run_either,
    start_either,
)
from tests.helpers.inside import deliver_in_loops_only, usable_cpus
from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import finish, run_script
from tests.helpers.waiting_room import WaitingRoom

# What the standard library counts, by affinity from Python 3.13 on.
CPUS = getattr(os, "process_cpu_count", os.cpu_count)()

pytestmark = FORKS


class TestDifferences:
    """Both sides of each, or ours where the other one is a hang."""

    def test_crash(self, make: Make) -> None:
        """A dead worker fails one call, and the executor stays usable."""
        with make(1) as executor:
            with pytest.raises(BrokenProcessPool) as caught:
                executor.submit(os._exit, 3).result()
            if make is process_pool:
                with pytest.raises(BrokenProcessPool):
                    executor.submit(jobs.square, 3)
                return
            error = caught.value
            assert isinstance(error, asyncpool.errors.WorkerCrashedError)
            assert (error.exit_code, error.delivery) == (3, "started")
            assert executor.submit(jobs.square, 3).result() == 9
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (str(again), again.exit_code) == (str(error), 3)

    def test_coroutine(self, make: Make, executor: cf.Executor) -> None:
        """Coroutine functions are awaited, and their result is the call's."""
        future: cf.Future[Any] = executor.submit(jobs.greet, "you")
        if make is process_pool:
            assert "cannot pickle 'coroutine' object" in str(future.exception())
        else:
            assert future.result() == "hello you"

    def test_forced_end(self, make: Make) -> None:
        """Kill_workers() and terminate_workers() are there with every Python, work after
        shutdown(), too, and leave nobody who ignores SIGTERM: see ``test_executor_forced.py``.
        """
        executor: Any = make(1)
        there = make is not process_pool or sys.version_info >= (3, 14)
        assert hasattr(executor, "kill_workers") == there
        assert hasattr(executor, "terminate_workers") == there

    def test_by_value(self, make: Make, executor: cf.Executor) -> None:
        """Lambdas, closures and what lives in __main__ can be sent."""
        future = executor.submit(lambda: 3)
        if make is process_pool:
            with pytest.raises((pickle.PicklingError, AttributeError)):
                future.result()
        else:
            assert future.result() == 3

    def test_not_picklable(self, make: Make, executor: cf.Executor) -> None:
        """What cannot be sent is a JobNotPicklableError, with the cause."""
        error = executor.submit(id, threading.Lock()).exception()
        cause = error
        if make is not process_pool:
            assert isinstance(error, asyncpool.errors.JobNotPicklableError)
            assert error.name == "args[0]"
            cause = error.__cause__
        assert type(cause) is TypeError
        result = executor.submit(threading.Lock).exception()
        refused = isinstance(result, asyncpool.errors.JobNotPicklableError)
        assert refused == (make is not process_pool)
        assert "cannot pickle '_thread.lock' object" in str(result)
        assert executor.submit(jobs.square, 3).result() == 9

    def test_fork(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        """Workers never inherit what this process has, whatever the mp_context."""
        monkeypatch.setattr(jobs, "inherited", True, raising=False)
        with make(1, mp_context=multiprocessing.get_context("fork")) as executor:
            inherits = executor.submit(jobs.knows, "inherited").result()
        assert inherits == (make is process_pool)

    def test_max_workers(self, make: Make) -> None:
        """Defaults to the CPUs that affinity and cgroup allow."""
        # By this name dask finds it out, too.
        workers = make()._max_workers  # type: ignore[attr-defined]
        assert workers == (usable_cpus() if make is not process_pool else CPUS)

    def test_max_tasks_per_child(self, make: Make) -> None:
        """Goes with the context of 'fork', too, and does not need 'spawn'."""
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
        """Wait() and as_completed() hear of a cancelled call at once."""
        with WaitingRoom() as room:
            fill(executor, room)
            [pending] = pending_behind(executor)
            assert pending.cancel()
            done, _ = cf.wait([pending], timeout=0)
            assert done == (set() if make is process_pool else {pending})

    def test_stop_iteration(self, make: Make, executor: cf.Executor) -> None:
        """Comes in a JobRaisedError, since an asyncio future refuses it."""
        error = executor.submit(next, iter(())).exception()
        if make is process_pool:
            assert type(error) is StopIteration
        else:
            assert isinstance(error, asyncpool.errors.JobRaisedError)
            assert type(error.exception) is StopIteration

    @pytest.mark.parametrize("chunksize", [1, 2])
    def test_buffersize(self, make: Make, chunksize: int) -> None:
        """Map() has it with every Python, not from 3.14 on."""
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

    def test_set_start_method(self, make: Make, tmp_path: Path) -> None:
        """Mp_context=None means a forkserver of ours, whatever is set."""
        source = """
            if __name__ == "__main__":
                multiprocessing.set_start_method("spawn")
                with make(1) as executor:
                    # A worker that is forked has the command line of who has forked it.
                    line = f"/proc/{executor.submit(os.getpid).result()}/cmdline"
                    text = pathlib.Path(line).read_text()
                    print("multiprocessing.spawn" in text, "asyncpool._worker" in text)
            """
        out = run_either(tmp_path, make, source)
        assert out == ("True False\n" if make is process_pool else "False True\n")

    @pytest.mark.parametrize("kind", ["connection", "socket"])
    def test_descriptors(self, make: Make, tmp_path: Path, kind: str) -> None:
        """Calls have no sockets and connections of this process; initializers do."""
        source = """
            if __name__ == "__main__":
                if sys.argv[1] == "connection":
                    one, other = multiprocessing.Pipe()
                else:
                    one, other = socket.socketpair()
                send = {"connection": "send_bytes", "socket": "send"}[sys.argv[1]]
                with make(1, multiprocessing.get_context("fork")) as executor:
                    send = executor.submit(operator.methodcaller(send, b"hello"), one)
                    print(type(send.exception()).__name__)
                one.close()
                other.close()
            """
        out = run_either(tmp_path, make, source, kind)
        sent = make is process_pool
        assert out == ("NoneType\n" if sent else "JobNotPicklableError\n")

    def test_callbacks(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run in the thread of the loop that submitted, as a rule."""
        # A loop that is late would have them called in the executor's thread.
        deliver_in_loops_only(monkeypatch)

        async def main() -> bool:
            heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

            def tell(_: object) -> None:
                here = threading.current_thread() is threading.main_thread()
                heard.get_loop().call_soon_threadsafe(heard.set_result, here)

            with WaitingRoom() as room:
                future = executor.submit(jobs.wait_at, room.path)
                future.add_done_callback(tell)
                room.admit()
                room.release()
                return await heard

        with make(1) as executor:
            assert asyncio.run(main()) == (make is not process_pool)

    def test_threads(self, make: Make, room: WaitingRoom) -> None:
        """That a call leaves behind end with its worker; nobody waits for them."""
        executor = make(1)
        executor.submit(jobs.wait_behind, room.path, "left").result()
        room.admit()
        ending = threading.Thread(target=executor.shutdown)
        ending.start()
        if make is process_pool:
            room.release()
        ending.join(PATIENCE)
        assert not ending.is_alive()

    def test_ctrl_c(self, make: Make, room: WaitingRoom, tmp_path: Path) -> None:
        """Does not reach workers, and calls that were handed ahead still run."""
        source = """
            from tests.helpers import jobs

            if __name__ == "__main__":
                with make(1, multiprocessing.get_context("spawn")) as executor:
                    first = executor.submit(jobs.wait_at, sys.argv[1])
                    second = executor.submit(pow, 2, 3)
                    try:
                        first.result()
                    except KeyboardInterrupt:
                        print("interrupted", flush=True)
                print(repr(first.exception()), second.exception() or second.result())
            """
        process = start_either(tmp_path, make, source, room.path)
        worker = room.admit()
        # A terminal sends it to the whole process group at once.  If the worker of the
        # standard library's executor is the faster one, the caller gets the job's interrupt
        # first, and its own one behind it, outside of the try.
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupted\n"
        if os.getpgid(worker) == process.pid:
            os.kill(worker, signal.SIGINT)
        room.release()
        out, err = finish(process)
        assert out == (
            "KeyboardInterrupt() 8\n" if make is process_pool else "None 8\n"
        )
        assert process.returncode == 0
        assert make is process_pool or not err

    def test_forked(self, tmp_path: Path) -> None:
        """Submit() in a fork of the executor's process is an error, not a hang."""
        source = """
            import asyncpool, os, warnings

            warnings.simplefilter("ignore", DeprecationWarning)  # of forks, from 3.12 on
            executor = asyncpool.ProcessPoolExecutor(1)
            executor.submit(int).result()
            pid = os.fork()
            if pid == 0:
                try:
                    executor.submit(int)
                except RuntimeError as error:
                    print(str(error).replace(str(os.getppid()), "PARENT"))
                executor.shutdown()
                with asyncpool.ProcessPoolExecutor(1) as other:
                    print(other.submit(pow, 2, 3).result(), flush=True)
            else:
                print(os.waitpid(pid, 0)[1], executor.submit(pow, 3, 2).result())
            """
        text = "this executor belongs to process PARENT, which has forked this one"
        assert run_script(tmp_path, source).splitlines() == [
            f"{text}: make another one here",
            "8",
            "0 9",
        ]
