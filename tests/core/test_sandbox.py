"""Sandboxes: what is refused, what the kernel is asked for, and what it answers."""

from __future__ import annotations

import dataclasses
import itertools
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Sandbox
from asyncpool._sandbox import plan as plans
from asyncpool._sandbox.plan import (
    ALLOW,
    ENOSYS,
    ENOTSUP,
    EPERM,
    ERROR,
    KILL,
    MACHINES,
    NEW_NETWORK,
    NEW_USER,
    NEWEST,
    NO_RINGS,
    Machine,
    SandboxPlan,
    make_plan,
    missing,
    packed,
    program,
)
from asyncpool.sandbox import is_within
from tests.helpers.bpf import answer


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"read": "/data"}, TypeError, "read takes several: ('/data',)"),
        ({"write": [3]}, TypeError, "write takes paths, not 3"),
        ({"read": [""]}, TypeError, "read takes paths as text, not ''"),
        ({"workdir": 3}, TypeError, "workdir must be a path or None, not 3"),
        ({"network": 443}, TypeError, "True, False or numbers of TCP ports, not 443"),
        ({"network": ["443"]}, ValueError, "'443', and the kernel tells ports apart"),
        ({"network": [True]}, TypeError, "takes numbers of TCP ports, not True"),
        ({"network": [70000]}, ValueError, "network: there is no port 70000"),
        ({"env": ["A=1"]}, TypeError, "a mapping of names to values, not ['A=1']"),
        ({"env": {"A": 1}}, TypeError, "env: the value of 'A' must be a str, not 1"),
        (
            {"env": {"A=B": "1"}},
            ValueError,
            "env: 'A=B' cannot be the name of a variable",
        ),
        ({"processes": -1}, ValueError, "processes must be at least 0, not -1"),
        ({"processes": "3"}, TypeError, "processes must be an int or None, not '3'"),
        ({"processes": True}, TypeError, "processes must be an int or None, not True"),
        ({"memory": True}, TypeError, "memory must be an int or None, not True"),
        ({"cpu_seconds": True}, TypeError, "be a number of seconds or None, not True"),
        ({"cpus": True}, TypeError, "cpus must be a number or None, not True"),
        ({"user": False}, TypeError, "or the number of a user, or None, not False"),
        ({"memory": 0}, ValueError, "memory must be > 0 and finite, or None, not 0"),
        ({"memory": 1000}, ValueError, "memory must be at least 8 MiB, not 1000 bytes"),
        ({"cpu_seconds": 0.0}, ValueError, "must be > 0 and finite, or None, not 0.0"),
        ({"cpus": float("inf")}, ValueError, "be > 0 and finite, or None, not inf"),
        ({"strict": 1}, TypeError, "strict must be True or False, not 1"),
        ({"write": ["/"]}, ValueError, "'/': that is no sandbox, name the folders"),
        ({"read": ["/a/b"], "write": ["/a"]}, ValueError, "it by a link before"),
        ({"write": ["/a", "/a/b/c"]}, ValueError, "could replace it by a link before"),
        ({"workdir": "/a", "read": ["/b"]}, ValueError, "no folder of read or write"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    settings: Mapping[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        Sandbox(**settings)
    assert text in str(caught.value)


def test_folders_beside_and_above_a_writable_one_may_be_read() -> None:
    sandbox = Sandbox(read=["/a", "/a/bc", "/a/b"], write=["/a/b"], workdir="/a/b/c")
    assert sandbox.read == ("/a", "/a/bc", "/a/b")


def test_below_a_folder_is_inside_of_it() -> None:
    for path, folder in (("/a", "/a"), ("/a/b", "/a"), ("/a", "/")):
        assert is_within(path, [folder])
    for path, folder in (("/ab", "/a"), ("/a", "/a/b")):
        assert not is_within(path, [folder])


HERE = Machine(
    "Linux",
    "6.12.4",
    "x86_64",
    landlock=6,
    seccomp=True,
    namespaces=NEW_USER | NEW_NETWORK,
    root=False,
    counts_processes=True,
)
LIBRARY = ("/usr/lib/python3",)


def plan_of(sandbox: Sandbox, machine: Machine = HERE) -> SandboxPlan:
    return make_plan(sandbox, None, machine, LIBRARY)


def test_a_sandbox_without_settings_reaches_what_is_installed_and_nothing_else() -> (
    None
):
    plan = plan_of(Sandbox())
    paths = dict(plan.paths)
    assert {path for path in paths if not path.startswith("/dev/")} == {*LIBRARY}
    assert paths["/usr/lib/python3"] == plans.READ
    writable = {path for path in paths if paths[path] & plans.rights("write_file")}
    assert writable == {"/dev/null", "/dev/full"}
    files, _, scopes = plans.landlock_rights(6)
    assert plan.landlock == (files, 0, scopes), "there are no sockets to look at"
    assert plan.filter
    assert plan.namespaces == NEW_USER | NEW_NETWORK
    assert dict(plan.rlimits) == {
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_NOFILE": (256, 256),
        "RLIMIT_SIGPENDING": (128, 128),
        "RLIMIT_MSGQUEUE": (0, 0),
        "RLIMIT_MEMLOCK": (0, 0),
    }
    assert plan.tasks == (256, 24576)


def test_settings_become_rights_and_limits() -> None:
    sandbox = Sandbox(
        read=["/data"],
        write=["/out"],
        workdir="/out/here",
        network=[443, 80, 443],
        env={"B": "2", "A": "1"},
        processes=3,
        memory=1 << 30,
        cpu_seconds=1.5,
    )
    plan = plan_of(sandbox)
    paths = dict(plan.paths)
    assert paths["/data"] == plans.READ | plans.rights("execute")
    assert paths["/out"] == plans.WRITE
    assert plan.workdir == "/out/here"
    assert plan.ports == (80, 443)
    assert plan.landlock == plans.landlock_rights(6), "it may bind nothing, too"
    assert plan.env == (("A", "1"), ("B", "2"))
    assert plan.memory == 1 << 30
    limits = dict(plan.rlimits)
    assert limits["RLIMIT_CPU"] == (2, 3)
    assert plan.tasks == (259, 0), "uncounted processes are refused"
    assert plan.namespaces == NEW_USER, "no way out of a namespace of the network"


def test_root_needs_no_namespace_of_users() -> None:
    machine = HERE._replace(root=True, namespaces=NEW_NETWORK, counts_processes=False)
    plan = plan_of(Sandbox(), machine)
    assert plan.namespaces == NEW_NETWORK
    assert not plan.apart


def test_root_gives_each_worker_a_user_for_whom_the_kernel_counts() -> None:
    machine = HERE._replace(root=True, gives_users=True, most_tasks=32768)
    plan = plan_of(Sandbox(), machine)
    assert plan.apart
    assert plan.tasks == (256, 24576)
    assert plan.filter != plan_of(Sandbox()).filter, "it may have an epoll"
    # A program that it runs would find that two of its users differ.
    assert not plan_of(Sandbox(processes=None), machine).apart
    assert not make_plan(Sandbox(), (65534, 65534), machine, ()).apart


def test_what_a_machine_lacks_is_left_out() -> None:
    old = Machine("Linux", "5.4.0", "x86_64")
    plan = plan_of(dataclasses.replace(Sandbox(), network=[80]), old)
    assert (plan.landlock, plan.filter) == ((0, 0, 0), b"")
    elsewhere = plan_of(Sandbox(env={"A": "1"}), Machine("Darwin", "23.1", "arm64"))
    assert elsewhere == SandboxPlan(env=(("A", "1"),))


@pytest.mark.parametrize(
    ("version", "files", "network", "scopes"),
    [
        (0, 0, 0, 0),
        (1, (1 << 13) - 1, 0, 0),
        (2, (1 << 14) - 1, 0, 0),
        (3, (1 << 15) - 1, 0, 0),
        (4, (1 << 15) - 1, 3, 0),
        (5, (1 << 16) - 1, 3, 0),
        (6, (1 << 16) - 1, 3, 3),
        (9, (1 << 16) - 1, 3, 3),
    ],
)
def test_each_version_is_asked_for_what_it_knows(
    version: int, files: int, network: int, scopes: int
) -> None:
    assert plans.landlock_rights(version) == (files, network, scopes)


def test_who_may_write_makes_no_devices_and_runs_nothing() -> None:
    others = plans.rights("make_char make_block make_sock make_fifo execute")
    assert not plans.WRITE & others
    # By the numbers of the kernel.
    assert (plans.READ, plans.WRITE, plans.OF_A_FILE) == (0x000C, 0x71BE, 0xC007)


GOOD = Machine("Linux", "6.12.4", "x86_64", landlock=6, seccomp=True)
OLD = "run Linux 6.12 or newer"


@pytest.mark.parametrize(
    ("settings", "machine", "ways_out"),
    [
        ({"network": [80]}, GOOD, []),
        (
            {},
            Machine("Darwin", "23.1", "arm64"),
            ["a Linux container or virtual machine"],
        ),
        ({}, GOOD._replace(landlock=1), ["run Linux 6.2 or newer", OLD]),
        ({"network": [80]}, GOOD._replace(landlock=3), ["run Linux 6.7 or newer", OLD]),
        ({}, GOOD._replace(landlock=0), ["lsm= at boot; run Linux 6.2 or newer", OLD]),
        ({}, GOOD._replace(seccomp=False), ["in the container's own profile"]),
        ({}, GOOD._replace(machine="s390x", seccomp=False), ["on one of those"]),
        ({"processes": 3, "cpus": 1}, GOOD, ["Delegate=yes)", "processes=0 or None"]),
        ({"processes": 3}, GOOD._replace(counts_processes=True), []),
        ({"processes": 3, "cpus": 1}, GOOD._replace(limits=("pids", "cpu")), []),
        ({"processes": None}, GOOD, []),
    ],
)
def test_what_is_missing_is_told_with_the_way_out(
    settings: Mapping[str, Any], machine: Machine, ways_out: list[str]
) -> None:
    found = missing(Sandbox(**settings), machine)
    for (_, what), way_out in zip(found, ways_out, strict=True):
        assert what.endswith(way_out)


# The filter of system calls, run as the kernel runs it.

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
TABLES = " ".join(
    text
    for name, text in vars(plans).items()
    if name.startswith("_") and isinstance(text, str) and re.search(r"^\s*\w+:\d", text)
)
NONE, PORTS, ALL = (), (443,), None
THREAD = 0x003D0F00  # what pthread_create() of glibc asks clone() for
MUSL_THREAD = 0x007D0F00  # and that of musl
FORK = 0x01200011  # what fork() of glibc asks clone() for
STREAM, DATAGRAM, SEQPACKET, RAW = 1, 2, 5, 3
UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK = 1, 2, 10, 16, 17, 38, 40
CLOEXEC = 0o2000000
ANONYMOUS = 0x22
WORD = 0xFFFF_FFFF
OTHERS = 0x7FFF_FFFF_0000_0000  # the upper half of a word, which the kernel drops too


def known(machine: str) -> dict[str, int]:
    return dict(plans._numbers(TABLES, MACHINES[machine][1]))


def told(
    number: int,
    *arguments: int,
    ports: tuple[int, ...] | None = NONE,
    forks: bool = False,
    apart: bool = False,
) -> int:
    code = program("x86_64", ports, forks=forks, apart=apart)
    return answer(code, MACHINES["x86_64"][0], number, arguments)


def listed(header: Path) -> dict[str, int]:
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\n", header.read_text())
    return {name.replace("fstatat", "newfstatat"): int(n) for name, n in found} | {
        name: int(n) for name, n in found
    }


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("the headers of the kernel are not installed")
    theirs, ours = listed(HEADERS[machine]), known(machine)
    riscv = {"riscv_flush_icache", "riscv_hwprobe"}
    assert {n: ours[n] for n in ours if n in theirs} == {
        n: theirs[n] for n in ours if n in theirs
    }
    # What this header does not know is newer than the header.
    newest = max(number for name, number in theirs.items() if name != "syscalls")
    assert {ours[n] for n in {*ours} - {*theirs} - riscv} <= {
        *range(newest + 1, NEWEST + 1)
    }
    assert len({*ours.values()}) == len(ours)


@pytest.mark.parametrize(
    ("machine", "ports", "forks"),
    [*itertools.product(MACHINES, [NONE, PORTS, ALL], [False, True])],
)
def test_what_is_in_no_table_is_refused_and_the_kernel_takes_the_program(
    machine: str,
    ports: tuple[int, ...] | None,
    forks: bool,  # noqa: FBT001 - a column
) -> None:
    code = program(machine, ports, forks=forks, apart=True)
    assert len(code) < 4096  # BPF_MAXINSNS
    assert max(skipped for _, *both, _ in code for skipped in both) < 256
    arch, numbers = MACHINES[machine][0], known(machine)
    for number in {*range(NEWEST + 1)} - {*numbers.values()}:
        assert answer(code, arch, number) == ERROR | EPERM
    for name, said in (("read", ALLOW), ("clone3", ENOSYS), ("getxattr", ENOTSUP)):
        assert answer(code, arch, numbers[name]) in {said, ERROR | said}
    # Calls that nobody has looked at, those of x32, and those of programs of 32 bits.
    for number in (NEWEST + 1, 0x40000000, 0xFFFFFFFF):
        assert answer(code, arch, number) == ERROR | ENOSYS
    assert answer(code, 0x40000003, numbers["read"]) == KILL
    # A row of each kind, so that nobody moves one to a table of another sandbox.
    allowed = {
        n for n, number in numbers.items() if answer(code, arch, number) == ALLOW
    }
    assert ("sendmsg" in allowed) == (ports != NONE)
    assert ("listen" in allowed) == (ports is ALL)
    assert ("execve" in allowed) == forks


@pytest.mark.parametrize(
    ("call", "good", "bad", "where"),
    [
        ("mmap", [(0, 0, 3, ANONYMOUS)], [(0, 0, 3, ANONYMOUS | f) for f in (0x40000, 0x2000)], {}),
        ("prlimit64", [(0, 7), (OTHERS, 7)], [(4711, 7), (0, 10)], {}),
        ("setrlimit", [(7,)], [(10,)], {}),
        ("sched_setaffinity", [(0,)], [(4711,)], {}),
        ("setpriority", [(0, 0)], [(0, 4711), (2, 0)], {}),
        ("ioprio_set", [(1, 0)], [(1, 4711), (3, 0)], {}),
        ("ioprio_get", [(1, 0)], [(1, 4711), (3, 0)], {}),
        ("clock_gettime", [(0,), (11,), ((~4711 << 3 | 6) & WORD,)], [((~4711 << 3 | 2) & WORD,)], {}),
        ("prctl", [(15,), (38,)], [(78,), (22,), (0x53564D41,)], {}),
        ("setsockopt", [(3, 1, 9), (3, 6, 8)], [(3, 1, 7), (3, 1, 33), (3, 1, 26)], {"ports": ALL}),
        ("personality", [(0,), (0xFFFFFFFF,)], [(0x40000,)], {}),
        ("ioctl", [(0, 0x5401)], [(0, 0x5412), (0, 0x40086602), (0, 0xC040FF0B)], {}),
        ("fcntl", [(0, 1), (0, 1030)], [(0, 1024), (0, 1026), (0, 1031)], {}),
        ("close_range", [(3, 9, 0), (3, 9, 4)], [(3, 9, 2)], {}),
        ("getsockopt", [(0, 1, 4)], [(0, 1, 77)], {}),
        ("clone", [(THREAD,), (MUSL_THREAD,)], [(FORK,), (THREAD | 1 << 28,), (THREAD & ~0x400,)], {}),
        ("clone", [(THREAD,), (FORK,)], [(FORK | 0x20000000,)], {"forks": True}),
        ("socketpair", [(UNIX, STREAM | CLOEXEC), (UNIX, SEQPACKET)], [(UNIX, DATAGRAM), (30, STREAM)], {}),
        ("socketpair", [(UNIX, DATAGRAM)], [], {"ports": ALL}),
        ("epoll_create1", [], [(0,)], {}),
        ("epoll_create1", [(0,)], [], {"apart": True}),
        ("epoll_create1", [(0,)], [], {"forks": True}),
        ("epoll_create1", [(0,)], [], {"ports": PORTS}),
        ("sendmsg", [], [(0,)], {}),
        ("sendmsg", [(3, 0, 0)], [(3, 0, 0x20000000)], {"ports": PORTS}),
        ("sendto", [(3, 0, 10, 0)], [(3, 0, 10, 0x20000000)], {"ports": PORTS}),
        ("sendmmsg", [(3, 0, 1, 0)], [(3, 0, 1, 0x20000000)], {"ports": PORTS}),
        (
            "socket",
            [(INET, STREAM | CLOEXEC, 0), (INET6, STREAM, 6)],
            [(INET, STREAM, 262), (INET, DATAGRAM, 0), (INET, RAW, 1), (UNIX, STREAM, 0)],
            {"ports": PORTS},
        ),
        (
            "socket",
            [(family, DATAGRAM) for family in (UNIX, INET, INET6, NETLINK)],
            [(family, STREAM) for family in (PACKET, ALG, VSOCK)],
            {"ports": ALL},
        ),
    ],
)  # fmt: skip
def test_arguments_are_looked_at(
    call: str,
    good: list[tuple[int, ...]],
    bad: list[tuple[int, ...]],
    where: dict[str, bool | None],
) -> None:
    number = known("x86_64")[call]
    assert {told(number, *each, **where) for each in good} <= {ALLOW}  # type: ignore[arg-type]
    assert {told(number, *each, **where) for each in bad} <= {ERROR | EPERM}  # type: ignore[arg-type]


def test_uvloop_makes_its_loop_without_a_ring() -> None:
    code = [*struct.iter_unpack("=HBBI", NO_RINGS)]
    assert packed(code) == NO_RINGS
    for machine in MACHINES:
        arch = MACHINES[machine][0]
        assert answer(code, arch, 425) == ERROR | ENOSYS
        assert answer(code, arch, 426) == ALLOW
