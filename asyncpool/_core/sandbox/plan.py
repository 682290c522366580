"""What a worker does to shut itself in, made of the settings and of what this machine can do."""

from __future__ import annotations

import math

from asyncpool._core.base.records import Record
from asyncpool._core.sandbox import landlock
from asyncpool._core.sandbox.filters import packed, program

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Container

# The soft and the hard limit of a resource, by its name.
Rlimit = tuple[str, tuple[int, int]]

# From here on no user has a number: some of the kernel takes them for negative.  A worker gets one.
UNUSED_USERS = 1 << 31

# A new network namespace has no way out, and takes abstract sockets along.
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000

# The kernel counts threads, not processes: libraries have these, and a bomb is stopped by them.
_THREADS = 256

# What the kernel counts beside memory: for each process, or for its user, of whom a worker gets no
# more if he has so many.  A dump would hold the memory of the launcher too, and is written by the
# kernel.  Each pair of sockets holds some 400 KiB of the kernel's memory, which RLIMIT_AS does not
# count.  Threads are cancelled by signals that wait, so there must be some.
_BOUNDS = {
    "RLIMIT_CORE": 0,
    "RLIMIT_NOFILE": 256,
    "RLIMIT_SIGPENDING": 128,
    "RLIMIT_MSGQUEUE": 0,
    "RLIMIT_MEMLOCK": 0,
}

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
        gives_users: Whether it may then give each worker a real user of its own.
        counts_processes: Whether the kernel counts the processes of each worker apart.
        most_tasks: How many threads there can be on it, in all its processes.
    """

    system: str
    release: str
    machine: str
    landlock: int = 0
    seccomp: bool = False
    namespaces: int = 0
    limits: tuple[str, ...] = ()
    root: bool = False
    gives_users: bool = False
    counts_processes: bool = False
    most_tasks: int = 32768


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
        tasks: How many threads it may have in all its processes.
        share: How many threads its user may have, if the kernel cannot count its own apart.
        apart: Whether it has a real user of its own, for whom the kernel counts.
        memory: How many bytes of memory the worker may add to what it has.
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
    share: int = 0
    apart: bool = False
    memory: int | None = None
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
    code, forks = b"", settings.processes != 0
    # A program that it runs would take another real user for a reason to trust nothing.
    apart = machine.gives_users and settings.user is None and not forks
    if machine.seccomp:
        kind = machine.machine
        code = packed(program(kind, settings.ports, forks=forks, apart=apart))
    return SandboxPlan(
        files=landlock.files_handled(version),
        # Without any port there are no sockets, and nothing is left to check.
        network=landlock.network_handled(version) if ports else 0,
        scopes=landlock.scopes(version),
        paths=_paths(settings, library),
        ports=ports or (),
        filter=code,
        rlimits=_rlimits(settings, rlimits),
        tasks=most_tasks(settings),
        share=machine.most_tasks // 4 * 3,
        apart=apart,
        memory=settings.memory,
        namespaces=_namespaces(settings, machine),
        user=settings.user,
        drop=machine.root,
        forks=forks,
        env=settings.env,
        workdir=settings.workdir,
    )


def _paths(settings: Settings, library: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    run = 0 if settings.processes == 0 else landlock.EXECUTE
    readable = (*settings.read, *library)
    return (
        *_DEVICES,
        *((path, landlock.READ | run) for path in readable),
        *((path, landlock.WRITE) for path in settings.write),
    )


def _rlimits(settings: Settings, others: Container[str]) -> tuple[Rlimit, ...]:
    limits = {n: (most, most) for n, most in _BOUNDS.items() if n not in others}
    if settings.cpu_seconds is not None:
        soft = max(1, math.ceil(settings.cpu_seconds))
        limits["RLIMIT_CPU"] = (soft, soft + 1)
    return tuple(limits.items())


def most_tasks(settings: Settings) -> int | None:
    """Return how many threads a worker may have in all its processes; ``None`` for any number."""
    return None if settings.processes is None else settings.processes + _THREADS


def _namespaces(settings: Settings, machine: Machine) -> int:
    wanted = NEW_USER if not machine.root else 0
    if settings.ports == ():
        wanted |= NEW_NETWORK
    return wanted & machine.namespaces
