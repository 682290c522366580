"""What this platform offers to a pool, and a test that it works.

Another project's distribution is called ``asyncpool``; ours is ``asyncpool-supervised``.

Both packages are called ``asyncpool``, and pip installs both into one folder: the second
one overwrites ``asyncpool/__init__.py`` of the first, and whichever of them is uninstalled
takes that file along.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from asyncpool import __version__, heartbeat
from asyncpool._cli.doctor.finding import Finding
from asyncpool._cli.doctor.namesake import CURE, find_namesake
from asyncpool._cli.doctor.system_calls import TRIALS, Trial, UnavailableError
from asyncpool._runtime.base.machine import (
    DEFAULT_LAUNCHER,
    check_platform,
    memory_limit,
    usable_cpus,
)
from asyncpool.errors import (
    JobTimeoutError,
    UnsupportedPlatformError,
    WorkerCrashedError,
)
from asyncpool.pool import Pool

_TEST_WITHIN = 20.0  # s, for each part of the test
_LARGE = 8 << 20  # bytes


def examine() -> list[Finding]:
    """Check the platform, without starting a process."""
    return list(_facts())


def _facts() -> Iterator[Finding]:
    yield Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Finding("system", "ok", f"{platform.system()} {platform.release()}")
    yield _package()
    try:
        check_platform()
        yield Finding("pools", "ok", "everything that they cannot do without is here")
    except UnsupportedPlatformError as error:
        yield Finding("pools", "bad", str(error))
    cpus = os.cpu_count() or 1
    yield Finding("CPUs", "ok", f"{usable_cpus()} usable of {cpus} (affinity, cgroup)")
    limit = memory_limit()
    text = "none is set" if limit is None else f"{limit / (1 << 20):,.0f} MB"
    yield Finding("memory limit of the cgroup", "ok", text)
    yield from map(_try, TRIALS)
    yield _feature(
        "/proc",
        Path("/proc/self/statm").exists(),
        "max_memory, kill_memory and out-of-memory kills can be told",
        "max_memory and kill_memory need Linux",
    )
    methods = ("forkserver", "spawn")
    marked = (
        f"{one} (the default)" if one == DEFAULT_LAUNCHER else one for one in methods
    )
    yield Finding("start methods", "ok", " and ".join(marked))
    yield _feature(
        "uvloop",
        importlib.util.find_spec("uvloop") is not None,
        "installed; asyncpool works on it and on asyncio's loop",
        "not installed; asyncio's loop does (asyncpool-supervised[uvloop])",
    )
    yield _feature(
        "msgspec",
        importlib.util.find_spec("msgspec") is not None,
        "installed, for Pool(codec='msgspec')",
        "not installed; Pool(codec='json') needs nothing (asyncpool-supervised[msgspec])",
    )
    yield Finding("SQLite", "ok", f"{sqlite3.sqlite_version}, for journals")
    free = shutil.disk_usage(Path.cwd()).free
    yield Finding("free disk space here", "ok", f"{free / (1 << 30):,.1f} GB")


def _package() -> Finding:
    other = find_namesake()
    if other is None:
        return Finding("asyncpool-supervised", "ok", __version__)
    return Finding(
        "asyncpool-supervised",
        "bad",
        f"{__version__}; another project's package, asyncpool {other}, is installed in "
        f"the same folder, and each breaks the other: {CURE}",
    )


def _feature(name: str, here: bool, gain: str, loss: str) -> Finding:  # noqa: FBT001
    return Finding(name, "ok" if here else "note", gain if here else loss)


def _try(trial: Trial) -> Finding:
    try:
        trial.attempt()
    except UnavailableError as error:
        return Finding(trial.name, "note", f"{error}; without it, {trial.loss}")
    return Finding(trial.name, "ok", trial.gain)


async def self_test() -> list[Finding]:
    """Test a small pool, and time each part of the test."""
    tests: list[tuple[str, Callable[[Pool], Awaitable[str]]]] = [
        ("a call", _call),
        ("many calls", _many),
        ("a worker that is killed", _kill),
        ("a call that hangs", _hang),
        ("a call that is cancelled", _cancel),
        ("8 MB there and back", _large),
        ("all workers replaced", _roll),
    ]
    findings: list[Finding] = []
    pool = Pool(2, name="doctor")
    started = await _timed("start of 2 workers", lambda: _start(pool))
    findings.append(started)
    if started.state == "ok":
        for name, test in tests:
            findings.append(await _timed(name, lambda test=test: test(pool)))  # type: ignore[misc]
    findings.append(await _timed("end of the pool", lambda: _close(pool)))
    return findings


async def _timed(name: str, test: Callable[[], Awaitable[str]]) -> Finding:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(_TEST_WITHIN):
            said = await test()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return Finding(name, "bad", f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - began
    return Finding(name, "ok", f"{said}{'; ' if said else ''}{seconds * 1000:,.1f} ms")


async def _start(pool: Pool) -> str:
    await pool.start()
    return ""


async def _call(pool: Pool) -> str:
    _expect(await pool.submit(divmod, 17, 5), (3, 2))
    return ""


async def _many(pool: Pool) -> str:
    count = 5000
    began = time.perf_counter()
    jobs = [pool.submit(abs, -n) for n in range(count)]
    _expect(await asyncio.gather(*jobs), list(range(count)))
    return f"{count / (time.perf_counter() - began):,.0f} calls/s"


async def _kill(pool: Pool) -> str:
    try:
        await pool.submit(signal.raise_signal, signal.SIGKILL)
    except WorkerCrashedError as error:
        _expect(error.signal, "SIGKILL")
    else:
        raise AssertionError("nobody heard of it")
    _expect(await pool.submit(abs, -1), 1)
    return "its caller heard of it, the next call was served"


async def _hang(pool: Pool) -> str:
    try:
        await pool.options(timeout=0.1).submit(time.sleep, 60)
    except JobTimeoutError:
        return "ended by its timeout of 100 ms"
    raise AssertionError("its timeout did not end it")


async def _cancel(pool: Pool) -> str:
    job = pool.submit(_begin_and_wait)
    async for _ in job.progress():
        break
    job.cancel()
    await asyncio.wait({job})
    _expect(await pool.submit(abs, -1), 1)
    return ""


def _begin_and_wait() -> None:
    heartbeat("begun")
    time.sleep(60)


async def _large(pool: Pool) -> str:
    sent = bytes(_LARGE)
    _expect(len(await pool.submit(bytes, sent)), _LARGE)
    return ""


async def _roll(pool: Pool) -> str:
    result = await pool.roll()
    _expect((result.ok, result.replaced), (True, 2))
    return ""


async def _close(pool: Pool) -> str:
    summary = await pool.close(timeout=5.0)
    _expect(pool.stats().state, "closed")
    return f"{summary.killed} had to be killed" if summary.killed else ""


def _expect(found: Any, wanted: Any) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")
