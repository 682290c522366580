"""What arguments a pool takes, and what this machine allows: CPUs, and whether a pool can run at all."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import math
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from asyncpool._core import checks, log_messages as say
from asyncpool._core.options import MAX_WORKERS, WorkerLimits
from asyncpool._engine.interpreter import program
from asyncpool._engine.life_log import LOGGER
from asyncpool._wire.posix import read
from asyncpool.errors import UnsupportedPlatformError

# System calls that exist but are refused, as in sandboxes; the pool does without them.
#
# A filter of system calls (seccomp, gVisor) answers with ``EPERM`` or ``ENOSYS``.  So the pool
# learns only from the call itself whether it is allowed.

_REFUSED = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})

_told: set[str] = set()


def tell_refusal(call: str, error: OSError, instead: str) -> None:
    """Log that *call* is refused, and what the pool does instead; once for each call.

    Raises:
        OSError: *error*, unless it says that the system call itself is not allowed here.
    """
    if error.errno not in _REFUSED:
        raise error
    if call not in _told:
        _told.add(call)
        say.CALL_REFUSED.log(LOGGER, {"call": call}, why=error, instead=instead)


# What arguments there may be.


def not_picklable(owner: object) -> TypeError:
    """Return the error for a pool, or something like one, that a job was given."""
    return TypeError(
        f"cannot pickle a {type(owner).__name__}, which stays in its process: leave it out of "
        "what the job gets, also out of the object whose method is called"
    )


def least_and_most(workers: int | tuple[int, int]) -> tuple[int, int]:
    """Return the least and the greatest number of workers.

    Raises:
        TypeError: If *workers* is neither an int nor two of them.
        ValueError: If they leave a pool without workers, or are more than :data:`MAX_WORKERS`, or
            are in the wrong order.
    """
    pair: Any = workers if isinstance(workers, tuple) else (workers, workers)
    if len(pair) != 2 or isinstance(pair[0], list):  # noqa: PLR2004
        raise TypeError(
            f"workers must be an int, or a pair such as (2, 16), not {workers!r}"
        )
    for number in pair:
        checks.at_least(1)("workers", number)
        if number > MAX_WORKERS:
            raise ValueError(f"workers must be at most {MAX_WORKERS}, not {number}")
    least, most = pair
    if least > most:
        raise ValueError(f"workers must be the least and the most, not {workers!r}")
    return least, most


# On macOS a fork without exec breaks the system's frameworks: jobs that use Accelerate, as NumPy
# does, or that look for a proxy, crash or hang.
DEFAULT_LAUNCHER: Literal["forkserver", "spawn"] = (
    "spawn" if sys.platform == "darwin" else "forkserver"
)

_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60

# Which field of /proc/PID/stat is the exit status, counted from the state.
_EXIT_CODE = 52 - 3


# How many descriptors a pool leaves for other things, such as starting workers.
_SPARE_DESCRIPTORS = 64


def is_scarce(fd: int) -> bool:
    """Return whether descriptors are scarce here, given that *fd* is the newest."""
    try:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:  # a sandbox refuses to tell the limit
        return False
    # A new descriptor gets the lowest free number, so its number shows how many are open.
    return limit != resource.RLIM_INFINITY and fd >= limit - _SPARE_DESCRIPTORS


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one, here and for child processes."""
    # macOS reports no hard limit, and refuses too high a soft one.
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_platform() -> None:
    """Check that this platform has what a pool needs.

    Raises:
        UnsupportedPlatformError: If something is missing; the text says what.
    """
    if os.name != "posix":
        missing = "a POSIX system, such as Linux or macOS"
    elif not (hasattr(socket, "AF_UNIX") and hasattr(socket, "SCM_RIGHTS")):
        missing = "Unix sockets that pass descriptors"
    elif not program()[0]:
        missing = (
            "the path of a Python interpreter: sys.executable is empty, so name one by "
            "multiprocessing.set_executable()"
        )
    else:
        return
    raise UnsupportedPlatformError(f"asyncpool needs {missing}")


def check_loop_kind(name: str, value: str) -> str:
    """Return an argument that is a kind of event loop which workers can have.

    Raises:
        ValueError: If there is no such kind, or it is not installed.
    """
    checks.one_of(("asyncio", "uvloop"))(name, value)
    if value == "uvloop" and importlib.util.find_spec("uvloop") is None:
        raise ValueError(
            "uvloop is not installed: pip install 'asyncpool-supervised[uvloop]'"
        )
    return value


def module_path() -> tuple[str, ...]:
    """Return ``sys.path`` without entries that the import system would ignore."""
    entries: list[object] = [*sys.path]
    return tuple(entry for entry in entries if isinstance(entry, str))


def working_folder() -> str:
    """Return the path of this process's folder; empty if somebody has removed it.

    It is ``$PWD`` if that leads there, as after ``cd current`` where that is a symbolic link.  A
    deployment has the link lead to its next release, and later workers are to be in that one.
    """
    shown = os.environ.get("PWD", "")
    if shown.startswith("/") and folder_at(shown) == folder_at("."):
        return shown
    try:
        return os.getcwd()  # noqa: PTH109 - a string is what sys.path holds
    except OSError:
        return ""


def folder_at(path: str) -> tuple[int, int] | None:
    """Return which folder a path leads to now; ``None`` for none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - asked at each start of a worker
    except OSError:
        return None
    return found.st_dev, found.st_ino


def inherited() -> tuple[object, ...]:
    """Return all that a child process inherits from this one, and its own children too.

    With the umask, and the signals that it ignores, as far as Linux tells: ``os.umask()`` cannot
    ask without setting another umask for a moment, in which another thread may create a file.
    """
    status = _read(Path("/proc/self/status")).splitlines()
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return (
        tuple(os.environ.items()),
        (os.getuid(), os.geteuid(), os.getgid(), os.getegid(), *os.getgroups()),
        tuple(line for line in status if line.startswith(("Umask:", "SigIgn:"))),
        _unless_refused(os.getpriority, os.PRIO_PROCESS, 0),
        frozenset(usable_cores()),
        *(_unless_refused(resource.getrlimit, getattr(resource, it)) for it in limits),
    )


def _unless_refused(ask: Callable[..., object], *about: int) -> object:
    """Return an answer, or nothing if a sandbox refuses it; then all pools have the same."""
    try:
        return ask(*about)
    except OSError:
        return None


def is_stopped(pid: int) -> bool:
    """Return whether SIGSTOP or a debugger has stopped a process, as far as Linux tells."""
    return _stat(pid)[:1] in (["T"], ["t"])


def status_of_zombie(pid: int) -> int | None:
    """Return the exit status of a process that has ended and whose parent has not yet asked for it.

    A negative status means that a signal with that number has ended the process.

    Returns:
        ``None`` if there is no such process, or if Linux does not tell.  It says 0 of processes
        of other users, so that says nothing.
    """
    stat = _stat(pid)
    if stat[:1] != ["Z"] or len(stat) <= _EXIT_CODE:
        return None
    return os.waitstatus_to_exitcode(int(stat[_EXIT_CODE])) or None


def _stat(pid: int) -> list[str]:
    """Return what Linux tells of a process, from its state on; see ``proc_pid_stat(5)``."""
    # The state comes after the process's name, which may contain anything.
    _, _, rest = _read(Path(f"/proc/{pid}/stat")).rpartition(") ")
    return rest.split()


def usable_cpus() -> int:
    """Return how many CPUs this process may use, by affinity and by cgroup quota."""
    cpus = len(usable_cores()) or os.cpu_count() or 1
    for file in _cgroup_files("cpu", "cpu.max", "cpu.cfs_quota_us"):
        # Version 2 has both in one file.
        beside = _read(file.with_name("cpu.cfs_period_us"))
        # No quota is "max", and -1 in version 1.
        with contextlib.suppress(ValueError, ZeroDivisionError):
            quota, period = map(int, f"{_read(file)} {beside}".split())
            cpus = min(cpus, math.ceil(quota / period)) if quota > 0 else cpus
    return max(1, cpus)


def usable_cores() -> set[int]:
    """Return the numbers of the CPUs that this process may use; an empty set if unknown."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return set()


def _cgroup_files(controller: str, second: str, first: str) -> Iterator[Path]:
    """Yield a file of each of this process's cgroups, and after it of those that contain it.

    Args:
        controller: Which cgroups.
        second: The name of the file in a cgroup of version 2.
        first: Its name in one of version 1.
    """
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, name = _CGROUPS, second
        elif controller in controllers.split(","):
            base, name = _CGROUPS / controller, first
        else:
            continue
        # In a container the path is often that of the host, and not visible here.
        place = base / path.lstrip("/")
        for folder in (place, *place.parents):
            if not folder.is_relative_to(base):
                break
            yield folder / name


class OomKills:
    """How many processes the kernel has killed since memory ran out.

    The count is that of this process's cgroup, if the cgroup counts, else that of the
    machine.  If it has risen while a worker died of a SIGKILL that the pool has not sent,
    that worker was probably one of them.  To find the file with the count takes 0.3 ms, so
    that is done only once and not at every crash.
    """

    def __init__(self) -> None:
        files = _cgroup_files("memory", "memory.events", "memory.oom_control")
        files = chain(files, [Path("/proc/vmstat")])
        self._file = next((file for file in files if oom_kills(file) >= 0), None)

    def count(self) -> int | None:
        """Return the count, or ``None`` if nobody counts."""
        return None if self._file is None else max(oom_kills(self._file), 0)


def oom_kills(file: Path) -> int:
    """Return how many processes a file says were killed since memory ran out; -1 if it says nothing."""
    _, name, rest = f"\n{_read(file)}".partition("\noom_kill ")
    return int(rest.partition("\n")[0]) if name else -1


def memory_limit() -> int | None:
    """Return the smallest memory limit of this process's cgroups in bytes, if there is one."""
    files = _cgroup_files("memory", "memory.max", "memory.limit_in_bytes")
    limits = [int(text) for text in map(_read, files) if text.strip().isdecimal()]
    # No limit is "max" in version 2, and in version 1 a number of bytes that no machine has.
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def cpu_time(pid: int) -> float:
    """Return how many seconds of CPU time a process has used; 0 if it is gone.

    With those of its children that it has waited for.
    """
    # User, system, and both of the children.
    ticks = sum(int(field) for field in _stat(pid)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def check_limits(name: str, value: Any) -> WorkerLimits:
    """Return an argument that is the limits of workers, which this machine can set.

    Raises:
        TypeError: If it is something else.
        UnsupportedPlatformError: If this platform does not offer a limit.
        ValueError: If this machine does not have what a limit names.
    """
    limits = WorkerLimits() if value is None else value
    checks.Argument((WorkerLimits,), "a WorkerLimits")(name, limits)
    watched = limits.max_memory is not None or limits.kill_memory is not None
    if watched and not Path("/proc/self/statm").exists():
        raise UnsupportedPlatformError("max_memory and kill_memory need Linux's /proc")
    if limits.cpu_affinity is not None:
        if not hasattr(os, "sched_setaffinity"):
            raise UnsupportedPlatformError("cpu_affinity needs Linux")
        if not (usable := usable_cores()):
            text = "cpu_affinity: sched_getaffinity is refused here"
            raise UnsupportedPlatformError(text)
        if unusable := set(limits.cpu_affinity) - usable:
            raise ValueError(f"cpu_affinity: this process may not use {unusable}")
    for limit in limits.rlimits:
        if not hasattr(resource, limit):
            raise ValueError(f"rlimits: there is no {limit} here")
    return limits


def _read(path: Path) -> str:
    return read(str(path)).decode(errors="replace")  # a process's name may be any bytes
