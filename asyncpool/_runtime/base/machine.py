"""What this machine allows: how many CPUs, and whether a pool can run at all."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import mmap
import os
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._runtime.base.arguments import check_choice
from asyncpool.errors import UnsupportedPlatformError

# On macOS a fork without exec breaks what the system's frameworks need: jobs that use
# Accelerate, by way of NumPy, or look for a proxy crash or hang.
DEFAULT_LAUNCHER: Literal["forkserver", "spawn"] = (
    "spawn" if sys.platform == "darwin" else "forkserver"
)

_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60


# How many descriptors are left for other things, such as to start workers.
_SPARE_DESCRIPTORS = 64


def is_scarce(fd: int) -> bool:
    """Tell whether descriptors are scarce here, where *fd* is the newest."""
    try:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:  # a sandbox refuses to say
        return False
    # Each new one has the lowest number that is free.
    return limit != resource.RLIM_INFINITY and fd >= limit - _SPARE_DESCRIPTORS


def raise_descriptor_limit() -> None:
    """Let this process, and those that it starts, open as many files as it may allow."""
    # macOS says that there is no limit, and has one.
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_platform() -> None:
    """Check that this platform has what a pool needs.

    Raises:
        UnsupportedPlatformError: If it has not; the text says what is missing.
    """
    if os.name != "posix":
        missing = "a POSIX system, such as Linux or macOS"
    elif not (hasattr(socket, "AF_UNIX") and hasattr(socket, "SCM_RIGHTS")):
        missing = "Unix sockets that pass descriptors"
    elif not sys.executable:
        missing = "the path of the Python interpreter in sys.executable"
    else:
        return
    raise UnsupportedPlatformError(f"asyncpool needs {missing}")


def check_loop(kind: str) -> None:
    """Check that workers can have such an event loop.

    Raises:
        ValueError: If there is none of that kind, or it is not installed.
    """
    check_choice("worker_loop", kind, ("asyncio", "uvloop"))
    if kind == "uvloop" and importlib.util.find_spec("uvloop") is None:
        raise ValueError(
            "uvloop is not installed: pip install 'asyncpool-supervised[uvloop]'"
        )


def module_path() -> tuple[str, ...]:
    """Return ``sys.path``, less what the import system would ignore."""
    entries: list[object] = [*sys.path]
    return tuple(entry for entry in entries if isinstance(entry, str))


def umask_and_ignored() -> tuple[str, ...]:
    """Return this process's umask, and which signals it ignores; only Linux says so.

    To ask with ``os.umask()`` means to set another one for a moment, in which another
    thread may make a file.
    """
    lines = _read(Path("/proc/self/status")).splitlines()
    return tuple(line for line in lines if line.startswith(("Umask:", "SigIgn:")))


def is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped, by SIGSTOP or a debugger; only Linux says so."""
    # Behind its name, which may contain anything.
    _, _, rest = _read(Path(f"/proc/{pid}/stat")).rpartition(") ")
    return rest[:1] in {"T", "t"}


def usable_cpus() -> int:
    """Return how many CPUs this process may use, by affinity and by cgroup quota."""
    cpus = len(usable_cores()) or os.cpu_count() or 1
    quota = _quota(_CGROUPS)
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))


def usable_cores() -> set[int]:
    """Return the numbers of those; none if the system does not say, or must not."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return set()


def _quota(root: Path) -> float | None:
    """Return the tightest CPU quota of the cgroups that this process is in."""
    quotas: list[float] = []
    for folder, second in _cgroups(root, "cpu"):
        with contextlib.suppress(ValueError, ZeroDivisionError):
            quotas.append(_quota_v2(folder) if second else _quota_v1(folder))
    return min(quotas, default=None)


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's cgroups, and whether they are of version 2.

    Each is followed by those that it is in.
    """
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base = root
        elif controller in controllers.split(","):
            base = root / controller
        else:
            continue
        # In a container the path is often that of the host, and not visible.
        place = base / path.lstrip("/")
        for folder in (place, *place.parents):
            if not folder.is_relative_to(base):
                break
            yield folder, not controllers


def _quota_v2(folder: Path) -> float:
    quota, period = _read(folder / "cpu.max").split()
    return int(quota) / int(period)  # "max" is no number, hence no quota


def _quota_v1(folder: Path) -> float:
    quota = int(_read(folder / "cpu.cfs_quota_us"))
    if quota <= 0:
        raise ValueError("no quota")
    return quota / int(_read(folder / "cpu.cfs_period_us"))


class OomKills:
    """How many processes the kernel has killed for want of memory.

    Those of this process's cgroup, if it counts them, else of the machine.  That a worker
    was meant is likely when it has just been killed by a SIGKILL that nobody here has sent.
    Which file has that number is found out once: it takes 0.3 ms, and would be asked for at
    every crash.
    """

    def __init__(self) -> None:
        files = [
            folder / ("memory.events" if second else "memory.oom_control")
            for folder, second in _cgroups(_CGROUPS, "memory")
        ]
        counts = (file for file in (*files, Path("/proc/vmstat")) if _count(file) >= 0)
        self._file = next(counts, None)

    def count(self) -> int | None:
        """Return the number, or ``None`` if nobody counts them."""
        return None if self._file is None else max(_count(self._file), 0)


def _count(file: Path) -> int:
    _, name, rest = f"\n{_read(file)}".partition("\noom_kill ")
    return int(rest.partition("\n")[0]) if name else -1


def memory_limit() -> int | None:
    """Return how many bytes the tightest of this process's cgroups allows, if any does."""
    limits: list[int] = []
    for folder, second in _cgroups(_CGROUPS, "memory"):
        file = folder / ("memory.max" if second else "memory.limit_in_bytes")
        with contextlib.suppress(ValueError):  # "max" is no number, hence no limit
            limits.append(int(_read(file)))
    # Version 1 says "none" by a number that no machine has.
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def private_memory(pid: int) -> int:
    """Return how many bytes of memory a process has to itself; 0 if it is gone."""
    fields = _read(Path(f"/proc/{pid}/statm")).split()
    if len(fields) < 3:  # noqa: PLR2004 - its size, what is resident, what is shared
        return 0
    return (int(fields[1]) - int(fields[2])) * mmap.PAGESIZE


def cpu_time(pid: int) -> float:
    """Return how many seconds of CPU time a process has used; 0 if it is gone.

    With those of its children that it has waited for.
    """
    # Behind its name, which may contain anything: user, system, and both of the children.
    _, _, rest = _read(Path(f"/proc/{pid}/stat")).rpartition(") ")
    ticks = sum(int(field) for field in rest.split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def check_limits(limits: WorkerLimits) -> None:
    """Check what depends on this machine.

    Raises:
        UnsupportedPlatformError: If it cannot be had here.
        ValueError: If there is no such thing.
    """
    watched = limits.max_memory is not None or limits.kill_memory is not None
    if watched and not Path("/proc/self/statm").exists():
        raise UnsupportedPlatformError("max_memory and kill_memory need Linux's /proc")
    if limits.cpu_affinity is not None:
        if not hasattr(os, "sched_setaffinity"):
            raise UnsupportedPlatformError("cpu_affinity needs Linux")
        usable = usable_cores()
        if not usable:
            raise UnsupportedPlatformError(
                "cpu_affinity: sched_getaffinity is refused here"
            )
        unusable = set(limits.cpu_affinity) - usable
        if unusable:
            raise ValueError(f"cpu_affinity: this process may not use {unusable}")
    for name in limits.rlimits:
        if not hasattr(resource, name):
            raise ValueError(f"rlimits: there is no {name} here")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")  # a name of a process may be anything
    except OSError:
        return ""
