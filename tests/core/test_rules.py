from __future__ import annotations

import pytest

from asyncpool._core.sandbox import rules
from asyncpool._core.sandbox.filters import ALLOW, EPERM, Rule, program
from asyncpool._core.sandbox.rules import (
    base_rules,
    network_rules,
    owner_rules,
    process_rules,
)
from asyncpool._core.sandbox.system_calls import MACHINES, numbers
from tests.helpers.bpf import answer

REFUSED = 0x00050000 | EPERM
THREAD = 0x003D0F00  # what pthread_create() asks clone() for
FORK = 0x01200011  # what fork() of glibc asks clone() for
STREAM, DATAGRAM, SEQPACKET, RAW = 1, 2, 5, 3
UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK = 1, 2, 10, 16, 17, 38, 40
CLOEXEC = 0o2000000


def allowed(given: list[Rule], call: str, *arguments: int) -> bool:
    arch, _ = MACHINES["x86_64"]
    code = program(given, "x86_64")
    said = answer(code, arch, numbers("x86_64")[call], arguments)
    assert said in {ALLOW, REFUSED, 0x00050000 | 38}
    return said == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("reach", ["all", "ports", "none"])
def test_each_call_has_one_rule_and_the_kernel_takes_the_program(
    machine: str,
    forks: bool,  # noqa: FBT001 - a column
    reach: str,
) -> None:
    given = base_rules() + owner_rules() + process_rules(forks=forks)
    given += network_rules(reach=reach)
    calls = [rule.call for rule in given]
    assert sorted(calls) == sorted(set(calls)), "only the first rule of a call counts"
    assert {*calls} <= {*numbers("x86_64"), *numbers("aarch64")}
    code = program(given, machine)
    assert len(code) < 4096  # BPF_MAXINSNS
    assert max(skipped for _, *both, _ in code for skipped in both) < 256


@pytest.mark.parametrize(
    "call",
    [
        word
        for table in (
            rules.OTHER_PROCESSES,
            rules.KERNEL,
            rules.MACHINE,
            rules.SHARED,
            rules.TRUNCATE,
        )
        for word in table.split()
    ],
)
def test_what_no_job_needs_is_refused(call: str) -> None:
    assert not allowed(base_rules(), call)


@pytest.mark.parametrize("call", rules.OF_ONE_PROCESS.split())
def test_a_process_may_be_limited_by_itself_alone(call: str) -> None:
    assert allowed(base_rules(), call, 0)
    assert not allowed(base_rules(), call, 4711)


def test_nobody_takes_the_mark_of_another_worker() -> None:
    assert allowed(base_rules(), "prlimit64", 0, 7)  # RLIMIT_NOFILE
    assert not allowed(base_rules(), "prlimit64", 4711, 7)
    assert not allowed(base_rules(), "prlimit64", 0, 10)
    assert allowed(base_rules(), "setrlimit", 7)
    assert not allowed(base_rules(), "setrlimit", 10)


def test_priorities_are_ones_own() -> None:
    assert allowed(base_rules(), "setpriority", 0, 0)
    assert not allowed(base_rules(), "setpriority", 0, 4711)
    assert not allowed(base_rules(), "setpriority", 2, 0)  # all processes of the user
    assert allowed(base_rules(), "ioprio_set", 1, 0)
    assert not allowed(base_rules(), "ioprio_set", 3, 0)


def test_nobody_types_on_a_terminal() -> None:
    assert allowed(base_rules(), "ioctl", 0, 0x5401)  # TCGETS, of isatty()
    assert not allowed(base_rules(), "ioctl", 0, 0x5412)  # TIOCSTI


def test_libraries_make_threads_by_a_call_that_can_be_checked() -> None:
    arch, _ = MACHINES["x86_64"]
    said = answer(program(base_rules(), "x86_64"), arch, numbers("x86_64")["clone3"])
    assert said == 0x00050000 | 38  # ENOSYS, upon which they use clone()


def test_without_processes_there_are_threads_still() -> None:
    given = process_rules(forks=False)
    assert allowed(given, "clone", THREAD)
    assert not allowed(given, "clone", FORK)
    assert not allowed(given, "clone", THREAD | 0x10000000)  # a user namespace
    for call in ("fork", "vfork", "execve", "execveat"):
        assert not allowed(given, call)


def test_with_processes_there_are_no_namespaces_nor_programs_without_a_name() -> None:
    given = process_rules(forks=True)
    assert allowed(given, "clone", FORK)
    assert allowed(given, "execve")
    assert not allowed(given, "clone", FORK | 0x20000000)  # a PID namespace
    assert not allowed(given, "execveat")


def test_without_a_network_there_are_pairs_that_stay_pairs() -> None:
    given = network_rules(reach="none")
    for family in (UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK):
        assert not allowed(given, "socket", family, STREAM)
    assert allowed(given, "socketpair", UNIX, STREAM | CLOEXEC)
    assert allowed(given, "socketpair", UNIX, SEQPACKET)
    # It could be connected to any socket, /dev/log for one.
    assert not allowed(given, "socketpair", UNIX, DATAGRAM)
    assert not allowed(given, "socketpair", 30, STREAM)
    for call in ("connect", "bind", "listen", "accept", "accept4"):
        assert not allowed(given, call)


def test_with_ports_there_is_tcp_alone() -> None:
    given = network_rules(reach="ports")
    assert allowed(given, "socket", INET, STREAM | CLOEXEC, 0)
    assert allowed(given, "socket", INET6, STREAM, 6)
    assert allowed(given, "connect")
    assert not allowed(given, "socket", INET, STREAM, 262)  # MPTCP
    assert not allowed(given, "socket", INET, DATAGRAM, 0)
    assert not allowed(given, "socket", INET, RAW, 1)
    assert not allowed(given, "socket", UNIX, STREAM, 0)
    # It opens a connection without connect(), where Landlock would look.
    assert allowed(given, "sendto", 3, 0, 10, 0)
    assert not allowed(given, "sendto", 3, 0, 10, 0x20000000)
    assert not allowed(given, "sendmsg", 3, 0, 0x20000000)
    assert not allowed(given, "sendmmsg", 3, 0, 1, 0x20000000)


def test_with_the_whole_network_there_are_the_usual_families() -> None:
    given = network_rules(reach="all")
    for family in (UNIX, INET, INET6, NETLINK):
        assert allowed(given, "socket", family, DATAGRAM)
    for family in (PACKET, ALG, VSOCK):
        assert not allowed(given, "socket", family, STREAM)
