"""The sandbox of a pool, checked against this machine, and what each of its workers has for itself.

A worker has a private folder, and a cgroup where there may be one.  The service may make cgroups
(version 2) below its own, or beside it, if an administrator or systemd has delegated that to its
user.  The kernel allows limits only below a cgroup that has no processes itself; so a service
usually sits in a cgroup of its own below the delegated one (systemd: ``DelegateSubgroup=``).
"""

from __future__ import annotations

import asyncio
import contextlib
import encodings
import itertools
import os
import pwd
import site
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Generator
from functools import cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from asyncpool._core.options import WorkerLimits
from asyncpool._dataclass import replace
from asyncpool._engine.loop import Threads
from asyncpool._engine.machine import main_script, oom_kills
from asyncpool._sandbox import plan as rules
from asyncpool._wire.posix import read
from asyncpool.errors import UnsupportedPlatformError
from asyncpool.sandbox import Sandbox, is_within

# Each allows or forbids namespaces of users, on some systems.
_SWITCHES = {
    "/proc/sys/user/max_user_namespaces": "0",
    "/proc/sys/kernel/unprivileged_userns_clone": "0",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
}

_CAP_SETUID = 1 << 7
_MOST_PIDS = 1 << 22

# The first version of Landlock whose kernel counts the processes of a user namespace apart.
_COUNTS_SINCE = 2

# Which limits of the kernel a sandbox sets, and by which of its settings.
_RLIMITS = {
    "RLIMIT_AS": "memory",
    "RLIMIT_CPU": "cpu_seconds",
    "RLIMIT_NPROC": "processes",
    "RLIMIT_CORE": "no dumps of memory",
}

_PACKAGE = str(Path(__file__).parents[1])

# Shared libraries, and data that the standard library and many packages read; none of it tells
# anything about the service.
_SYSTEM = """
/lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /etc/ld.so.cache
/etc/localtime /usr/share/zoneinfo /etc/mime.types
"""


def _user_of(user: str | int | None) -> tuple[int, int] | None:
    """Return the numbers of a user and of his group.

    Raises:
        ValueError: If there is no such user, if that is root or this process's own, or if this
            process may not become another one.
    """
    if user is None:
        return None
    try:
        entry = pwd.getpwnam(user) if isinstance(user, str) else pwd.getpwuid(user)
        numbers = entry.pw_uid, entry.pw_gid
    except KeyError:
        if isinstance(user, str) or not 0 < user < 1 << 32:
            raise ValueError(f"Sandbox(user={user!r}): there is no such user") from None
        numbers = user, user
    if numbers[0] in {0, os.geteuid()}:
        whose = "root" if numbers[0] == 0 else "the user of the service itself"
        raise ValueError(
            f"Sandbox(user={user!r}): that is {whose}, whose files would be the worker's own: "
            "name a user who owns nothing, or leave it out"
        )
    if os.geteuid() != 0:
        raise ValueError(
            f"Sandbox(user={user!r}): only root can have workers of another user; run the "
            "service as that user, or leave it out"
        )
    return numbers


def this_machine() -> rules.Machine:
    """Return what this machine can enforce for workers of this process."""
    system, _, release, _, machine = os.uname()
    if system != "Linux":
        return rules.Machine(system, release, machine)
    from asyncpool._sandbox.entering import can_filter, landlock_version  # noqa: PLC0415 - Linux

    version, root = landlock_version(), os.geteuid() == 0
    delegated = delegated_folder()
    namespaces = rules.NEW_NETWORK  # an attempt that fails does no harm
    if not root:
        forbidden = any(_read(path) == value for path, value in _SWITCHES.items())
        namespaces = 0 if forbidden else rules.NEW_USER | rules.NEW_NETWORK
    most = (_read(f"/proc/sys/kernel/{name}") for name in ("pid_max", "threads-max"))
    return rules.Machine(
        system,
        release,
        machine,
        landlock=version,
        seccomp=machine in rules.MACHINES and can_filter(),
        namespaces=namespaces,
        limits=() if delegated is None else _offered(delegated),
        root=root,
        gives_users=root and _gives_users(),
        counts_processes=bool(namespaces & rules.NEW_USER) and version >= _COUNTS_SINCE,
        most_tasks=min(int(number or 32768) for number in most),
    )


def _read(path: str | Path) -> str:
    return read(str(path)).decode(errors="replace").strip()


def _gives_users() -> bool:
    """Return whether root may have a process of any user: also in containers that rename a few."""
    rights = _read("/proc/self/status").partition("CapEff:")[2].split()
    known = (
        map(int, line.split()) for line in _read("/proc/self/uid_map").splitlines()
    )
    return bool(int(rights[0], 16) & _CAP_SETUID if rights else 0) and any(
        first <= rules.UNUSED_USERS and first + count > rules.UNUSED_USERS + _MOST_PIDS
        for first, _, count in known
    )


@cache
def installation() -> tuple[str, ...]:
    """Return the folders of this interpreter: its library, its packages and its commands."""
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    found = {paths[name] for name in names if name in paths}
    found.update(site.getsitepackages())
    # Where they are in the end, since a virtual environment links to them.
    return tuple(sorted({os.path.realpath(path) for path in found} | found))


def library(*, imports: bool) -> tuple[str, ...]:
    """Return what workers read to import what is installed, or else what no worker can do without."""
    if not imports:
        # They find encodings by their names, and import a part of this package when they need it.
        modules = f"{sysconfig.get_path('platstdlib')}/lib-dynload"
        return _PACKAGE, str(Path(encodings.__file__).parent), modules
    base = Path(sys.base_prefix) / "lib"
    own = () if base == Path("/lib") else (str(base),)
    return *installation(), _PACKAGE, *own, *_SYSTEM.split()


# What each worker has for itself: a cgroup, and a private folder.

_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_WANTED = ("memory", "pids", "cpu")
_PERIOD = 100_000  # microseconds

# systemd marks what it has delegated, and so root knows what is its own.
_MARKS = ("trusted.delegate", "user.delegate")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Workers of all pools of this process have other names.
_numbers = itertools.count(1)


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
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            found = (root / line[3:].lstrip("/") for root in _ROOTS)
            return next(
                (it for it in found if os.access(it / "cgroup.procs", os.F_OK)), None
            )
    return None


def _is_delegated(folder: Path) -> bool:
    if not _offered(folder) or not os.access(folder, os.W_OK):
        return False
    for name in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return os.geteuid() != 0


def _offered(folder: Path) -> tuple[str, ...]:
    """Return the controllers that cgroups below *folder* have."""
    names = _read(folder / "cgroup.subtree_control").split()
    return tuple(name for name in _WANTED if name in names)


def _cgroup_limits(
    plan: rules.SandboxPlan, cpus: float | None, offered: tuple[str, ...]
) -> dict[str, str]:
    found: dict[str, str] = {}
    if plan.memory is not None and "memory" in offered:
        found = {"memory.max": f"{plan.memory}", "memory.oom.group": "1"}
    if plan.tasks is not None and "pids" in offered:
        found["pids.max"] = f"{plan.tasks[0]}"
    if cpus is not None and "cpu" in offered:
        found["cpu.max"] = f"{max(1000, round(cpus * _PERIOD))} {_PERIOD}"
    return found


def remove_tree(parent: str, name: str) -> None:
    """Remove the folder *name* of *parent*, whatever hostile code has put there.

    :func:`shutil.rmtree` calls itself for each level (before Python 3.13), and a job may make more
    levels than a stack has room for.  Here each folder moves up beside the first one before it is
    emptied, so no path grows long.

    Raises:
        OSError: If something cannot be removed.
    """
    with _opened(parent) as top:
        waiting, numbers = [name], itertools.count(1)
        while waiting:
            folder = waiting.pop()
            with _opened(folder, dir_fd=top) as fd:
                for inner in _empty(fd):
                    moved = f"{name}.{next(numbers)}"
                    os.rename(inner, moved, src_dir_fd=fd, dst_dir_fd=top)
                    waiting.append(moved)
            os.rmdir(folder, dir_fd=top)


@contextlib.contextmanager
def _opened(
    folder: str, flags: int = 0, *, dir_fd: int | None = None
) -> Generator[int]:
    """Open a folder, never through a link."""
    fd = os.open(folder, _FOLDER | flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


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
                # Its maker has closed it, and this process lets itself in.
                with _opened(entry.name, os.O_PATH, dir_fd=fd) as closed:
                    Path(f"/proc/self/fd/{closed}").chmod(stat.S_IRWXU)
    return inner


class Place(NamedTuple):
    """What one worker has for itself.

    Attributes:
        folder: Its private folder.
        cgroup: The folder of its cgroup, if it has one.
    """

    folder: str
    cgroup: Path | None

    def lacked_memory(self) -> bool:
        """Return whether the kernel has killed a process of its cgroup for lack of memory."""
        return self.cgroup is not None and oom_kills(self.cgroup / "memory.events") > 0


def remove_cgroup(folder: Path) -> bool:
    """Kill what is left in a cgroup, and remove it; return whether it is gone.

    The kernel keeps it until the last of its processes has ended.
    """
    with contextlib.suppress(OSError):
        (folder / "cgroup.kill").write_text("1")
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


class Confinement:
    """The sandbox of a pool, checked against this machine; makes what each worker has for itself.

    Args:
        sandbox: The sandbox.
        limits: The other limits of the workers.

    Raises:
        UnsupportedPlatformError: If this machine cannot enforce it, and it is strict.
        ValueError: If a path or the user is not there, or the limits contradict each other.

    Attributes:
        plan: What each worker does.
        missing: What cannot be enforced here, by setting; empty for a strict sandbox.
        script: What is ``__main__`` in workers, without the arguments of the service.
        script_first: Whether workers import that before they shut themselves in.  They do if it
            is the user's own, and not an installed command, which starts services.
    """

    def __init__(self, sandbox: Sandbox, limits: WorkerLimits) -> None:
        user, workdir = _user_of(sandbox.user), sandbox.workdir
        # First, since it may be among the others too.
        if workdir is not None and not Path(workdir).is_dir():
            raise ValueError(f"Sandbox(workdir=...): {workdir} is no folder here")
        for setting, paths in (("read", sandbox.read), ("write", sandbox.write)):
            for path in paths:
                if not Path(path).exists():
                    raise ValueError(
                        f"Sandbox({setting}=...): {path} does not exist; make it before the pool, or "
                        "leave it out"
                    )
        private = os.path.realpath(tempfile.gettempdir())
        write = [os.path.realpath(path) for path in sandbox.write]
        for path in write:
            if is_within(private, [path]):
                raise ValueError(
                    f"Sandbox(write=...): {path} holds the private folders of workers, which one "
                    "worker could then replace for the next: name a folder below, or set TMPDIR"
                )
        # From here on they go through no link, before any job can change one.  The constructor compares
        # them again, since one may now be below another.
        sandbox = replace(
            sandbox,
            read=[os.path.realpath(path) for path in sandbox.read],
            write=write,
            workdir=None if workdir is None else os.path.realpath(workdir),
        )
        for name, setting in _RLIMITS.items():
            if name in limits.rlimits and getattr(sandbox, setting, True):
                raise ValueError(
                    f"worker_limits sets {name}, and so does the sandbox ({setting}): leave it "
                    "to one of them"
                )
        machine = this_machine()
        lacks = rules.missing(sandbox, machine)
        self.missing = {it: f"{it}: {what}" for it, what in lacks}
        if self.missing and sandbox.strict:
            raise UnsupportedPlatformError(
                f"this sandbox cannot be enforced here: {'; '.join(self.missing.values())}; or "
                "accept that with strict=False"
            )
        readable = library(imports=sandbox.imports)
        self.plan = rules.make_plan(sandbox, user, machine, readable, limits.rlimits)
        script = main_script()
        self.script = None if script is None else (*script[:2], script[1:2])
        self.script_first = script is not None and not is_within(
            script[1], installation()
        )
        # What the files of each worker's cgroup are to say.
        self._limits = _cgroup_limits(self.plan, sandbox.cpus, machine.limits)
        self._parent: Path | None = None
        self._left: list[Path] = []
        self._base: str | None = None
        self._removing = Lock()  # two threads would take each other's folders away

    def open(self) -> Place:
        """Return what a new worker has for itself; only it can enter its folder.

        Raises:
            OSError: If it cannot be made.
        """
        name, cgroup = f"{next(_numbers)}", None
        user, apart = self.plan.user, self.plan.apart
        if self._base is None:
            self._parent = delegated_folder() if self._limits else None
            # Workers of another user pass through here; nobody can list it.
            self._base = tempfile.mkdtemp(prefix="asyncpool-")
            if user is not None or apart:
                Path(self._base).chmod(0o711)
        folder = Path(self._base, name)
        folder.mkdir(0o700)
        if apart:
            folder.chmod(0o770)
        if user is not None:
            os.chown(folder, *user)
        if self._parent is not None:
            cgroup = self._parent / f"asyncpool-{os.getpid()}-{name}"
            cgroup.mkdir()
            for file, text in self._limits.items():
                (cgroup / file).write_text(text)
        return Place(str(folder), cgroup)

    def release(self, place: Place, threads: Threads) -> None:
        """Remove what a worker had, which has ended; in a thread, if there is much of it."""
        # Most jobs leave nothing, and a thread would get in the way of the worker that follows.
        if place.cgroup is None:
            with contextlib.suppress(OSError):
                Path(place.folder).rmdir()
                return
        threads.copy(self._remove, place)

    def _remove(self, place: Place) -> None:
        # What cannot be removed now goes with the rest, or has already gone with it.
        with self._removing, contextlib.suppress(OSError):
            remove_tree(*os.path.split(place.folder))
        if place.cgroup is not None and not remove_cgroup(place.cgroup):
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
                remove_cgroup(cgroup)
        finally:
            await threads.close()
