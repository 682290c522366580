"""What the filter of system calls answers, run as the kernel runs it."""

from __future__ import annotations

import itertools
import re
import struct
from pathlib import Path

import pytest

from asyncpool._core.sandbox import filters
from asyncpool._core.sandbox.filters import (
    ALLOW,
    ENOSYS,
    ENOTSUP,
    EPERM,
    ERROR,
    KILL,
    MACHINES,
    NEWEST,
    NO_RINGS,
    packed,
    program,
)
from tests.helpers.bpf import answer

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
TABLES = " ".join(
    text
    for name, text in vars(filters).items()
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
    return dict(filters._numbers(TABLES, MACHINES[machine][1]))


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
