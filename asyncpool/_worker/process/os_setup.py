"""What a process sets up with the operating system.

That is: what only Linux offers to parents of processes, and nothing elsewhere; descriptors and
signals of a process that has just been forked; and the limits of a worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpool._core.wire.messages import KernelLimit, Variables


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_PROC = "/proc"


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own parent.

    Not if the system does not list children: then they could only be waited for, not killed.
    """
    if os.path.exists(f"{_PROC}/{os.getpid()}/stat"):  # noqa: PTH110 - no pathlib here
        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the kernel send SIGTERM when the thread that started this process ends.

    The end of the channel says the same, unless somebody has forked the pool's process: then
    the fork keeps the channel open.
    """
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def children() -> set[int]:
    """Return the pids of this process's children, zombies included; none if unknown."""
    pid = os.getpid()
    try:
        with open(f"{_PROC}/{pid}/task/{pid}/children") as listing:  # noqa: PTH123
            return {int(child) for child in listing.read().split()}
    except OSError:  # as in gVisor, and in a kernel without CONFIG_PROC_CHILDREN
        return _whose_parent_is(pid)


def _whose_parent_is(parent: int) -> set[int]:
    try:
        pids = [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return set()
    return {pid for pid in pids if _parent(pid) == parent}


def _parent(pid: int) -> int:
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as stat:  # noqa: PTH123
            # After the process's name, which may contain anything, come its state and its parent.
            return int(stat.read().rpartition(b") ")[2].split()[1])
    except (OSError, IndexError, ValueError):  # the process is gone by now
        return 0


def prctl(option: int, value: int | bytes) -> None:
    """Ask the kernel of Linux for something; without it a precaution is missing, no more."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(Exception):
        import _ctypes  # noqa: PLC0415 - not where there is no prctl

        # Not ctypes itself, which imports more, see _worker/__init__.py.
        program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type] # this one
        function = _ctypes.dlsym(program, "prctl")
        _ctypes.call_cdeclfunction(function, (option, value, 0, 0, 0))


if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal  # the C part of signal, see _worker/__init__.py


def take_stdio(out: int, err: int) -> None:
    """Make *out* and *err* descriptors 1 and 2, and let descriptor 0 read nothing."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in {null, out, err} - {0, 1, 2}:
        os.close(fd)


def reset_signals() -> None:
    """Give a forked process the signal handling of a fresh interpreter."""
    _signal.set_wakeup_fd(-1)
    for number in (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def set_environment(variables: Variables) -> None:
    """Set the environment variables that this process alone has."""
    os.environ.update(variables)
    if "TZ" in dict(variables):
        time.tzset()  # the launcher has read the other one


def apply_bounds(
    nice: int,
    cpus: tuple[int, ...] | None,
    rlimits: Iterable[tuple[str, KernelLimit]],
) -> None:
    """Set the limits of this process; see :class:`asyncpool.WorkerLimits`.

    Raises:
        OSError, ValueError: If the kernel does not allow a limit.
    """
    if nice:
        os.nice(nice)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    for name, limit in rlimits:
        import resource  # noqa: PLC0415 - few workers need it

        kind = getattr(resource, name)
        both = (limit, resource.getrlimit(kind)[1]) if isinstance(limit, int) else limit
        try:
            resource.setrlimit(kind, both)
        except (OSError, ValueError) as error:
            raise type(error)(f"{name} cannot be set to {both}: {error}") from error
