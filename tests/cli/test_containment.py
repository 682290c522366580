"""What ``asyncpool doctor`` says of machines that can keep hostile workers in, and of others."""

from __future__ import annotations

from asyncpool._cli.doctor.containment import containment
from asyncpool._core.sandbox.plan import NEW_NETWORK, NEW_USER, Machine

NEW = Machine(
    "Linux",
    "6.17.1",
    "x86_64",
    landlock=7,
    seccomp=True,
    namespaces=NEW_USER | NEW_NETWORK,
    limits=("memory", "pids", "cpu"),
    counts_processes=True,
)


def said(machine: Machine) -> dict[str, tuple[str, str]]:
    return {it.name: (it.state, it.detail) for it in containment(machine)}


def test_a_machine_that_can_all() -> None:
    found = said(NEW)
    assert {name for name, (state, _) in found.items() if state != "ok"} == {
        "Sandbox(user=...)"
    }
    assert "256 more than named" in found["Sandbox(processes=1)"][1]
    assert found["Sandbox(memory=...)"][1].startswith("by its cgroup")
    assert said(NEW._replace(root=True))["Sandbox(user=...)"][0] == "ok"


def test_a_machine_without_cgroups_and_namespaces() -> None:
    bare = NEW._replace(limits=(), namespaces=0, counts_processes=False)
    found = said(bare)
    assert found["Sandbox.parser()"][0] == "ok"
    for name in ("Sandbox(processes=1)", "Sandbox(cpus=1)", "Sandbox(memory=...)"):
        assert found[name][0] == "note"
        assert "Delegate=yes" in found[name][1]
    assert found["network namespace"][0] == "note"


def test_an_old_kernel_and_one_without_seccomp() -> None:
    state, text = said(NEW._replace(landlock=0, release="5.10.0"))["Sandbox.parser()"]
    assert state == "note"
    assert "5.10.0, without Landlock" in text
    state, text = said(NEW._replace(seccomp=False))["Sandbox.generated_code()"]
    assert state == "note"
    assert "the kernel refuses seccomp" in text


def test_another_system() -> None:
    found = said(Machine("Darwin", "24.0", "arm64"))
    assert set(found) == {
        "unpickling",
        "Sandbox.parser()",
        "Sandbox.generated_code()",
    }
    assert found["Sandbox.parser()"] == (
        "note",
        (
            "sandbox: a sandbox needs Linux, and this is Darwin; run the service in a Linux "
            "container or virtual machine"
        ),
    )
