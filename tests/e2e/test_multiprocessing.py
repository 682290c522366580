"""What ``multiprocessing`` makes works in workers, and they look like its own."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
import operator
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any, Literal

import pytest

from asyncpool import Pool, ProcessPoolExecutor, to_process
from asyncpool.errors import JobNotPicklableError, WorkerCrashedError
from tests.helpers import sharing
from tests.helpers.executors import FORKS
from tests.helpers.gate import Gate
from tests.helpers.guards import open_fds
from tests.helpers.inside import resident_pool
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import case
from tests.helpers.scripts import finish, start_script
from tests.helpers.sharing import KINDS

Launcher = Literal["forkserver", "spawn"]
Run = Callable[..., Awaitable[Any]]

pytestmark = [BOTH_LOOPS, pytest.mark.usefixtures("resource_tracked")]

CONTEXTS = ["fork", "forkserver", "spawn"]
LAUNCHERS: list[Launcher] = ["forkserver", "spawn"]


@asynccontextmanager
async def of_pool(initargs: tuple[Any, ...], **options: Any) -> AsyncIterator[Run]:
    pool = Pool(1, initializer=sharing.keep, initargs=initargs, **options)
    del initargs
    async with pool:
        yield pool.submit


@asynccontextmanager
async def of_executor(initargs: tuple[Any, ...], method: str) -> AsyncIterator[Run]:
    context = multiprocessing.get_context(method)
    executor = ProcessPoolExecutor(1, context, sharing.keep, initargs)
    del initargs
    yield lambda *call: asyncio.wrap_future(executor.submit(*call))
    await asyncio.to_thread(executor.shutdown)


FACES: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "Pool": of_pool,
    "Pool, spawn": lambda args: of_pool(args, launcher="spawn"),
    "Pool, two at once": lambda args: of_pool(args, concurrency=2),
    "Executor": lambda args: of_executor(args, "fork"),
    "Executor, spawn": lambda args: of_executor(args, "spawn"),
}


class TestInitargs:
    """Objects that can only be passed on to a process that is being started."""

    @pytest.mark.parametrize(
        ("face", "method"),
        [
            ("Pool", "fork"),
            ("Pool", "forkserver"),
            ("Pool", "spawn"),
            ("Pool, spawn", "fork"),
            ("Pool, two at once", "forkserver"),
            ("Executor", "spawn"),
            ("Executor, spawn", "fork"),
        ],
    )
    async def test_all_workers_have_what_nobody_else_has(
        self, face: str, method: str
    ) -> None:
        """One that is killed with locks in its hands is replaced like any other."""
        context = multiprocessing.get_context(method)
        things = {name: kind.make(context) for name, kind in KINDS.items()}
        async with patience(), FACES[face]((things,)) as run:
            ends = things["socket"]  # which want to be closed
            del things
            gc.collect()
            first = await run(sharing.begin)
            with pytest.raises(WorkerCrashedError):
                await run(signal.raise_signal, signal.SIGKILL)
            assert await run(sharing.go_on) == dict.fromkeys(KINDS, True)
            assert await run(os.getpid) != first
        for end in ends:
            end.close()

    @pytest.mark.parametrize("method", CONTEXTS)
    async def test_values_cross_both_ways_and_a_lock_excludes_all_others(
        self, method: str
    ) -> None:
        context = multiprocessing.get_context(method)
        lock, there, back = context.Lock(), context.Queue(), context.SimpleQueue()
        things = ({"Lock": lock, "Queue": there, "SimpleQueue": back},)
        async with (
            patience(),
            Gate() as gate,
            Pool(2, initializer=sharing.keep, initargs=things) as pool,
            Pool(1, initializer=sharing.keep, initargs=things) as other,
        ):
            for item in ("hello", bytes(1 << 17)):
                there.put(item)
                job = pool.submit(sharing.answer)
                assert await asyncio.to_thread(back.get) == [item]
                await job
            assert await pool.submit(sharing.is_free)
            held = pool.submit(sharing.hold, gate.path)
            visitor = await gate.visitor()
            assert not lock.acquire(block=False)
            assert not await pool.submit(sharing.is_free)
            assert not await other.submit(sharing.is_free)
            visitor.release()
            await held
            assert await asyncio.to_thread(lock.acquire, timeout=PATIENCE)
            assert not await other.submit(sharing.is_free)
            lock.release()
            assert await pool.submit(sharing.is_free)
        there.close()
        there.join_thread()
        back.close()

    @pytest.mark.parametrize("begins", [True, False])
    async def test_a_pool_that_has_ended_has_let_go(self, *, begins: bool) -> None:
        before = open_fds()
        pipe = multiprocessing.Pipe()
        with pipe[0], pipe[1]:
            pool = Pool(1, initializer=sharing.keep, initargs=({"Pipe": pipe},))
            assert len(open_fds()) == len(before) + 4
            if begins:
                async with patience(), pool:
                    await pool.submit(int)
                assert pool.stats().state == "closed"
            del pool
            gc.collect()
            assert len(open_fds()) == len(before) + 2
        # What goes by value is pickled in a second try: what the first one took is not sent.
        one, other = multiprocessing.Pipe()
        with one, other:
            pool = Pool(1, initializer=operator.is_, initargs=(one, lambda: 1))
            assert len(open_fds()) == len(before) + 3
            del pool
            gc.collect()
        left = {fd: what for fd, what in open_fds().items() if before.get(fd) != what}
        assert not left

    @FORKS
    async def test_what_is_shared_with_a_fork_is_refused(self) -> None:
        """To move its semaphore would part the two, and nobody would be told."""
        event = multiprocessing.get_context("fork").Event()
        wait_in, wait_out = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(wait_out)
            os.read(wait_in, 1)
            os._exit(0)
        with pytest.raises(JobNotPicklableError) as caught:
            Pool(initializer=sharing.keep, initargs=(1, event))
        os.close(wait_out)
        os.close(wait_in)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert str(caught.value) == (
            "initargs[1] cannot be pickled: RuntimeError: a lock or semaphore of the "
            f"context 'fork' is shared with process {child} by a fork, and cannot be "
            "shared with workers as well: make the object that has it with "
            "multiprocessing.get_context('forkserver') - at `initargs[1]._cond`"
        )
        assert caught.value.name == "initargs[1]"

    async def test_a_job_cannot_have_it_and_is_told_who_can(self) -> None:
        async with patience(), Pool(1) as pool:
            for name in ("Queue", "Lock", "Value", "RawArray", "Pipe"):
                thing = KINDS[name].make(multiprocessing)
                with case(name), pytest.raises(JobNotPicklableError) as caught:
                    await pool.submit(print, thing)
                assert str(caught.value).startswith("args[0] cannot be pickled: ")
                assert str(caught.value).endswith(
                    "; workers can have it from their start on, in the pool's initargs"
                )
                if name == "Pipe":
                    for end in thing:
                        end.close()


@pytest.fixture(scope="module")
def manager() -> Iterator[SyncManager]:
    with multiprocessing.get_context("spawn").Manager() as manager:
        yield manager


class TestManagers:
    """Proxies, which connect to a manager with the key of the service."""

    @pytest.mark.parametrize("launcher", LAUNCHERS)
    async def test_a_job_has_a_proxy_and_returns_it(
        self, manager: SyncManager, launcher: Launcher
    ) -> None:
        queue = manager.Queue()
        async with patience(), Pool(1, launcher=launcher) as pool:
            again = await pool.submit(sharing.put, [queue], 3)
            assert await asyncio.to_thread(again.get, timeout=PATIENCE) == 3
            large = bytes(1 << 21)
            await pool.submit(sharing.put, nested=[again], item=large)
            assert await asyncio.to_thread(queue.get, timeout=PATIENCE) == large
            assert await pool.map(sharing.put, [[queue]], [4], chunksize=1)
            assert queue.get() == 4
            # The manager forgets an object with its last proxy, so the job keeps that.
            for make in (manager.Event, manager.dict, manager.Lock):
                assert await pool.submit(str, make())
            job = pool.submit(sharing.put, [manager.Queue()], 3)
            assert (await job).get() == 3

    async def test_initargs_are_proxies(self, manager: SyncManager) -> None:
        queue = manager.Queue()
        for face in FACES.values():
            queue.put("hello")
            async with patience(), face((queue,)) as run:
                assert await run(sharing.take) == "hello"

    async def test_calls_without_a_pool(self, manager: SyncManager) -> None:
        queue = manager.Queue()
        with ProcessPoolExecutor(1) as executor:
            executor.submit(sharing.put, [queue], 5).result(PATIENCE)
        async with patience():
            await to_process.run_sync(sharing.put, [queue], 6)
        assert (queue.get(), queue.get()) == (5, 6)
        await resident_pool().close()


class TestIdentity:
    """Who a worker is to those in it who ask."""

    @pytest.mark.parametrize("launcher", LAUNCHERS)
    async def test_a_worker_is_a_child_of_the_service(
        self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["service", "--verbose"])
        async with patience(), Pool(1, launcher=launcher, name="images") as pool:
            assert await pool.submit(sharing.identity) == {
                "name": "images-worker-0",
                "daemon": False,
                "parent": (os.getpid(), "MainProcess", True),
                "argv": ["service", "--verbose"],
                "start method": multiprocessing.get_start_method(allow_none=True),
                "key": bytes(multiprocessing.current_process().authkey),
                "child": ("ForkProcess-1:1", 0),
            }

    async def test_also_with_a_launcher_that_has_it_imported(self) -> None:
        async with patience(), Pool(2, preload=["multiprocessing"]) as pool:
            names = await pool.broadcast(sharing.identity)
        found = {slot: who["name"] for slot, who in names.items()}
        assert found == {slot: f"{pool.name}-worker-{slot}" for slot in (0, 1)}

    @pytest.mark.parametrize(("ours", "theirs"), [("spawn", "spawn"), ("odd", None)])
    async def test_the_start_method_is_that_of_the_service(
        self, ours: str, theirs: str | None
    ) -> None:
        """That of a library stays there, such as that of loky's workers."""

        class Odd(multiprocessing.context.SpawnContext):
            _name = "odd"

        known: dict[str, Any] = vars(multiprocessing.context)["_concrete_contexts"]
        known["odd"] = Odd()
        multiprocessing.set_start_method(ours, force=True)
        try:
            async with patience(), Pool(1) as pool:
                who = await pool.submit(sharing.identity)
        finally:
            del known["odd"]
            multiprocessing.set_start_method(None, force=True)
        assert who["start method"] == theirs


SHARES_IN_A_COPY = """
import os, sys
assert "multiprocessing.resource_tracker" not in sys.modules
if (child := os.fork()) == 0:
    from multiprocessing.shared_memory import SharedMemory
    SharedMemory(create=True, size=10).unlink()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


async def test_a_copy_of_a_worker_asks_nobody_for_a_tracker() -> None:
    async with patience(), Pool(1) as pool:
        await pool.submit(exec, SHARES_IN_A_COPY)


SHARES = """
    import asyncio, os, sys
    from multiprocessing.shared_memory import SharedMemory
    from pathlib import Path

    import asyncpool

    kept = []


    def make(ends):
        kept.append(SharedMemory(create=True, size=4096))
        if ends == "with its worker":
            Path("name").write_text(kept[-1].name)
            os.kill(os.getpid(), 9)
        if ends == "unlinked":
            kept[-1].unlink()
        return kept[-1].name


    def read(name):
        kept.append(SharedMemory(name))
        return bytes(kept[-1].buf[:5])


    async def main():
        async with asyncpool.Pool(1, launcher=sys.argv[1]) as pool:
            # It has made one, and sleeps until this loop lends it the tracker.
            worker = Path(f"/proc/{pool.stats().slots[0].pid}")
            job = pool.submit(make, "cancelled")
            await asyncio.sleep(0)
            while "/dev/shm/psm_" not in Path(worker, "maps").read_text():
                pass
            while ") S " not in Path(worker, "stat").read_text():
                pass
            job.cancel()
            await asyncio.wait([job])
            await pool.submit(make, "unlinked")
            for ends in "by itself", "with its worker":
                try:
                    print(await pool.submit(make, ends))
                except asyncpool.errors.WorkerCrashedError:
                    print(Path("name").read_text())
            mine, theirs = SharedMemory(create=True, size=5), await pool.submit(make, "")
            mine.buf[:] = b"hello"
            print(await pool.submit(read, mine.name))
            await pool.roll()  # those who had read it and made the other one are gone
            print(await pool.submit(read, mine.name))
        mine.unlink()
        SharedMemory(theirs).unlink()


    if __name__ == "__main__":
        asyncio.run(main())
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
async def test_shared_memory_that_jobs_leave_goes_with_the_program_and_no_sooner(
    launcher: Launcher, tmp_path: Path
) -> None:
    # By default it is an error, which the tracker keeps to itself.
    warn = ("-W", "default", "script.py")
    process = start_script(tmp_path, SHARES, launcher, command=warn)
    out, err = await asyncio.to_thread(finish, process)
    *names, first, again = out.splitlines()
    assert (len(names), first, again) == (2, "b'hello'", "b'hello'")
    assert process.returncode == 0
    assert [name for name in names if Path("/dev/shm", name).exists()] == []
    assert "There appear to be 3 leaked shared_memory objects" in err


def fork_by_c() -> int:
    """Fork as a C library does; the copy returns as well."""
    pid = int(ctypes.CDLL(None).fork())
    if pid:
        os.waitpid(pid, 0)
    return pid


async def test_a_copy_that_c_code_has_made_answers_nobody() -> None:
    async with patience(), Pool(1) as pool:
        for _ in range(2):
            assert await pool.submit(fork_by_c) > 0
        assert pool.stats().crashes == 0
