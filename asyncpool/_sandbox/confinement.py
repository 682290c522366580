"""The sandbox of a pool, checked against this machine, and what each of its workers gets."""

from __future__ import annotations

import encodings
import os
import pwd
import site
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from asyncpool._core.options import WorkerLimits
from asyncpool._dataclass import replace
from asyncpool._engine.machine import main_script
from asyncpool._sandbox.filters import MACHINES
from asyncpool._sandbox.places import delegated_limits
from asyncpool._sandbox.plan import (
    NEW_NETWORK,
    NEW_USER,
    UNUSED_USERS,
    Machine,
    Missing,
    SandboxPlan,
    make_plan,
    missing,
)
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


class Confinement(NamedTuple):
    """The sandbox of a pool, checked against this machine.

    Attributes:
        plan: What each worker does.
        missing: What cannot be enforced here; empty for a strict sandbox.
        limits: The limits of each worker's cgroup, by controller.
        script: What is ``__main__`` in workers, without the arguments of the service.
        script_first: Whether workers import that before they shut themselves in.  They do if it
            is the user's own, and not an installed command, which starts services.
    """

    plan: SandboxPlan
    missing: tuple[Missing, ...]
    limits: dict[str, int | float]
    script: tuple[str, str, tuple[str, ...]] | None
    script_first: bool


def confine(sandbox: Sandbox, limits: WorkerLimits) -> Confinement:
    """Check a sandbox against this machine.

    Raises:
        UnsupportedPlatformError: If this machine cannot enforce it, and it is strict.
        ValueError: If a path or the user is not there, or the limits contradict each other.
    """
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
    lacks = tuple(missing(sandbox, machine))
    if lacks and sandbox.strict:
        raise UnsupportedPlatformError(
            f"this sandbox cannot be enforced here: {'; '.join(map(str, lacks))}; or accept that "
            "with strict=False"
        )
    script = main_script()
    readable = library(imports=sandbox.imports)
    plan = make_plan(sandbox, user, machine, readable, limits.rlimits)
    return Confinement(
        plan,
        lacks,
        _cgroup_limits(plan, sandbox.cpus, machine.limits),
        script=None if script is None else (*script[:2], script[1:2]),
        script_first=script is not None and not is_within(script[1], installation()),
    )


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


def _cgroup_limits(
    plan: SandboxPlan, cpus: float | None, offered: tuple[str, ...]
) -> dict[str, int | float]:
    wanted = {"memory": plan.memory, "pids": plan.tasks and plan.tasks[0], "cpu": cpus}
    return {
        name: value
        for name, value in wanted.items()
        if value is not None and name in offered
    }


def this_machine() -> Machine:
    """Return what this machine can enforce for workers of this process."""
    system, _, release, _, machine = os.uname()
    if system != "Linux":
        return Machine(system, release, machine)
    from asyncpool._sandbox.entering import can_filter, landlock_version  # noqa: PLC0415 - Linux

    version, root = landlock_version(), os.geteuid() == 0
    namespaces = NEW_NETWORK  # an attempt that fails does no harm
    if not root:
        forbidden = any(_read(path) == value for path, value in _SWITCHES.items())
        namespaces = 0 if forbidden else NEW_USER | NEW_NETWORK
    most = (_read(f"/proc/sys/kernel/{name}") for name in ("pid_max", "threads-max"))
    return Machine(
        system,
        release,
        machine,
        landlock=version,
        seccomp=machine in MACHINES and can_filter(),
        namespaces=namespaces,
        limits=delegated_limits(),
        root=root,
        gives_users=root and _gives_users(),
        counts_processes=bool(namespaces & NEW_USER) and version >= _COUNTS_SINCE,
        most_tasks=min(int(number or 32768) for number in most),
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _gives_users() -> bool:
    """Return whether root may have a process of any user: also in containers that rename a few."""
    rights = _read("/proc/self/status").partition("CapEff:")[2].split()
    known = (
        map(int, line.split()) for line in _read("/proc/self/uid_map").splitlines()
    )
    return bool(int(rights[0], 16) & _CAP_SETUID if rights else 0) and any(
        first <= UNUSED_USERS and first + count > UNUSED_USERS + _MOST_PIDS
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
