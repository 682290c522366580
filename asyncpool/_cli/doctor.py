"""``asyncpool doctor``: what this platform offers to pools, and what a sandbox refuses.

System calls that sandboxes refuse although the kernel has them are tried, one by one.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from asyncpool import __version__
from asyncpool._cli import CURE, find_namesake
from asyncpool._cli.parameters import Exit
from asyncpool._engine.machine import (
    DEFAULT_LAUNCHER,
    check_platform,
    memory_limit,
    usable_cpus,
)
from asyncpool._wire.memory import create
from asyncpool.errors import UnsupportedPlatformError

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


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


def _adopt_orphans() -> None:
    before = ctypes.c_int()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) or prctl(
        _PR_SET_CHILD_SUBREAPER, before, 0, 0, 0
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _signal_oneself() -> None:
    fd = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(fd, 0)
    finally:
        os.close(fd)


# What pools use where they can: its name, the system calls that it needs, each with an attempt,
# what pools use it for, and what they do without it.
_TRIALS: tuple[tuple[str, dict[str, Callable[[], object]], str, str], ...] = (
    (
        "pidfd",
        {
            "pidfd_open": lambda: os.close(os.pidfd_open(os.getpid())),
            "pidfd_send_signal": _signal_oneself,
        },
        "no signal can hit a process that has inherited a number",
        "workers are known and signalled by their numbers",
    ),
    (
        "shared memory",
        {"memfd_create": lambda: os.close(create(4096))},
        "large arrays are not copied twice, in memfd segments",
        "large arrays are sent through sockets, some ten times slower",
    ),
    (
        "what jobs leave behind",
        {
            "/proc, which lists processes": lambda: os.stat("/proc/self/stat"),  # noqa: PTH116
            "prctl": _adopt_orphans,
        },
        "detached processes are found, and end with the pool",
        "processes that jobs detach outlive the pool",
    ),
    (
        "limits and niceness",
        {
            "sched_getaffinity": lambda: os.sched_getaffinity(0),
            "getpriority": lambda: os.getpriority(os.PRIO_PROCESS, 0),
            "prlimit64": lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
        },
        "pools whose workers inherit the same share a launcher",
        "they are taken for the same, and all cores for usable",
    ),
)


def examine() -> Iterator[Finding]:
    """Check the platform, without starting a process."""
    yield Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Finding("system", "ok", f"{platform.system()} {platform.release()}")
    if (other := find_namesake()) is None:
        yield Finding("asyncpool-supervised", "ok", __version__)
    else:
        yield Finding(
            "asyncpool-supervised",
            "bad",
            f"{__version__}; another project's package, asyncpool {other}, is installed in "
            f"the same folder, and each breaks the other: {CURE}",
        )
    try:
        check_platform()
        yield Finding("pools", "ok", "everything that they cannot do without is here")
    except UnsupportedPlatformError as error:
        yield Finding("pools", "bad", str(error))
    cpus = f"{usable_cpus()} usable of {os.cpu_count() or 1} (affinity, cgroup)"
    yield Finding("CPUs", "ok", cpus)
    limit = memory_limit()
    text = "none is set" if limit is None else f"{limit / (1 << 20):,.0f} MB"
    yield Finding("memory limit of the cgroup", "ok", text)
    for name, calls, gain, loss in _TRIALS:
        finding = Finding(name, "ok", gain)
        for call, attempt in calls.items():
            try:
                attempt()
            except (AttributeError, FileNotFoundError):
                trouble = f"this system has no {call}"
            except OSError as error:
                trouble = (
                    f"{call} is refused ({error.strerror}): allow it in the sandbox, such as "
                    "the container's seccomp profile"
                )
            else:
                continue
            finding = Finding(name, "note", f"{trouble}; without it, {loss}")
            break
        yield finding
    methods = " and ".join(
        f"{one} (the default)" if one == DEFAULT_LAUNCHER else one
        for one in ("forkserver", "spawn")
    )
    for name, here, gain, loss in (
        (
            "/proc",
            Path("/proc/self/statm").exists(),
            "max_memory, kill_memory and out-of-memory kills can be told",
            "max_memory and kill_memory need Linux",
        ),
        ("start methods", True, methods, ""),
        (
            "uvloop",
            importlib.util.find_spec("uvloop") is not None,
            "installed; asyncpool works on it and on asyncio's loop",
            "not installed; asyncio's loop does (asyncpool-supervised[uvloop])",
        ),
        (
            "msgspec",
            importlib.util.find_spec("msgspec") is not None,
            "installed, for Pool(codec='msgspec')",
            "not installed; Pool(codec='json') needs nothing (asyncpool-supervised[msgspec])",
        ),
    ):
        yield Finding(name, "ok" if here else "note", gain if here else loss)
    yield Finding("SQLite", "ok", f"{sqlite3.sqlite_version}, for journals")
    free = shutil.disk_usage(Path.cwd()).free
    yield Finding("free disk space here", "ok", f"{free / (1 << 30):,.1f} GB")


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
