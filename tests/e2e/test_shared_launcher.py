"""Pools side by side share a launcher, as long as that makes no difference."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Pool, RestartPolicy
from asyncpool.errors import PoolBrokenError
from tests.helpers import faults, jobs
from tests.helpers.faults import Fault, by_name
from tests.helpers.gate import Gate
from tests.helpers.inside import silent_launcher_hangs_after
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, crash_of, launcher_of, until

pytestmark = BOTH_LOOPS


async def test_pools_share_a_launcher_and_the_last_one_ends_it() -> None:
    async with patience():
        first = Pool(2)
        await first.start()
        launcher = await launcher_of(first)
        async with Pool(2) as second:
            assert await launcher_of(second) == launcher
            await first.close()
            await assert_serves(second)
            await crash_of(second.submit(faults.commit, "SIGKILL"), by_name("SIGKILL"))
            await assert_serves(second)
            assert await launcher_of(second) == launcher
        with pytest.raises(ProcessLookupError):
            os.kill(launcher, 0)
        async with Pool(1) as third:
            assert await launcher_of(third) != launcher


@contextmanager
def surroundings() -> Iterator[None]:
    """Put back what a test changes of this process."""
    umask, handler = os.umask(0o022), signal.getsignal(signal.SIGUSR2)
    os.umask(umask)
    try:
        yield
    finally:
        os.umask(umask)
        signal.signal(signal.SIGUSR2, handler)


async def test_pools_whose_workers_inherit_something_else_do_not_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is changed, and what a worker finds then.
    changes: list[tuple[Callable[[], Any], tuple[Any, ...], object]] = [
        (lambda: os.umask(0o027), (os.umask, 0), 0o027),
        (
            lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
            (signal.getsignal, signal.SIGUSR2),
            signal.SIG_IGN,
        ),
        (
            lambda: monkeypatch.setenv("AP_COLOUR", "green"),
            (os.getenv, "AP_COLOUR"),
            "green",
        ),
        (lambda: monkeypatch.chdir(tmp_path), (os.getcwd,), str(tmp_path)),
    ]
    options: list[dict[str, Any]] = [{"preload": ["colorsys"]}, {"launcher": "spawn"}]
    async with patience(2), Pool(1) as first:
        launcher = await launcher_of(first)
        for others in options:
            async with Pool(1, **others) as second:
                assert await launcher_of(second) != launcher
        # Only Linux tells of the first two.
        for change, call, found in changes[0 if sys.platform == "linux" else 2 :]:
            with surroundings():
                change()
                async with Pool(1) as second:
                    assert await launcher_of(second) != launcher, found
                    assert await second.submit(*call) == found
            monkeypatch.undo()
        async with Pool(1) as last:
            assert await launcher_of(last) == launcher


async def test_a_shared_launcher_that_is_killed_is_replaced_for_all() -> None:
    async with patience(), Pool(1) as first, Pool(1) as second:
        launcher = await launcher_of(first)
        os.kill(launcher, signal.SIGKILL)
        for pool in (first, second):
            # Nobody knows the status of a worker whose launcher was dead before it.
            culprit = pool.submit(faults.commit, "exit 3")
            await crash_of(culprit, Fault("unknown", lambda: None))
            await assert_serves(pool)
        assert await launcher_of(first) == await launcher_of(second) != launcher


async def test_a_pool_that_is_in_a_hurry_does_not_take_the_launcher_of_another() -> (
    None
):
    async with patience(), Pool(1) as other:
        launcher = await launcher_of(other)
        # Another start might be quicker than the timer.
        once = RestartPolicy(max_failed_starts=1)
        with pytest.raises(
            PoolBrokenError, match="did not answer within start_timeout"
        ):
            await Pool(1, start_timeout=1e-9, restart_policy=once).start()
        assert await launcher_of(other) == launcher
        await crash_of(other.submit(faults.commit, "exit 3"), by_name("exit 3"))
        await assert_serves(other)


async def test_a_shared_launcher_that_hangs_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent_launcher_hangs_after(monkeypatch, 1.0)
    patient = RestartPolicy(initial_delay=0.01, max_delay=0.05, max_failed_starts=None)
    async with (
        patience(),
        Pool(1) as other,
        Pool(1, start_timeout=0.5, restart_policy=patient) as pool,
    ):
        launcher = await launcher_of(pool)
        assert await launcher_of(other) == launcher
        pid = await pool.submit(jobs.pid)
        os.kill(launcher, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        await until(pool, lambda stats: stats.crashes >= 1)
        await assert_serves(pool)
        assert await launcher_of(pool) != launcher


async def test_a_pool_that_closes_leaves_nothing_to_the_others() -> None:
    async with patience(), Gate() as gate, Pool(1) as other:
        pool = Pool(2)
        await pool.start()
        assert await launcher_of(pool) == await launcher_of(other)
        job = pool.submit(jobs.daemonize, gate.path, "daemon")
        daemon = await gate.visitor("daemon")
        (await gate.visitor("daemon's worker")).release()
        await job
        await pool.close()
        await daemon.gone()
        with pytest.raises(ProcessLookupError):
            os.kill(daemon.pid, 0)
        await assert_serves(other)
