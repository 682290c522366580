"""What a worker does to shut itself in, made of a sandbox and of what this machine can do."""

from __future__ import annotations

import math

from asyncpool._sandbox.filters import MACHINES, packed, program
from asyncpool._wire.records import Record

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from asyncpool.sandbox import Sandbox

# The rights of files, from the lowest bit, see landlock(7).  One that a sandbox *handles* is refused
# wherever no rule grants it.
_RIGHTS = """
execute write_file read_file read_dir remove_dir remove_file make_char make_dir make_reg make_sock
make_fifo make_block make_sym refer truncate ioctl_dev
"""
_BITS: dict[str, int] = {name: 1 << bit for bit, name in enumerate(_RIGHTS.split())}


def rights(names: str) -> int:
    """Return the bits of some rights of files."""
    return sum(_BITS[name] for name in names.split())


READ = rights("read_file read_dir")
WRITE = READ | rights(
    "write_file remove_dir remove_file make_dir make_reg make_sym refer truncate"
)

# The rights that a rule may grant of what is no folder.
OF_A_FILE = rights("execute write_file read_file truncate ioctl_dev")

CONNECT_TCP = 1 << 1
_ALL_TCP = 1 << 0 | CONNECT_TCP  # BIND_TCP too
_ALL_SCOPES = 1 << 0 | 1 << 1  # abstract sockets and signals

# How many of the rights of files each version of Landlock knows, from 0 on.
_KNOWN = (0, 13, 14, 15, 15, 16)
_FILES_SINCE = 3  # before that, whoever may read a file may empty it
_TCP_SINCE, _SCOPES_SINCE = 4, 6

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
    *((f"/dev/{name}", rights("read_file")) for name in ("zero", "random", "urandom")),
    *((f"/dev/{name}", rights("read_file write_file")) for name in ("null", "full")),
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


def missing(sandbox: Sandbox, machine: Machine) -> Iterator[Missing]:
    """Yield what this machine cannot enforce of a sandbox."""
    if machine.system != "Linux":
        yield Missing(
            "sandbox",
            f"a sandbox needs Linux, and this is {machine.system or 'another system'}",
            "run the service in a Linux container or virtual machine",
        )
        return
    kernel = f"this kernel is {machine.release}"
    if not machine.landlock:
        kernel += ", without Landlock: it is switched on by 'landlock' in lsm= at boot"
    for since, linux, setting, what in (
        (_FILES_SINCE, "6.2", "read, write", "access to files"),
        (_TCP_SINCE, "6.7", "network", "connections to other ports"),
        (_SCOPES_SINCE, "6.12", "sandbox", "signals to processes outside of it"),
    ):
        has_ports = not isinstance(sandbox.network, bool)
        if machine.landlock < since and (since != _TCP_SINCE or has_ports):
            yield Missing(
                setting,
                f"{what} cannot be refused, since that needs Landlock {since}, and {kernel}",
                f"run Linux {linux} or newer",
            )
    if machine.machine not in MACHINES:
        known = ", ".join(MACHINES)
        what = f"system calls are filtered on {known}, and this is {machine.machine}"
        yield Missing("network, processes", what, "run the service on one of those")
    elif not machine.seccomp:
        what = "system calls cannot be filtered, since the kernel refuses seccomp"
        cure = "allow seccomp in the container's own profile"
        yield Missing("network, processes", what, cure)
    cure = "delegate a cgroup of version 2 to the service (systemd: Delegate=yes)"
    if sandbox.cpus is not None and "cpu" not in machine.limits:
        what = "the share of the CPUs cannot be limited without a cgroup"
        yield Missing(f"cpus={sandbox.cpus:g}", what, cure)
    counted = machine.counts_processes or "pids" in machine.limits
    if sandbox.processes and not counted:
        what = "the kernel cannot count the processes of each worker"
        cure += ", run it as a user that is not root, or set processes=0 or None"
        yield Missing(f"processes={sandbox.processes}", what, cure)


class SandboxPlan(Record):
    """What a worker does, before its first job.

    Attributes:
        landlock: The rights that Landlock handles: of files, with 0 for no rules at all; of the
            network; and its scopes.
        paths: The rights at each path, and below it.
        ports: The TCP ports that may be connected to.
        filter: The packed program that filters system calls; empty for none.
        rlimits: The kernel's limits: a name, and a soft and a hard limit.
        tasks: How many threads it may have in all its processes; and how many its user may have,
            if the kernel cannot count its own apart, with 0 for a refusal.
        apart: Whether it has a real user of its own, for whom the kernel counts.
        memory: How many bytes of memory the worker may add to what it has.
        namespaces: The namespaces that it makes.
        user: The numbers of the user and the group that it becomes.
        env: Its environment.
        workdir: The folder that it works in; its private folder if there is none.
    """

    landlock: tuple[int, int, int] = (0, 0, 0)
    paths: tuple[tuple[str, int], ...] = ()
    ports: tuple[int, ...] = ()
    filter: bytes = b""
    rlimits: tuple[tuple[str, tuple[int, int]], ...] = ()
    tasks: tuple[int, int] | None = None
    apart: bool = False
    memory: int | None = None
    namespaces: int = 0
    user: tuple[int, int] | None = None
    env: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None


def make_plan(
    sandbox: Sandbox,
    user: tuple[int, int] | None,
    machine: Machine,
    library: tuple[str, ...],
    rlimits: Container[str] = (),
) -> SandboxPlan:
    """Return what workers do; what this machine cannot enforce is left out.

    Args:
        sandbox: The sandbox.
        user: The numbers of the user and the group that its *user* names.
        machine: What this machine can enforce.
        library: The folders of what workers may import.
        rlimits: The names of the kernel's limits that ``worker_limits`` sets.
    """
    plan = SandboxPlan(
        env=tuple(sandbox.env.items()),
        workdir=None if sandbox.workdir is None else str(sandbox.workdir),
    )
    if machine.system != "Linux":
        return plan
    ports = None if sandbox.network is True else tuple(sandbox.network or ())
    forks, tasks = sandbox.processes != 0, None
    if sandbox.processes is not None:
        shared = 0 if forks else machine.most_tasks // 4 * 3
        tasks = sandbox.processes + _THREADS, shared
    # A program that it runs would take another real user for a reason to trust nothing.
    apart = machine.gives_users and user is None and not forks
    code = b""
    if machine.seccomp:
        code = packed(program(machine.machine, ports, forks=forks, apart=apart))
    readable = READ | rights("execute") if forks else READ
    limits = {n: (most, most) for n, most in _BOUNDS.items() if n not in rlimits}
    if sandbox.cpu_seconds is not None:
        soft = max(1, math.ceil(sandbox.cpu_seconds))
        limits["RLIMIT_CPU"] = (soft, soft + 1)
    namespaces = 0 if machine.root else NEW_USER
    if ports == ():
        namespaces |= NEW_NETWORK
    files, network, scopes = landlock_rights(machine.landlock)
    return plan._replace(
        # Without any port there are no sockets, and nothing is left to check.
        landlock=(files, network if ports else 0, scopes),
        paths=(
            *_DEVICES,
            *((str(path), readable) for path in (*sandbox.read, *library)),
            *((str(path), WRITE) for path in sandbox.write),
        ),
        ports=ports or (),
        filter=code,
        rlimits=tuple(limits.items()),
        tasks=tasks,
        apart=apart,
        memory=sandbox.memory,
        namespaces=namespaces & machine.namespaces,
        user=user,
    )


def landlock_rights(version: int) -> tuple[int, int, int]:
    """Return all rights that a version of Landlock knows: of files, of the network, and its scopes."""
    files = (1 << _KNOWN[min(version, len(_KNOWN) - 1)]) - 1
    network = _ALL_TCP if version >= _TCP_SINCE else 0
    scopes = _ALL_SCOPES if version >= _SCOPES_SINCE else 0
    return files, network, scopes
