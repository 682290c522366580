from __future__ import annotations

from asyncpool import Sandbox
from asyncpool._core.sandbox.plan import Machine
from asyncpool._core.sandbox.requirements import missing, refusal
from asyncpool.sandbox import settings_of

GOOD = Machine("Linux", "6.12.4", "x86_64", landlock=6, seccomp=True)


def lacks(sandbox: Sandbox, machine: Machine) -> list[str]:
    return [str(each) for each in missing(settings_of(sandbox, None), machine)]


def test_nothing_is_missing_where_all_is_there() -> None:
    assert lacks(Sandbox(network=[80]), GOOD) == []


def test_another_system_is_told_what_to_do() -> None:
    assert lacks(Sandbox(), Machine("Darwin", "23.1", "arm64")) == [
        (
            "sandbox: a sandbox needs Linux, and this is Darwin; run the service in a Linux "
            "container or virtual machine"
        )
    ]


def test_an_old_kernel_is_named_with_the_one_that_is_needed() -> None:
    assert lacks(Sandbox(), GOOD._replace(landlock=1, release="5.15.0")) == [
        (
            "read, write: access to files cannot be refused, since that needs Landlock 3, and "
            "this kernel is 5.15.0; run Linux 6.2 or newer"
        ),
        (
            "sandbox: signals to processes outside of it cannot be refused, since that needs "
            "Landlock 6, and this kernel is 5.15.0; run Linux 6.12 or newer"
        ),
    ]
    assert lacks(Sandbox(network=[80]), GOOD._replace(landlock=3))[0] == (
        "network: connections to other ports cannot be refused, since that needs Landlock 4, "
        "and this kernel is 6.12.4; run Linux 6.7 or newer"
    )


def test_a_kernel_without_landlock_may_have_it_switched_off() -> None:
    assert lacks(Sandbox(), GOOD._replace(landlock=0))[0] == (
        "read, write: access to files cannot be refused, since that needs Landlock 3, and "
        "this kernel is 6.12.4, without Landlock: it is switched on by 'landlock' in lsm= at "
        "boot; run Linux 6.2 or newer"
    )


def test_the_filter_needs_a_processor_that_is_known_and_a_kernel_that_allows_it() -> (
    None
):
    assert lacks(Sandbox(), GOOD._replace(seccomp=False, machine="s390x")) == [
        (
            "network, processes: system calls are filtered on x86_64, aarch64, riscv64, and this "
            "is s390x; run the service on one of those"
        )
    ]
    assert lacks(Sandbox(), GOOD._replace(seccomp=False)) == [
        (
            "network, processes: system calls cannot be filtered, since the kernel refuses "
            "seccomp; allow seccomp in the container's own profile"
        )
    ]


def test_counts_and_shares_need_a_cgroup() -> None:
    delegate = "delegate a cgroup of version 2 to the service (systemd: Delegate=yes)"
    assert lacks(Sandbox(processes=3, cpus=0.5), GOOD) == [
        f"cpus=0.5: the share of the CPUs cannot be limited without a cgroup; {delegate}",
        (
            f"processes=3: the kernel cannot count the processes of each worker; {delegate}, run "
            "it as a user that is not root, or set processes=0 or None"
        ),
    ]
    assert lacks(Sandbox(processes=3), GOOD._replace(counts_processes=True)) == []
    offered = GOOD._replace(limits=("pids", "cpu"))
    assert lacks(Sandbox(processes=3, cpus=0.5), offered) == []
    assert lacks(Sandbox(processes=None), GOOD) == []


def test_a_refusal_says_how_to_go_on_without() -> None:
    found = missing(settings_of(Sandbox(), None), Machine("Darwin", "23.1", "arm64"))
    assert refusal(found) == (
        "this sandbox cannot be enforced here: sandbox: a sandbox needs Linux, and this is "
        "Darwin; run the service in a Linux container or virtual machine; or accept that with "
        "strict=False"
    )
