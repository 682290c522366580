"""What a worker does to shut itself in, made of the settings and of what this machine can do."""

from __future__ import annotations

import math

from asyncpool._core.base.records import Record
from asyncpool._core.sandbox import landlock
from asyncpool._core.sandbox.filters import Rule, packed, program
from asyncpool._core.sandbox.rules import (
    base_rules,
    network_rules,
    owner_rules,
    process_rules,
)

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Container

# The soft and the hard limit of a resource, by its name.
Rlimit = tuple[str, tuple[int, int]]

# A new network namespace has no way out, and takes abstract sockets along.
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000

# The kernel counts threads, not processes: libraries have these, and a bomb is stopped by them.
_THREADS = 256

# Each pair of sockets holds some 400 KiB of the kernel's memory, which RLIMIT_AS does not count.
_DESCRIPTORS = 1024

# What any program may need, and that tells nothing.
_DEVICES = (
    ("/dev/null", landlock.READ_FILE | landlock.WRITE_FILE),
    ("/dev/zero", landlock.READ_FILE),
    ("/dev/full", landlock.READ_FILE | landlock.WRITE_FILE),
    ("/dev/random", landlock.READ_FILE),
    ("/dev/urandom", landlock.READ_FILE),
)


class Machine(Record):
    """What this machine can enforce.

    Attributes:
        system: What ``os.uname()`` calls the system, such as ``"Linux"``.
        release: Its version, such as ``"6.12.4"``.
        machine: The kind of processor, such as ``"x86_64"``.
        landlock: The version of Landlock; 0 if there is none.
        seccomp: Whether a process may filter its system calls.
        namespaces: The namespaces that a worker can have.
        limits: The limits that a delegated cgroup offers, such as ``"pids"``.
        root: Whether the service runs as root.
        counts_processes: Whether the kernel counts the processes of each worker apart.
    """

    system: str
    release: str
    machine: str
    landlock: int = 0
    seccomp: bool = False
    namespaces: int = 0
    limits: tuple[str, ...] = ()
    root: bool = False
    counts_processes: bool = False


class Settings(Record):
    """The settings of a sandbox, checked; see :class:`asyncpool.Sandbox`.

    Attributes:
        user: The numbers of the user and of the group.
        ports: The TCP ports; with ``None`` the whole network is open.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    workdir: str | None = None
    imports: bool = True
    ports: tuple[int, ...] | None = ()
    env: tuple[tuple[str, str], ...] = ()
    processes: int | None = 0
    memory: int | None = None
    cpu_seconds: float | None = None
    cpus: float | None = None
    user: tuple[int, int] | None = None


class SandboxPlan(Record):
    """What a worker does, before its first job.

    Attributes:
        files: The rights of files that Landlock handles; 0 for no rules of files.
        network: Likewise of the network.
        scopes: What Landlock keeps out of reach of other processes.
        paths: The rights at each path, and below it.
        ports: The TCP ports that may be connected to.
        filter: The packed program that filters system calls; empty for none.
        rlimits: The kernel's limits, by name.
        tasks: How many threads it may have in all its processes, if the kernel counts those of a
            user namespace apart.
        memory: How many bytes of memory the worker may add to what it has.
        descriptors: How many descriptors it may have at most; ``None`` leaves the limit as it is.
        namespaces: The namespaces that it makes.
        user: The numbers of the user and the group that it becomes.
        drop: Whether it drops the capabilities of root.
        forks: Whether it may start processes.
        env: Its environment.
        workdir: The folder that it works in; its private folder if there is none.
    """

    files: int = 0
    network: int = 0
    scopes: int = 0
    paths: tuple[tuple[str, int], ...] = ()
    ports: tuple[int, ...] = ()
    filter: bytes = b""
    rlimits: tuple[Rlimit, ...] = ()
    tasks: int | None = None
    memory: int | None = None
    descriptors: int | None = None
    namespaces: int = 0
    user: tuple[int, int] | None = None
    drop: bool = False
    forks: bool = False
    env: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None


def make_plan(
    settings: Settings,
    machine: Machine,
    library: tuple[str, ...],
    rlimits: Container[str] = (),
) -> SandboxPlan:
    """Return what workers do; what this machine cannot enforce is left out.

    Args:
        settings: The settings.
        machine: What this machine can enforce.
        library: The folders of what workers may import.
        rlimits: The names of the kernel's limits that ``worker_limits`` sets.
    """
    if machine.system != "Linux":
        return SandboxPlan(env=settings.env, workdir=settings.workdir)
    version, ports = machine.landlock, settings.ports
    code = b""
    if machine.seccomp:
        code = packed(program(_rules(settings), machine.machine))
    return SandboxPlan(
        files=landlock.files_handled(version),
        # Without any port there are no sockets, and nothing is left to check.
        network=landlock.network_handled(version) if ports else 0,
        scopes=landlock.scopes(version),
        paths=_paths(settings, library),
        ports=ports or (),
        filter=code,
        rlimits=_rlimits(settings),
        tasks=most_tasks(settings) if machine.counts_processes else None,
        memory=settings.memory,
        descriptors=None if "RLIMIT_NOFILE" in rlimits else _DESCRIPTORS,
        namespaces=_namespaces(settings, machine),
        user=settings.user,
        drop=machine.root,
        forks=settings.processes != 0,
        env=settings.env,
        workdir=settings.workdir,
    )


def _rules(settings: Settings) -> list[Rule]:
    ports = settings.ports
    reach = "all" if ports is None else "ports" if ports else "none"
    forks = process_rules(forks=settings.processes != 0)
    return base_rules() + owner_rules() + forks + network_rules(reach=reach)


def _paths(settings: Settings, library: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    run = 0 if settings.processes == 0 else landlock.EXECUTE
    readable = (*settings.read, *library)
    return (
        *_DEVICES,
        *((path, landlock.READ | run) for path in readable),
        *((path, landlock.WRITE) for path in settings.write),
    )


def _rlimits(settings: Settings) -> tuple[Rlimit, ...]:
    # A dump would hold the memory of the service's launcher too, and is written by the kernel.
    limits: list[Rlimit] = [("RLIMIT_CORE", (0, 0))]
    if settings.cpu_seconds is not None:
        soft = max(1, math.ceil(settings.cpu_seconds))
        limits.append(("RLIMIT_CPU", (soft, soft + 1)))
    return tuple(limits)


def most_tasks(settings: Settings) -> int | None:
    """Return how many threads a worker may have in all its processes; ``None`` for any number."""
    return None if settings.processes is None else settings.processes + _THREADS


def _namespaces(settings: Settings, machine: Machine) -> int:
    wanted = NEW_USER if not machine.root else 0
    if settings.ports == ():
        wanted |= NEW_NETWORK
    return wanted & machine.namespaces
