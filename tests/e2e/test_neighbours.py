"""A pool is not alone in its process: other pools, threads, children, watchers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

from asyncpool import Crash, Pool
from tests.helpers import faults, jobs
from tests.helpers.faults import by_name
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import assert_serves, crash_of, idle

pytestmark = BOTH_LOOPS


async def test_pools_side_by_side_do_not_know_of_each_other() -> None:
    async with patience(), Gate() as gate, Pool(2) as quiet:
        async with Pool(2) as noisy, Pool(1, launcher="spawn") as third:
            held = quiet.submit(jobs.wait_at, gate.path)
            visitor = await gate.visitor()
            for pool in (noisy, third):
                await crash_of(pool.submit(faults.commit, "SIGKILL"), KILL)
            await assert_serves(noisy)
            await assert_serves(third)
        visitor.release()
        assert await held == "go"
        assert quiet.stats().crashes == 0
        await assert_serves(quiet)


KILL = by_name("SIGKILL")


async def test_signals_that_the_service_blocks_are_not_blocked_in_workers() -> None:
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}
    )
    try:
        async with patience(), Pool(2) as pool:
            assert await pool.submit(blocked_signals) == set()
            await crash_of(pool.submit(faults.commit, "SIGKILL"), KILL)
            await assert_serves(pool)
            assert await pool.submit(blocked_signals) == set()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def blocked_signals() -> set[int]:
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


async def test_a_logging_filter_that_raises_harms_nobody() -> None:
    asked: list[str] = []

    def refuse(record: logging.LogRecord) -> bool:
        asked.append(record.name)
        raise ValueError("no logging today")

    loggers = [
        logging.getLogger(name) for name in ("asyncpool.pool", "asyncpool.worker")
    ]
    for logger in loggers:
        logger.addFilter(refuse)
    try:
        async with patience(), Pool(2) as pool:
            await pool.submit(jobs.say, "out\n", "err\n")
            await crash_of(pool.submit(faults.commit, "SIGKILL"), KILL)
            await assert_serves(pool)
    finally:
        for logger in loggers:
            logger.removeFilter(refuse)
    assert set(asked) == {"asyncpool.pool", "asyncpool.worker"}


async def test_more_workers_than_the_launcher_is_asked_for_at_once() -> None:
    async with patience(), Pool(40) as pool:
        stats = await idle(pool)
        assert len({slot.pid for slot in stats.slots}) == 40
        await assert_serves(pool)


async def test_other_children_are_left_alone() -> None:
    async with patience():
        async with Pool(2) as pool:
            await idle(pool)
            code = "import sys; sys.exit(int(input()))"
            own = [
                await asyncio.create_subprocess_exec(
                    sys.executable, "-c", code, stdin=asyncio.subprocess.PIPE
                )
                for _ in range(3)
            ]
            await crash_of(pool.submit(faults.commit, "SIGKILL"), KILL)
            for status, process in enumerate(own):
                assert process.returncode is None
                await process.communicate(f"{status + 5}\n".encode())
            assert [process.returncode for process in own] == [5, 6, 7]
            await assert_serves(pool)
            last = await asyncio.create_subprocess_exec(
                sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
            )
        assert last.returncode is None
        await last.communicate(b"\n")


async def test_another_library_may_reap_every_child() -> None:
    """As some do: a loop around ``waitpid(-1)`` steals what it can get."""
    crashes: list[Crash] = []
    async with patience():
        async with Pool(2, on_crash=crashes.append) as pool:
            await crash_of(pool.submit(faults.commit, "exit 3"), by_name("exit 3"))
            _reap_all()
            await assert_serves(pool)
            # The launcher's process itself is stolen, too.
            launcher = _parent_of(await pool.submit(jobs.pid))
            os.kill(launcher, signal.SIGKILL)
            _reap(launcher)
            await crash_of(pool.submit(faults.commit, "exit 3"), UNKNOWN)
            await assert_serves(pool)
            launcher = _parent_of(await pool.submit(jobs.pid))
            thief = threading.Thread(target=_reap_if_it_is_there, args=(launcher,))
            thief.start()
        thief.join(PATIENCE)
    assert len(crashes) == 2


UNKNOWN = faults.Fault("unknown", lambda: None)


def _reap_all() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


def _reap(pid: int) -> None:
    os.waitpid(pid, 0)


def _reap_if_it_is_there(pid: int) -> None:
    with suppress(ChildProcessError):  # the pool may be faster
        os.waitpid(pid, 0)


def _parent_of(pid: int) -> int:
    listing = subprocess.run(
        ["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, check=True
    )
    return int(listing.stdout)


async def test_signal_handlers_of_the_process_are_not_touched() -> None:
    def handler(*_: object) -> None:
        pass

    numbers = signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE
    before = [signal.signal(number, handler) for number in numbers]
    try:
        async with patience(), Pool(2) as pool:
            await crash_of(pool.submit(faults.commit, "SIGKILL"), KILL)
            await assert_serves(pool)
            for number in numbers:
                assert signal.getsignal(number) is handler
                # What is ignored or handled here is the default in workers.
                found = await pool.submit(handler_of, number)
                assert found in {"SIG_DFL", "SIG_IGN"}
        assert [signal.getsignal(number) for number in numbers] == [handler] * 3
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)


def handler_of(number: int) -> str:
    handler = signal.getsignal(number)
    return handler.name if isinstance(handler, signal.Handlers) else repr(handler)


async def test_a_worker_holds_nothing_of_its_siblings_and_its_parent() -> None:
    secret, other = os.pipe()
    os.set_inheritable(secret, True)
    try:
        async with patience(), Pool(3) as pool:
            await idle(pool)
            held = [pool.submit(jobs.stray_descriptors) for _ in range(3)]
            for found in await asyncio.gather(*held):
                sockets = [name for name in found if name.startswith("socket:")]
                pipes = {name for name in found if name.startswith("pipe:")}
                # Two channels, and stdout and stderr.
                assert len(sockets) == 2
                assert len(pipes) == 2
    finally:
        os.close(secret)
        os.close(other)


async def test_no_descriptor_of_the_dead_is_kept() -> None:
    async with patience(), Pool(2, ready="all") as pool:
        await assert_serves(pool)
        launcher = _parent_of(await pool.submit(jobs.pid))
        folders = [f"/proc/{pid}/fd" for pid in (launcher, os.getpid())]
        at_most = [len(os.listdir(folder)) for folder in folders]
        for _ in range(10):
            await crash_of(pool.submit(faults.commit, "exit 0"), by_name("exit 0"))
        await assert_serves(pool)
        for folder, count in zip(folders, at_most, strict=True):
            # The launcher may be just forking, and the ends of streams just being read.
            while len(os.listdir(folder)) > count:  # noqa: ASYNC110
                await asyncio.sleep(0)
