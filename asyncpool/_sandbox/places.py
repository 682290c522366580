"""What each worker in a sandbox has for itself: a private folder, and a cgroup where there may be one.

The service may make cgroups (version 2) below its own, or beside it, if an administrator or systemd
has delegated that to its user.  The kernel allows limits only below a cgroup that has no processes
itself; so a service usually sits in a cgroup of its own below the delegated one (systemd:
``DelegateSubgroup=``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from asyncpool._engine.loop import Threads
from asyncpool._engine.machine import oom_kills

if TYPE_CHECKING:
    from asyncpool._sandbox.confinement import Confinement

_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_WANTED = ("memory", "pids", "cpu")
_PERIOD = 100_000  # microseconds

# systemd marks what it has delegated, and so root knows what is its own.
_MARKS = ("trusted.delegate", "user.delegate")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Workers of all pools of this process have other names.
_numbers = itertools.count(1)


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
        """Set its limits: ``memory`` in bytes, ``pids`` as a number of threads, ``cpu`` as one of CPUs.

        Raises:
            OSError: If the kernel refuses one.
        """
        texts: dict[str, str] = {}
        if "memory" in limits:
            texts = {"memory.max": f"{limits['memory']}", "memory.oom.group": "1"}
        if "pids" in limits:
            texts["pids.max"] = f"{limits['pids']}"
        if "cpu" in limits:
            texts["cpu.max"] = f"{max(1000, round(limits['cpu'] * _PERIOD))} {_PERIOD}"
        for name, text in texts.items():
            (self.folder / name).write_text(text)

    def lacked_memory(self) -> bool:
        """Return whether the kernel has killed one of its processes for lack of memory."""
        return oom_kills(self.folder / "memory.events") > 0

    def remove(self) -> bool:
        """Kill what is left in it, and remove it; return whether it is gone.

        The kernel keeps it until the last of its processes has ended.
        """
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        return not self.folder.exists()


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


def remove_tree(parent: str, name: str) -> None:
    """Remove the folder *name* of *parent*, whatever hostile code has put there.

    :func:`shutil.rmtree` calls itself for each level (before Python 3.13), and a job may make more
    levels than a stack has room for.  Here each folder moves up beside the first one before it is
    emptied, so no path grows long.

    Raises:
        OSError: If something cannot be removed.
    """
    top = os.open(parent, _FOLDER)
    try:
        waiting, count = [name], 0
        while waiting:
            folder = waiting.pop()
            fd = os.open(folder, _FOLDER, dir_fd=top)
            try:
                for inner in _empty(fd):
                    count += 1
                    moved = f"{name}.{count}"
                    os.rename(inner, moved, src_dir_fd=fd, dst_dir_fd=top)
                    waiting.append(moved)
            finally:
                os.close(fd)
            os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)


def _empty(fd: int) -> list[str]:
    """Remove from a folder what is no folder; return the names of the folders inside."""
    inner: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=fd)
                continue
            inner.append(entry.name)
            if entry.stat(follow_symlinks=False).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                # Its maker has closed it.  This process lets itself in, never through a link.
                closed = os.open(entry.name, _FOLDER | os.O_PATH, dir_fd=fd)
                try:
                    Path(f"/proc/self/fd/{closed}").chmod(stat.S_IRWXU)
                finally:
                    os.close(closed)
    return inner


class Place(NamedTuple):
    """What one worker has for itself.

    Attributes:
        folder: Its private folder.
        cgroup: Its cgroup, if it has one.
    """

    folder: str
    cgroup: WorkerCgroup | None

    def lacked_memory(self) -> bool:
        """Return whether the kernel has killed a process of the worker for lack of memory."""
        return self.cgroup is not None and self.cgroup.lacked_memory()


class Places:
    """Makes what workers have for themselves, and removes it when they have ended.

    Args:
        confinement: The sandbox of the pool.
        threads: Remove what jobs have left, which may be a million files.
    """

    def __init__(self, confinement: Confinement, threads: Threads) -> None:
        self._threads = threads
        self._limits = confinement.limits
        self._user, self._apart = confinement.plan.user, confinement.plan.apart
        self._parent = delegated_folder() if self._limits else None
        self._left: list[WorkerCgroup] = []
        self._base: str | None = None
        self._removing = Lock()  # two threads would take each other's folders away

    def open(self) -> Place:
        """Return what a new worker has for itself; only it can enter its folder.

        Raises:
            OSError: If it cannot be made.
        """
        name, cgroup = f"{next(_numbers)}", None
        if self._base is None:
            # Workers of another user pass through here; nobody can list it.
            self._base = tempfile.mkdtemp(prefix="asyncpool-")
            if self._user is not None or self._apart:
                Path(self._base).chmod(0o711)
        folder = Path(self._base, name)
        folder.mkdir(0o700)
        if self._apart:
            folder.chmod(0o770)
        if self._user is not None:
            os.chown(folder, *self._user)
        if self._parent is not None:
            cgroup = WorkerCgroup(self._parent / f"asyncpool-{os.getpid()}-{name}")
            cgroup.limit(self._limits)
        return Place(str(folder), cgroup)

    def release(self, place: Place) -> None:
        """Remove what a worker had, which has ended; in a thread, if there is much of it."""
        # Most jobs leave nothing, and a thread would get in the way of the worker that follows.
        if place.cgroup is None:
            with contextlib.suppress(OSError):
                Path(place.folder).rmdir()
                return
        self._threads.copy(self._remove, place)

    def _remove(self, place: Place) -> None:
        # What cannot be removed now goes with the rest, or has already gone with it.
        with self._removing, contextlib.suppress(OSError):
            remove_tree(*os.path.split(place.folder))
        if place.cgroup is not None and not place.cgroup.remove():
            self._left.append(place.cgroup)

    def _remove_rest(self) -> None:
        with self._removing, contextlib.suppress(OSError):
            base, self._base = self._base, None
            if base is not None:
                for path in Path(base).iterdir():
                    remove_tree(base, path.name)
                Path(base).rmdir()

    async def close(self) -> None:
        """Remove what is left, once nothing is left of any worker.

        Cancellation:
            Something may be left.
        """
        threads = Threads(asyncio.get_running_loop())
        try:
            await threads.copy(self._remove_rest)
            for cgroup in self._left:
                cgroup.remove()
        finally:
            await threads.close()
