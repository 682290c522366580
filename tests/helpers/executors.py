"""Both executors, the standard library's and ours, for tests of what they have in common."""

from __future__ import annotations

import concurrent.futures as cf
import multiprocessing
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import _base
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pytest

import asyncpool
from asyncpool import executor as _results
from tests.helpers import jobs
from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import finish, start_script
from tests.helpers.waiting_room import WaitingRoom

Make: TypeAlias = Callable[..., cf.Executor]

# Its way to fork is what Python 3.12 warns of.
FORKS = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def process_pool(*args: Any, **kwargs: Any) -> cf.Executor:
    kwargs.setdefault("mp_context", multiprocessing.get_context("fork"))
    return cf.ProcessPoolExecutor(*args, **kwargs)


BOTH = {"standard": process_pool, "asyncpool": asyncpool.ProcessPoolExecutor}


@pytest.fixture(scope="module", params=BOTH.values(), ids=list(BOTH))
def standard_or_ours(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.fixture
def make(standard_or_ours: Make) -> Iterator[Make]:
    threads = set(threading.enumerate())
    children = set(multiprocessing.active_children())
    yield standard_or_ours
    # The standard library's waits for nobody if it was told so once: neither for its
    # processes nor for the thread that closes its pipes.
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENCE)
    for child in set(multiprocessing.active_children()) - children:
        child.join(PATIENCE)


@pytest.fixture(scope="module")
def one_executor(standard_or_ours: Make) -> Iterator[tuple[cf.Executor, set[int]]]:
    with standard_or_ours(2) as executor:
        yield executor, all_of(executor)


@pytest.fixture
def executor(one_executor: tuple[cf.Executor, set[int]]) -> Iterator[cf.Executor]:
    """Lend the executor of the module, of two workers; the test leaves it whole and idle."""
    executor, pids = one_executor
    yield executor
    assert all_of(executor) == pids, "the test changed the workers"


def all_of(executor: cf.Executor) -> set[int]:
    """Return the pids of both workers, once they are idle."""
    with WaitingRoom() as room:
        running = [executor.submit(jobs.wait_at, room.path) for _ in range(2)]
        pids = {room.admit() for _ in running}
        room.release()
        cf.wait(running)
    return pids


@pytest.fixture
def own_executor(make: Make) -> Iterator[cf.Executor]:
    with make(2) as executor:
        yield executor


@pytest.fixture
def room() -> Iterator[WaitingRoom]:
    with WaitingRoom() as room:
        yield room


class Clock:
    """What those see who count the time of many results; the calls go by another one."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_results, "time", clock)
    monkeypatch.setattr(_base, "time", clock)
    return clock


def fill(executor: cf.Executor, room: WaitingRoom, workers: int = 2) -> list[Any]:
    """Have every worker run a call that waits."""
    running = [executor.submit(jobs.wait_at, room.path) for _ in range(workers)]
    for _ in running:
        room.admit()
    return running


def pending_behind(executor: cf.Executor, count: int = 1) -> list[cf.Future[int]]:
    """Submit calls of which the last *count* are surely not handed over yet."""
    # Two workers have 128 short ones each, at most.
    futures = [executor.submit(jobs.square, n) for n in range(300 + count)]
    return futures[-count:]


_IMPORTS = "multiprocessing, operator, os, pathlib, socket, sys, warnings"


def start_either(
    folder: Path, make: Make, source: str, *args: str
) -> subprocess.Popen[str]:
    """Start a program in which ``make`` is one of the two executors."""
    module, _, name = (
        "concurrent.futures ProcessPoolExecutor"
        if make is process_pool
        else "asyncpool ProcessPoolExecutor"
    ).partition(" ")
    # The way of their "fork" is what Python 3.12 warns of.
    text = f"""
        import {_IMPORTS}
        from {module} import {name} as make

        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        """
    text = textwrap.dedent(text) + textwrap.dedent(source)
    return start_script(folder, text, *args)


def run_either(folder: Path, make: Make, source: str, *args: str) -> str:
    """Run it to its good end, and return what it printed."""
    process = start_either(folder, make, source, *args)
    out, err = finish(process)
    assert process.returncode == 0
    assert make is process_pool or not err  # theirs leaves a socket to the collector
    return out


def wait_gone(pid: int) -> None:
    """Wait for the end of a process."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(PATIENCE)
