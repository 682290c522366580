from __future__ import annotations

import dataclasses

from asyncpool import Sandbox
from asyncpool._core.sandbox import landlock
from asyncpool._core.sandbox.plan import (
    NEW_NETWORK,
    NEW_USER,
    Machine,
    SandboxPlan,
    make_plan,
    most_tasks,
)
from asyncpool.sandbox import settings_of

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
    return make_plan(settings_of(sandbox, None), machine, LIBRARY)


def test_a_sandbox_without_settings_reaches_what_is_installed_and_nothing_else() -> (
    None
):
    plan = plan_of(Sandbox())
    paths = dict(plan.paths)
    assert {path for path in paths if not path.startswith("/dev/")} == {*LIBRARY}
    assert paths["/usr/lib/python3"] == landlock.READ
    assert plan.files == landlock.files_handled(6)
    assert plan.scopes == landlock.scopes(6)
    assert plan.network == 0, "there are no sockets to look at"
    assert plan.filter
    assert plan.namespaces == NEW_USER | NEW_NETWORK
    assert dict(plan.rlimits) == {
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_NOFILE": (256, 256),
        "RLIMIT_SIGPENDING": (128, 128),
        "RLIMIT_MSGQUEUE": (0, 0),
        "RLIMIT_MEMLOCK": (0, 0),
    }
    assert plan.tasks == 256


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
    assert paths["/data"] == landlock.READ | landlock.EXECUTE
    assert paths["/out"] == landlock.WRITE
    assert plan.workdir == "/out/here"
    assert plan.ports == (80, 443)
    assert plan.network == landlock.BIND_TCP | landlock.CONNECT_TCP
    assert plan.env == (("A", "1"), ("B", "2"))
    assert plan.memory == 1 << 30
    limits = dict(plan.rlimits)
    assert limits["RLIMIT_CPU"] == (2, 3)
    assert plan.tasks == 259
    assert plan.namespaces == NEW_USER, "no way out of a namespace of the network"


def test_descriptors_are_bounded_unless_somebody_else_bounds_them() -> None:
    plan = make_plan(settings_of(Sandbox(), None), HERE, LIBRARY, {"RLIMIT_NOFILE": 9})
    assert "RLIMIT_NOFILE" not in dict(plan.rlimits)


def test_an_open_network_is_not_looked_at() -> None:
    plan = plan_of(Sandbox(network=True, processes=None))
    assert (plan.network, plan.ports, plan.namespaces) == (0, (), NEW_USER)
    assert plan.tasks is None
    assert most_tasks(settings_of(Sandbox(processes=None), None)) is None


def test_root_gives_up_what_makes_it_root() -> None:
    machine = HERE._replace(root=True, namespaces=NEW_NETWORK, counts_processes=False)
    plan = plan_of(Sandbox(), machine)
    assert plan.drop
    assert plan.namespaces == NEW_NETWORK
    assert not plan.apart
    assert not plan_of(Sandbox()).drop


def test_root_gives_each_worker_a_user_for_whom_the_kernel_counts() -> None:
    machine = HERE._replace(root=True, gives_users=True, most_tasks=32768)
    plan = plan_of(Sandbox(), machine)
    assert plan.apart
    assert (plan.tasks, plan.share) == (256, 24576)
    assert plan.filter != plan_of(Sandbox()).filter, "it may have an epoll"
    # A program that it runs would find that two of its users differ.
    assert not plan_of(Sandbox(processes=None), machine).apart
    other = make_plan(settings_of(Sandbox(), (65534, 65534)), machine, ())
    assert not other.apart


def test_the_filter_is_the_same_for_another_user_who_owns_files_of_siblings() -> None:
    settings = settings_of(Sandbox(), (65534, 65534))
    other = make_plan(settings, HERE._replace(root=True), ())
    assert other.filter == plan_of(Sandbox()).filter


def test_what_a_machine_lacks_is_left_out() -> None:
    old = Machine("Linux", "5.4.0", "x86_64")
    plan = plan_of(dataclasses.replace(Sandbox(), network=[80]), old)
    assert (plan.files, plan.network, plan.scopes, plan.filter) == (0, 0, 0, b"")
    elsewhere = plan_of(Sandbox(env={"A": "1"}), Machine("Darwin", "23.1", "arm64"))
    assert elsewhere == SandboxPlan(env=(("A", "1"),))
