"""What this machine can keep from a hostile worker; ``docs/threat-model.md`` says what for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncpool._cli.doctor.finding import Finding
from asyncpool._core.sandbox.plan import NEW_NETWORK, NEW_USER, Machine
from asyncpool._core.sandbox.requirements import missing
from asyncpool._runtime.sandbox.machine import this_machine
from asyncpool.sandbox import Sandbox, settings_of

_UNPICKLING = (
    "without a codec the service unpickles results, exceptions, items of streams and maps, and "
    "details of heartbeats that workers send, and a pickle may run any code; with "
    "Pool(codec=...) nothing.  Clusters unpickle messages"
)


def containment(machine: Machine | None = None) -> list[Finding]:
    """Return what can be enforced on *machine*, or on this one."""
    return list(_findings(machine or this_machine()))


def _findings(machine: Machine) -> Iterator[Finding]:
    yield Finding("unpickling", "ok", _UNPICKLING)
    kept = "no files but those that are named, no signals to others"
    yield _enforced("Sandbox.parser()", Sandbox.parser(), machine, kept)
    yield _enforced("Sandbox.generated_code()", Sandbox.generated_code(), machine, kept)
    if machine.system != "Linux":
        return
    one = (
        "processes and threads of each worker are counted together, 256 more than named"
    )
    yield _enforced("Sandbox(processes=1)", Sandbox(processes=1), machine, one)
    yield _enforced("Sandbox(cpus=1)", Sandbox(cpus=1), machine, "by its cgroup")
    yield _memory(machine)
    yield _network(machine)
    yield (
        Finding("Sandbox(user=...)", "ok", "the service is root, and may choose a user")
        if machine.root
        else Finding("Sandbox(user=...)", "note", "only root can choose another user")
    )


def _enforced(name: str, sandbox: Sandbox, machine: Machine, kept: str) -> Finding:
    lacks = missing(settings_of(sandbox, None), machine)
    if lacks:
        return Finding(name, "note", "; ".join(map(str, lacks)))
    return Finding(name, "ok", f"can be enforced: {kept}")


def _memory(machine: Machine) -> Finding:
    name = "Sandbox(memory=...)"
    if "memory" in machine.limits:
        return Finding(name, "ok", "by its cgroup, and by its address space")
    return Finding(
        name,
        "note",
        "bounds the address space of each process, since no cgroup is delegated to this one "
        "(systemd: Delegate=yes)",
    )


def _network(machine: Machine) -> Finding:
    if machine.namespaces & (NEW_NETWORK | NEW_USER):
        return Finding("network namespace", "ok", "each worker can have an empty one")
    return Finding(
        "network namespace",
        "note",
        "workers can have none, so only seccomp and Landlock keep them from the network",
    )
