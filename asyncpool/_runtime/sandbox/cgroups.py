"""Limits of cgroups (version 2), where the service may make cgroups for its workers.

It may do so below its own cgroup, or beside it, if an administrator or systemd has delegated that to
its user.  The kernel allows limits only below a cgroup that has no processes itself; so a service
usually sits in a cgroup of its own below the delegated one (systemd: ``DelegateSubgroup=``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_WANTED = ("memory", "pids", "cpu")
_PERIOD = 100_000  # microseconds

# systemd marks what it has delegated, and so root knows what is its own.
_MARKS = ("trusted.delegate", "user.delegate")


class WorkerCgroup:
    """The cgroup of one worker.

    Args:
        folder: Its folder, which this makes.

    Raises:
        OSError: If the kernel refuses it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def limit(self, limits: dict[str, int | float]) -> None:
        """Set its limits; see :func:`limit_texts`.

        Raises:
            OSError: If the kernel refuses one.
        """
        for name, text in limit_texts(limits).items():
            (self.folder / name).write_text(text)

    def lacked_memory(self) -> bool:
        """Return whether the kernel has killed one of its processes for lack of memory."""
        try:
            events = (self.folder / "memory.events").read_text()
        except OSError:
            return False
        counts = dict(line.split() for line in events.splitlines())
        return counts.get("oom_kill", "0") != "0"

    def remove(self) -> bool:
        """Kill what is left in it, and remove it; return whether it is gone.

        The kernel keeps it until the last of its processes has ended.
        """
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        return not self.folder.exists()


def limit_texts(limits: dict[str, int | float]) -> dict[str, str]:
    """Return what is written to which file for limits, by controller.

    ``memory`` is in bytes, ``pids`` a number of threads, and ``cpu`` a number of CPUs.
    """
    texts: dict[str, str] = {}
    if "memory" in limits:
        texts["memory.max"] = f"{limits['memory']}"
        texts["memory.oom.group"] = "1"
    if "pids" in limits:
        texts["pids.max"] = f"{limits['pids']}"
    if "cpu" in limits:
        texts["cpu.max"] = f"{max(1000, round(limits['cpu'] * _PERIOD))} {_PERIOD}"
    return texts


def delegated_limits() -> tuple[str, ...]:
    """Return the limits that the workers of this process can have by a cgroup."""
    folder = delegated_folder()
    return () if folder is None else _offered(folder)


def delegated_folder(own: Path | None = None) -> Path | None:
    """Return the folder below which this process may make cgroups; ``None`` if there is none.

    Args:
        own: The folder of the service's cgroup; by default that of this process.
    """
    folder = _own_folder() if own is None else own
    if folder is None:
        return None
    return next((each for each in (folder, folder.parent) if _is_delegated(each)), None)


def _own_folder() -> Path | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                found = (root / line[3:].lstrip("/") for root in _ROOTS)
                return next((f for f in found if (f / "cgroup.procs").exists()), None)
    return None


def _is_delegated(folder: Path) -> bool:
    if not _offered(folder) or not os.access(folder, os.W_OK):
        return False
    return os.geteuid() != 0 or any(_marks(folder))


def _marks(folder: Path) -> Iterator[bool]:
    for name in _MARKS:
        with contextlib.suppress(OSError):
            yield os.getxattr(folder, name) == b"1"


def _offered(folder: Path) -> tuple[str, ...]:
    """Return the controllers that cgroups below *folder* have."""
    try:
        names = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return ()
    return tuple(name for name in _WANTED if name in names)
