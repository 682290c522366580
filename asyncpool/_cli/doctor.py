"""``asyncpool doctor``: what this platform offers to pools, and what a sandbox refuses.

System calls that sandboxes refuse although the kernel has them are tried, one by one.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import platform
import resource
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from asyncpool import __version__
from asyncpool._cli.namesake import CURE, find_namesake
from asyncpool._cli.parameters import Exit
from asyncpool._engine.machine import (
    DEFAULT_LAUNCHER,
    check_platform,
    memory_limit,
    usable_cpus,
)
from asyncpool._wire.memory import available, create
from asyncpool.errors import UnsupportedPlatformError

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


class UnavailableError(Exception):
    """The text says why, and what to allow."""


class Trial(NamedTuple):
    """Something that pools use where they can.

    Attributes:
        name: Its name.
        attempt: Uses it once; raises an :exc:`UnavailableError` if it is not there.
        gain: What pools use it for.
        loss: What pools do without it.
    """

    name: str
    attempt: Callable[[], None]
    gain: str
    loss: str


@contextlib.contextmanager
def _call(name: str) -> Generator[None]:
    try:
        yield
    except AttributeError as error:
        raise UnavailableError(f"this system has no {name}") from error
    except OSError as error:
        raise UnavailableError(
            f"{name} is refused ({error.strerror}): allow it in the sandbox, such as the "
            "container's seccomp profile"
        ) from error


def _hold_a_process() -> None:
    with _call("pidfd_open"):
        fd = os.pidfd_open(os.getpid())
    try:
        with _call("pidfd_send_signal"):
            signal.pidfd_send_signal(fd, 0)
    finally:
        os.close(fd)


def _share_memory() -> None:
    if not available():
        raise UnavailableError("this system has no memfd_create")
    with _call("memfd_create"):
        os.close(create(4096))


def _find_orphans() -> None:
    if not Path(f"/proc/{os.getpid()}/stat").exists():
        raise UnavailableError("there is no /proc, which lists processes")
    before = ctypes.c_int()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    with _call("prctl"):
        if prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) or prctl(
            _PR_SET_CHILD_SUBREAPER, before, 0, 0, 0
        ):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _know_what_is_inherited() -> None:
    with _call("sched_getaffinity"):
        os.sched_getaffinity(0)
    with _call("getpriority"):
        os.getpriority(os.PRIO_PROCESS, 0)
    with _call("prlimit64"):
        resource.getrlimit(resource.RLIMIT_NOFILE)


TRIALS = (
    Trial(
        "pidfd",
        _hold_a_process,
        "no signal can hit a process that has inherited a number",
        "workers are known and signalled by their numbers",
    ),
    Trial(
        "shared memory",
        _share_memory,
        "large arrays are not copied twice, in memfd segments",
        "large arrays are sent through sockets, some ten times slower",
    ),
    Trial(
        "what jobs leave behind",
        _find_orphans,
        "detached processes are found, and end with the pool",
        "processes that jobs detach outlive the pool",
    ),
    Trial(
        "limits and niceness",
        _know_what_is_inherited,
        "pools whose workers inherit the same share a launcher",
        "they are taken for the same, and all cores for usable",
    ),
)


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        name: What was checked.
        state: ``"ok"``, ``"note"`` if pools work without it, ``"bad"`` if they do not.
        detail: What was found, or what is lost.
    """

    name: str
    state: Literal["ok", "note", "bad"]
    detail: str


def examine() -> Iterator[Finding]:
    """Check the platform, without starting a process."""
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


_MARKS = {"ok": ("✓", "green"), "note": ("-", "yellow"), "bad": ("✗", "red")}


@click.command("doctor", short_help="Tell what this platform offers to pools.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor_command(*, as_json: bool) -> None:
    """Tell what this platform offers to pools, and what to allow in a sandbox.

    The exit code is 1 if anything is missing that pools need.
    """
    facts = list(examine())
    bad = any(finding.state == "bad" for finding in facts)
    if as_json:
        told = [finding._asdict() for finding in facts]
        click.echo(json.dumps({"ok": not bad, "platform": told}))
    else:
        table = Table(
            box=None, title="platform", title_justify="left", show_header=False
        )
        table.title_style = "bold"
        for name, state, detail in facts:
            mark, style = _MARKS[state]
            table.add_row(Text(mark, style=style), Text(name), Text(detail))
        Console(highlight=False).print(table)
    sys.exit(Exit.FAILED if bad else Exit.OK)
