"""A pool is not alone in its process: other pools, threads, children, watchers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from asyncpool import Crash, Pool
from tests.helpers import faults, jobs
from tests.helpers.faults import by_name
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS, loop_factories
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


async def test_a_pool_in_another_threads_loop() -> None:
    """Once the thread has ended, nothing of its pool is left either."""
    factory = loop_factories()[
        "uvloop"
        if "uvloop" in type(asyncio.get_running_loop()).__module__
        else "asyncio"
    ]
    results: list[int] = []

    async def use_pool() -> None:
        async with patience(), Pool(2) as pool:
            await crash_of(pool.submit(faults.commit, "SIGKILL"), KILL)
            await assert_serves(pool)
            results.append(await pool.submit(jobs.square, 12))

    def body() -> None:
        with asyncio.Runner(loop_factory=factory, debug=True) as runner:
            runner.run(use_pool())

    thread = threading.Thread(target=body)
    thread.start()
    async with patience(), Pool(1) as pool:
        assert await pool.submit(jobs.square, 3) == 9
    thread.join(PATIENCE)
    assert results == [144]


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

    loggers = [logging.getLogger(name) for name in ("asyncpool", "asyncpool.worker")]
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
    assert set(asked) == {"asyncpool", "asyncpool.worker"}


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


@pytest.mark.parametrize("number", [signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE])
async def test_signal_handlers_of_the_process_are_not_touched(
    number: signal.Signals,
) -> None:
    def handler(*_: object) -> None:
        pass

    before = signal.signal(number, handler)
    try:
        async with patience(), Pool(2) as pool:
            await crash_of(pool.submit(faults.commit, "SIGKILL"), KILL)
            await assert_serves(pool)
            assert signal.getsignal(number) is handler
            # What is ignored or handled here is the default in workers.
            assert await pool.submit(handler_of, number) in {"SIG_DFL", "SIG_IGN"}
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


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


async def test_the_launcher_keeps_no_descriptor_of_the_dead() -> None:
    async with patience(), Pool(2) as pool:
        launcher = _parent_of(await pool.submit(jobs.pid))
        at_most = len(os.listdir(f"/proc/{launcher}/fd"))
        for _ in range(10):
            await crash_of(pool.submit(faults.commit, "SIGKILL"), KILL)
        await assert_serves(pool)
        # It may be just forking.
        while len(os.listdir(f"/proc/{launcher}/fd")) > at_most:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_the_pool_itself_keeps_no_descriptor_of_the_dead() -> None:
    async with patience(), Pool(2, ready="all") as pool:
        await assert_serves(pool)
        at_most = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            for _ in range(5):
                await crash_of(pool.submit(faults.commit, "exit 0"), by_name("exit 0"))
            await assert_serves(pool)
            # The ends of their streams may be just being read.
            while len(os.listdir("/proc/self/fd")) > at_most:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_a_callback_that_stalls_the_loop_breaks_nothing() -> None:
    def stall(_: object) -> None:
        subprocess.run([sys.executable, "-c", "pass"], check=True)

    callbacks: list[Callable[[object], None]] = [stall]
    async with patience(), Pool(2, on_crash=stall) as pool:
        for callback in callbacks:
            job = pool.submit(jobs.square, 2)
            job.add_done_callback(callback)
            assert await job == 4
        await crash_of(pool.submit(faults.commit, "SIGKILL"), KILL)
        await assert_serves(pool)


async def test_a_jobs_callback_that_raises_is_the_loops_to_report() -> None:
    reports: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    async with patience(), Pool(1) as pool:
        job = pool.submit(jobs.square, 2)
        job.add_done_callback(lambda job: 1 // (job.result() - 4))
        assert await job == 4
        await assert_serves(pool)
    loop.set_exception_handler(before)
    assert [type(report["exception"]) for report in reports] == [ZeroDivisionError]
