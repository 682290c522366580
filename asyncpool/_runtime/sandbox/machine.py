"""Tell what this machine can enforce of a sandbox, and where the interpreter's library is."""

from __future__ import annotations

import encodings
import os
import site
import sys
import sysconfig
from functools import cache
from pathlib import Path

from asyncpool._core.sandbox.filters import MACHINES
from asyncpool._core.sandbox.plan import (
    NEW_NETWORK,
    NEW_USER,
    UNUSED_USERS,
    Machine,
)
from asyncpool._runtime.sandbox.cgroups import delegated_limits

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

# Shared libraries, and data that the standard library and many packages read; none of it tells
# anything about the service.
_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/etc/mime.types",
)


def this_machine() -> Machine:
    """Return what this machine can enforce for workers of this process."""
    system, _, release, _, machine = os.uname()
    if system != "Linux":
        return Machine(system, release, machine)
    from asyncpool._system.confinement import can_filter, landlock_version  # noqa: PLC0415 - Linux

    version, root = landlock_version(), os.geteuid() == 0
    namespaces = _namespaces(root=root)
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
        most_tasks=min(map(_number, ("kernel/pid_max", "kernel/threads-max"))),
    )


def _namespaces(*, root: bool) -> int:
    if root:  # an attempt that fails does no harm
        return NEW_NETWORK
    if any(_read(path) == forbidden for path, forbidden in _SWITCHES.items()):
        return 0
    return NEW_USER | NEW_NETWORK


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


def _number(name: str) -> int:
    text = _read(f"/proc/sys/{name}")
    return int(text) if text.isdigit() else 32768


@cache
def installation() -> tuple[str, ...]:
    """Return the folders of this interpreter: its library, its packages and its commands."""
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    found = {paths[name] for name in names if name in paths}
    found.update(site.getsitepackages())
    # Where they are in the end, since a virtual environment links to them.
    return tuple(sorted({os.path.realpath(path) for path in found} | found))


@cache
def library() -> tuple[str, ...]:
    """Return what workers may read so that they can import what is installed."""
    ours = str(Path(__file__).parents[2])
    base = Path(sys.base_prefix) / "lib"
    return (
        *installation(),
        ours,
        *([str(base)] if base != Path("/lib") else []),
        *_SYSTEM,
    )


@cache
def least_library() -> tuple[str, ...]:
    """Return what workers read even if they may not import what is installed.

    They find encodings by their names, and import a part of this package when they need it.
    """
    ours, library = str(Path(__file__).parents[2]), sysconfig.get_path("platstdlib")
    return ours, str(Path(encodings.__file__).parent), f"{library}/lib-dynload"
