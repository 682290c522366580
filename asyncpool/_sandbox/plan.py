"""What a worker does to shut itself in, made of checked settings and of what this machine can do."""

from __future__ import annotations

import math

from asyncpool._sandbox.filters import MACHINES, packed, program
from asyncpool._wire.records import Record
from asyncpool._wire.text import in_units

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

# The soft and the hard limit of a resource, by its name.
Rlimit = tuple[str, tuple[int, int]]

# The rights of Landlock, see landlock(7).  One that a sandbox *handles* is refused wherever no rule
# grants it.

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15

BIND_TCP = 1 << 0
CONNECT_TCP = 1 << 1

SCOPE_ABSTRACT_SOCKETS = 1 << 0
SCOPE_SIGNALS = 1 << 1

# The first version that knows a right, and the kernel that has this version.
_FIRST_FILES = (1 << 13) - 1
_LATER_FILES = {2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
TCP_SINCE = 4
SCOPES_SINCE = 6
KERNELS = {1: "5.13", 3: "6.2", TCP_SINCE: "6.7", SCOPES_SINCE: "6.12"}

READ = READ_FILE | READ_DIR
WRITE = (
    READ
    | WRITE_FILE
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_SYM
    | REFER
    | TRUNCATE
)

# The rights that a rule may grant of what is no folder.
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

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
    ("/dev/null", READ_FILE | WRITE_FILE),
    ("/dev/zero", READ_FILE),
    ("/dev/full", READ_FILE | WRITE_FILE),
    ("/dev/random", READ_FILE),
    ("/dev/urandom", READ_FILE),
)


# A worker that may add less than this to its memory cannot answer its pool.
_LEAST_MEMORY = 8 << 20

_FILES_SINCE = 3  # before that, whoever may read a file may empty it
_NO_STRICT = "or accept that with strict=False"


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


def check_together(settings: Settings) -> None:
    """Check that the settings of a sandbox do not contradict each other.

    Raises:
        ValueError: If two of them do; the text names both.
    """
    workdir = settings.workdir
    inside = (*settings.read, *settings.write)
    if workdir is not None and not is_within(workdir, inside):
        raise ValueError(
            f"workdir={workdir!r} is in no folder of read or write, so the worker could not "
            "look into the folder that it works in: add it to one of them"
        )
    if "/" in settings.write:
        raise ValueError("write names '/': that is no sandbox, name the folders")
    for path in (*settings.read, *settings.write):
        for folder in settings.write:
            if path != folder and is_within(path, [folder]):
                raise ValueError(
                    f"{path!r} is below {folder!r} of write, so a job could replace it by a link "
                    "before the next worker begins: leave it out, workers have it already, or move "
                    "it elsewhere"
                )
    if settings.memory is not None and settings.memory < _LEAST_MEMORY:
        least, given = in_units(_LEAST_MEMORY), in_units(settings.memory)
        raise ValueError(f"memory must be at least {least}, not {given}")


def check_rlimits(settings: Settings, others: Container[str]) -> None:
    """Check that nothing else sets a limit that the sandbox sets.

    Args:
        settings: The settings.
        others: The names of the kernel's limits that ``worker_limits`` sets.

    Raises:
        ValueError: If they do; the text names both settings.
    """
    ours = {
        "RLIMIT_AS": ("memory", settings.memory),
        "RLIMIT_CPU": ("cpu_seconds", settings.cpu_seconds),
        "RLIMIT_NPROC": ("processes", settings.processes or None),
        "RLIMIT_CORE": ("no dumps of memory", 0),
    }
    for name, (setting, value) in ours.items():
        if value is not None and name in others:
            raise ValueError(
                f"worker_limits sets {name}, and so does the sandbox ({setting}): leave it "
                "to one of them"
            )


def is_within(path: str, folders: Iterable[str]) -> bool:
    """Return whether *path* is one of *folders*, or below one; all are absolute."""
    return any(f"{path}/".startswith(f"{each.rstrip('/')}/") for each in folders)


class Missing(Record):
    """Something that this machine cannot enforce.

    Attributes:
        settings: The settings that ask for it.
        what: What is not kept in.
        cure: What to do about it.
    """

    settings: str
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.settings}: {self.what}; {self.cure}"


def missing(settings: Settings, machine: Machine) -> tuple[Missing, ...]:
    """Return what this machine cannot enforce of a sandbox."""
    if machine.system != "Linux":
        what = (
            f"a sandbox needs Linux, and this is {machine.system or 'another system'}"
        )
        cure = "run the service in a Linux container or virtual machine"
        return (Missing("sandbox", what, cure),)
    return (*_unknown_to_landlock(settings, machine), *_unenforced(settings, machine))


def refusal(lacks: tuple[Missing, ...]) -> str:
    """Return the text for a pool that does not start."""
    parts = "; ".join(map(str, lacks))
    return f"this sandbox cannot be enforced here: {parts}; {_NO_STRICT}"


def _unknown_to_landlock(settings: Settings, machine: Machine) -> Iterator[Missing]:
    kernel = f"this kernel is {machine.release}"
    if not machine.landlock:
        kernel += ", without Landlock: it is switched on by 'landlock' in lsm= at boot"
    for since, setting, what in (
        (_FILES_SINCE, "read, write", "access to files"),
        (TCP_SINCE, "network", "connections to other ports"),
        (SCOPES_SINCE, "sandbox", "signals to processes outside of it"),
    ):
        if machine.landlock < since and (since != TCP_SINCE or settings.ports):
            yield Missing(
                setting,
                f"{what} cannot be refused, since that needs Landlock {since}, and {kernel}",
                f"run Linux {KERNELS[since]} or newer",
            )


def _unenforced(settings: Settings, machine: Machine) -> Iterator[Missing]:
    if not machine.seccomp:
        what = "system calls cannot be filtered, since the kernel refuses seccomp"
        cure = "allow seccomp in the container's own profile"
        if machine.machine not in MACHINES:
            known = ", ".join(MACHINES)
            what = (
                f"system calls are filtered on {known}, and this is {machine.machine}"
            )
            cure = "run the service on one of those"
        yield Missing("network, processes", what, cure)
    cure = "delegate a cgroup of version 2 to the service (systemd: Delegate=yes)"
    if settings.cpus is not None and "cpu" not in machine.limits:
        what = "the share of the CPUs cannot be limited without a cgroup"
        yield Missing(f"cpus={settings.cpus:g}", what, cure)
    counted = machine.counts_processes or "pids" in machine.limits
    if settings.processes and not counted:
        what = "the kernel cannot count the processes of each worker"
        cure += ", run it as a user that is not root, or set processes=0 or None"
        yield Missing(f"processes={settings.processes}", what, cure)


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
    ports, forks = settings.ports, settings.processes != 0
    # A program that it runs would take another real user for a reason to trust nothing.
    apart = machine.gives_users and settings.user is None and not forks
    code = b""
    if machine.seccomp:
        code = packed(program(machine.machine, ports, forks=forks, apart=apart))
    readable = READ | EXECUTE if forks else READ
    limits = {n: (most, most) for n, most in _BOUNDS.items() if n not in rlimits}
    if settings.cpu_seconds is not None:
        soft = max(1, math.ceil(settings.cpu_seconds))
        limits["RLIMIT_CPU"] = (soft, soft + 1)
    namespaces = 0 if machine.root else NEW_USER
    if ports == ():
        namespaces |= NEW_NETWORK
    files, network, scopes = landlock_rights(machine.landlock)
    return SandboxPlan(
        files=files,
        # Without any port there are no sockets, and nothing is left to check.
        network=network if ports else 0,
        scopes=scopes,
        paths=(
            *_DEVICES,
            *((path, readable) for path in (*settings.read, *library)),
            *((path, WRITE) for path in settings.write),
        ),
        ports=ports or (),
        filter=code,
        rlimits=tuple(limits.items()),
        tasks=most_tasks(settings),
        share=machine.most_tasks // 4 * 3,
        apart=apart,
        memory=settings.memory,
        namespaces=namespaces & machine.namespaces,
        user=settings.user,
        drop=machine.root,
        forks=forks,
        env=settings.env,
        workdir=settings.workdir,
    )


def most_tasks(settings: Settings) -> int | None:
    """Return how many threads a worker may have in all its processes; ``None`` for any number."""
    return None if settings.processes is None else settings.processes + _THREADS


def landlock_rights(version: int) -> tuple[int, int, int]:
    """Return all rights that a version of Landlock knows: of files, of the network, and its scopes."""
    files = _FIRST_FILES if version else 0
    files |= sum(right for since, right in _LATER_FILES.items() if since <= version)
    network = BIND_TCP | CONNECT_TCP if version >= TCP_SINCE else 0
    scopes = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if version >= SCOPES_SINCE else 0
    return files, network, scopes
