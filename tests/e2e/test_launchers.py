"""Both ways to start workers, what they find imported, and a launcher that dies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

import asyncpool
from asyncpool import Crash, Pool, RestartPolicy
from asyncpool.errors import PoolBrokenError, WorkerCrashedError
from tests.helpers import faults, jobs
from tests.helpers.faults import Fault, by_name
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    crash_of,
    end_of,
    idle,
    launcher_of,
    started,
    until,
)

pytestmark = BOTH_LOOPS

HASTY = RestartPolicy(initial_delay=0.01, max_failed_starts=3)
PATIENT = RestartPolicy(initial_delay=0.01, max_delay=0.05, max_failed_starts=None)

Launcher = Literal["forkserver", "spawn"]
both_launchers = pytest.mark.parametrize("launcher", ["forkserver", "spawn"])


@both_launchers
async def test_workers_start_light(launcher: Launcher) -> None:
    async with patience(), Pool(1, launcher=launcher, preload=["colorsys"]) as pool:
        # Not with a function of these tests, whose module imports more than that.
        names = await pool.submit(eval, "' '.join(__import__('sys').modules)")
        found = set(names.split())
    heavy = {"asyncio", "logging", "anyio", "psutil", "cloudpickle", "multiprocessing"}
    heavy |= {"typing", "dataclasses", "inspect"}
    if importlib.util.find_spec("setproctitle") is not None:  # it imports logging
        heavy.remove("logging")
    if sys.version_info[:2] == (3, 14):  # traceback imports these there
        heavy -= {"typing", "dataclasses", "inspect"}
    assert not found & heavy
    assert not {name for name in found if name.startswith("asyncpool._engine")}
    assert "colorsys" in found, "it is preloaded"


@both_launchers
async def test_workers_run_the_same_asyncpool_as_the_service(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "asyncpool"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('another asyncpool')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    where = "__import__('asyncpool').__file__"
    async with patience(), Pool(1, launcher=launcher) as pool:
        assert await pool.submit(eval, where) == asyncpool.__file__


IMPORTED = "assert 'ap_threads' in __import__('sys').modules"
THREADED = """
import threading
stop = threading.Event()
threading.Thread(target=stop.wait, name='gremlin', daemon=True).start()
"""


# Joined, they may be in the kernel for a moment longer.
JOINED = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as executor:
    list(executor.map(str, range(100)))
"""
END_AT_A_FORK = """
import _thread, os
waits, ended = _thread.allocate_lock(), _thread.allocate_lock()
waits.acquire(), ended.acquire()
def run():
    waits.acquire()
    ended.release()
_thread.start_new_thread(run, ())
there = [1]
def end():
    if there:
        there.clear()
        waits.release()
        ended.acquire()
os.register_at_fork(before=end)
"""


@pytest.mark.parametrize(
    "source", [JOINED, END_AT_A_FORK, "import numpy"], ids=["joined", "fork", "numpy"]
)
async def test_a_module_may_have_threads_that_have_ended(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The OpenBLAS of numpy has some, and ends them at each fork."""
    (tmp_path / "ap_tidy.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    async with patience(), Pool(1, preload=["ap_tidy"]) as pool:
        await assert_serves(pool)
        assert "ap_tidy" in await pool.submit(jobs.modules)


async def test_a_spawned_worker_may_have_threads_of_what_it_preloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ap_threads.py").write_text(THREADED)
    monkeypatch.syspath_prepend(tmp_path)
    names = "[thread.name for thread in __import__('threading').enumerate()]"
    async with patience():
        # The initializer, too, finds it imported.
        options: dict[str, Any] = {"initializer": exec, "initargs": [IMPORTED]}
        async with Pool(1, launcher="spawn", preload=["ap_threads"], **options) as pool:
            assert "gremlin" in await pool.submit(eval, names)
            launcher = psutil.Process(await launcher_of(pool))
            assert launcher.num_threads() == 1


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (None, "No module named 'ap_missing'"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
@both_launchers
async def test_a_module_that_cannot_be_preloaded_is_named(
    launcher: Launcher,
    source: str | None,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if source is not None:
        (tmp_path / "ap_missing.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    preload = ["json", "ap_missing"]
    pool = Pool(1, launcher=launcher, preload=preload, restart_policy=HASTY)
    async with patience():
        with pytest.raises(PoolBrokenError) as caught:
            await pool.start()
    named = {
        "forkserver": "'ap_missing' cannot be preloaded",
        "spawn": "preload of ap_missing failed",
    }
    assert named[launcher] in str(caught.value)
    assert text in str(caught.value)
    for crash in caught.value.crashes:
        assert crash.kind == "failed start"
        assert crash.stack.startswith("Traceback (most recent call last):\n")
        assert text in crash.stack.splitlines()[-1]


async def test_an_import_that_takes_too_long_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ap_slow.py").write_text("import time\ntime.sleep(600)")
    monkeypatch.syspath_prepend(tmp_path)
    once = RestartPolicy(max_failed_starts=1)
    pool = Pool(1, preload=["ap_slow"], start_timeout=2, restart_policy=once)
    async with patience():
        with pytest.raises(PoolBrokenError, match="did not import within") as caught:
            await pool.start()
    assert 'ap_slow.py", line 2 in <module>' in caught.value.crashes[0].stack


@pytest.mark.logs("launcher-lost")
@both_launchers
async def test_running_workers_outlive_a_launcher_that_is_killed(
    launcher: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    crashes: list[Crash] = []
    pool = Pool(2, launcher=launcher, on_crash=crashes.append, ready="all")
    async with patience(), Gate() as gate, pool:
        first = await launcher_of(pool)
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        os.kill(first, signal.SIGKILL)
        # Idle ones go on as well.
        assert await pool.submit(jobs.square, 3) == 9
        # The next start needs a new launcher, and gets one.
        culprit = pool.submit(faults.commit, "SIGKILL")
        await crash_of(culprit, Fault("unknown", lambda: None))
        await idle(pool)
        assert not held.done()
        second = await launcher_of(pool)
        assert second not in {first, 1}
        visitor.release()
        assert await held == "go"
        # One that has lost its parent is still replaced when it dies.
        os.kill(visitor.pid, signal.SIGKILL)
        await until(pool, lambda stats: stats.crashes == 2)
        await assert_serves(pool)
    assert len(crashes) == 2
    lost = [vars(it) for it in caplog.records if "is lost" in it.getMessage()]
    told = [(data["pid"], data["reason"]) for data in lost]
    assert told == [(first, "signal SIGKILL ended it")]


async def test_what_a_worker_without_a_launcher_has_started_is_killed_too() -> None:
    async with patience(), Gate() as gate, Pool(2, on_cancel="kill") as pool:
        job = pool.submit(
            jobs.start_program_and_wait, gate.path, "program", new_session=False
        )
        program = await gate.visitor("program")
        os.kill(await launcher_of(pool), signal.SIGKILL)
        job.cancel()
        await program.gone()
        await assert_serves(pool)


async def test_a_launcher_that_is_killed_while_the_pool_closes() -> None:
    async with patience(), Gate() as gate:
        pool = await started(2)
        launcher = await launcher_of(pool)
        held = pool.submit(jobs.sleep, gate.path, "")
        visitor = await gate.visitor()
        os.kill(launcher, signal.SIGKILL)
        summary = await pool.close(timeout=0.1)
        await visitor.gone()
        await asyncio.gather(held, return_exceptions=True)
    assert (summary.failed, summary.killed) in {(1, 1), (1, 2)}


async def test_a_launcher_that_hangs_is_replaced() -> None:
    crashes: list[Crash] = []
    options: dict[str, Any] = {"start_timeout": 0.5, "restart_policy": PATIENT}
    async with patience(), Pool(1, on_crash=crashes.append, **options) as pool:
        first = await launcher_of(pool)
        os.kill(first, signal.SIGSTOP)
        pid = await pool.submit(jobs.pid)
        os.kill(pid, signal.SIGKILL)
        await until(pool, lambda stats: stats.crashes >= 1)
        await assert_serves(pool)
        assert await launcher_of(pool) != first
    # The pool has seen for itself what ended the worker.
    assert (crashes[0].pid, crashes[0].signal) == (pid, "SIGKILL")


async def test_a_launcher_that_hangs_is_replaced_for_the_last_jobs_too() -> None:
    async with patience():
        pool = await started(1, start_timeout=0.5, restart_policy=PATIENT)
        os.kill(await launcher_of(pool), signal.SIGSTOP)
        with pytest.raises(WorkerCrashedError):
            await pool.submit(jobs.perhaps_die, 1, how="kill")
        job = pool.submit(jobs.square, 3)
        summary = await pool.close(timeout=3600)
        assert await job == 9
    assert (summary.finished, summary.failed) == (1, 0)


# A process that may open no more.


@contextlib.contextmanager
def descriptors_left(spare: int) -> Iterator[None]:
    """Let this process open *spare* more descriptors, and no more."""
    held: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(spare):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)


# A dead worker leaves 5 behind, and the next one needs 9 to be started: it fails
# at another step each time.
@pytest.mark.parametrize("spare", [0, 1, 2, 3])
async def test_without_descriptors_a_start_fails_and_is_tried_again(spare: int) -> None:
    crashes: list[Crash] = []
    pool = Pool(2, restart_policy=PATIENT, on_crash=crashes.append, ready="all")
    async with patience(), Gate() as gate, pool:
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        pid = await pool.submit(jobs.pid)
        with descriptors_left(spare):
            os.kill(pid, signal.SIGKILL)
            await until(pool, lambda stats: stats.crashes >= 3)
        visitor.release()
        assert await held == "go"
        await assert_serves(pool)
    first, *failed = crashes
    assert first.signal == "SIGKILL"
    assert {crash.kind for crash in failed} == {"failed start"}
    assert all("Too many open files" in crash.detail for crash in failed)
    assert {crash.pid for crash in failed} == {None}


async def test_a_worker_without_a_pidfd_is_a_worker_too() -> None:
    async with patience(), Pool(1, restart_policy=PATIENT) as pool:
        with descriptors_left(4):
            os.kill(await pool.submit(jobs.pid), signal.SIGKILL)
            await until(pool, lambda stats: stats.spawned == 2)
            await assert_serves(pool)
        await crash_of(pool.submit(faults.commit, "exit 3"), by_name("exit 3"))
        job = pool.submit(time.sleep, 3600)
        job.cancel()
        await assert_serves(pool)


async def test_without_descriptors_a_pool_does_not_start() -> None:
    for spare in range(3):
        async with patience():
            refused = pytest.raises(PoolBrokenError, match="Too many open files")
            with descriptors_left(spare), refused:
                await Pool(2, restart_policy=HASTY).start()
            async with Pool(2) as pool:
                await assert_serves(pool)


async def test_a_launcher_that_may_open_no_more_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ap_greedy.py").write_text(
        "import os, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "fds = [0]\n"
        "while fds[-1] < 63:\n"
        "    fds.append(os.open(os.devnull, os.O_RDONLY))\n"
        "os.close(fds[-1])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    crashes: list[Crash] = []
    async with patience():
        pool = Pool(
            2, restart_policy=HASTY, on_crash=crashes.append, preload=["ap_greedy"]
        )
        with pytest.raises(PoolBrokenError, match="may open no more descriptors"):
            await pool.start()
    assert {crash.kind for crash in crashes} == {"failed start"}


# A forked worker begins as a fresh interpreter does, whatever its launcher has done.
async def test_a_forked_worker_has_what_a_spawned_one_has() -> None:
    forking = Pool(1, launcher="forkserver")
    async with patience(), forking, Pool(1, launcher="spawn") as spawning:
        forked = await forking.submit(jobs.surroundings)
        spawned = await spawning.submit(jobs.surroundings)
        # No collection copies what a forked worker shares with its launcher.
        assert await forking.submit(gc.get_freeze_count) > 0
    for found in (forked, spawned):
        del found["modules"]  # a fork has the launcher's, too
    assert forked == spawned
    # What an interpreter inherits as ignored stays so: both could have it wrong.
    handlers: Any = forked["handlers"]
    assert handlers["SIGINT"] == repr(signal.default_int_handler).split(" at ")[0]
    assert handlers["SIGTERM"] == repr(signal.SIG_DFL)
    assert handlers["SIGCHLD"] == repr(signal.SIG_DFL)
    assert handlers["SIGHUP"] == repr(signal.SIG_DFL)
    assert forked["argv"] == sys.argv


async def test_two_forked_workers_have_dice_of_their_own() -> None:
    preload = ["random", "secrets", "tests.helpers.jobs"]
    rolls = ["__import__('secrets').token_hex()"]
    if importlib.util.find_spec("numpy") is not None:
        preload.append("numpy.random")
        rolls.append("__import__('numpy').random.random()")
    two = Pool(1, preload=preload)
    async with patience(), Pool(1, preload=preload) as one, two:
        assert await launcher_of(one) == await launcher_of(two)
        assert await one.submit(jobs.dice) != await two.submit(jobs.dice)
        for roll in rolls:
            assert await one.submit(eval, roll) != await two.submit(eval, roll)


# A launcher that is ended by a module that it preloads: at the import, or while it forks.
# Python calls the module before, in the middle, and behind it.
# Whoever forks next takes the order.  What the new process does to its parent, that one
# waits for.
DEADLY = """
import os, signal

taken = False

def before():
    global taken
    try:
        os.unlink({order!r})
    except FileNotFoundError:
        return
    taken = True
    if {moment!r} == "before":
        os.kill(os.getpid(), signal.SIGKILL)

def in_parent():
    if taken and {moment!r} == "in the parent":
        os.kill(os.getpid(), signal.SIGKILL)
    while taken:
        signal.pause()

def in_child():
    global taken
    if taken:
        taken = False
        os.kill(os.getppid(), signal.SIGKILL)

os.register_at_fork(
    before=before, after_in_parent=in_parent, after_in_child=in_child
)
"""


@pytest.fixture(params=["before", "in the child", "in the parent"])
def order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """Return the file that is the order to kill the launcher at its next fork."""
    order = tmp_path / "order"
    source = DEADLY.format(order=str(order), moment=request.param)
    (tmp_path / "ap_deadly.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return order


async def test_a_start_that_fails_is_made_up_for(order: Path) -> None:
    crashes: list[Crash] = []
    pool = Pool(1, preload=["ap_deadly"], on_crash=crashes.append)
    async with patience(), Gate() as gate, pool:
        first = await launcher_of(pool)
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        order.touch()
        await pool.resize(2)
        await idle(pool)
        await end_of(first)
        assert not order.exists()
        # Who runs goes on, and the others are of another launcher.
        visitor.release()
        assert await held == "go"
        await assert_serves(pool)
        stats = pool.stats()
        assert visitor.pid in {slot.pid for slot in stats.slots}
    [crash] = crashes
    assert (crash.kind, crash.pid, crash.job_id) == ("failed start", None, None)
    assert crash.detail == "the launcher's process ended"
    assert crash.next_step_text.startswith("the start failed, next try in 0.0")
    assert (stats.crashes, stats.restarts, stats.spawned) == (1, 1, 2)


@pytest.mark.parametrize(
    ("source", "how", "signal_name", "exit_code"),
    [
        ("string_at(0)", "signal SIGSEGV ended it", "SIGSEGV", None),
        ("os.abort()", "signal SIGABRT ended it", "SIGABRT", None),
        ("os._exit(7)", "it ended with exit status 7", None, 7),
    ],
)
async def test_a_preload_that_ends_the_launcher_is_named(
    source: str,
    how: str,
    signal_name: str | None,
    exit_code: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "ap_fatal.py").write_text(f"import os\nfrom ctypes import *\n{source}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PoolBrokenError) as caught:
        async with patience(), Pool(1, preload=["json", "ap_fatal"]):
            pass
    [crash] = caught.value.crashes
    assert str(crash) == (
        "a worker in slot 0 could not be started: "
        f"the launcher died while it imported ap_fatal: {how}"
    )
    assert (crash.signal, crash.exit_code) == (signal_name, exit_code)
    assert crash.final
    lines = crash.stack.splitlines()
    assert [line.partition(":")[0] for line in lines[:1]] == (
        [] if exit_code else ["Fatal Python error"]
    )
    assert any("ap_fatal.py" in line for line in lines) is (not exit_code)


async def test_a_preload_that_the_kernel_kills_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = (
        "import os, signal\n"
        f"mark = {str(tmp_path / 'mark')!r}\n"
        "if not os.path.exists(mark):\n"
        "    open(mark, 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "ap_killed.py").write_text(once)
    monkeypatch.syspath_prepend(tmp_path)
    crashes: list[Crash] = []
    pool = Pool(1, preload=["ap_killed"], on_crash=crashes.append)
    async with patience(), pool:
        await assert_serves(pool)
    [crash] = crashes
    assert crash.detail == (
        "the launcher died while it imported ap_killed: signal SIGKILL ended it"
    )
    assert (crash.signal, crash.final) == ("SIGKILL", False)
