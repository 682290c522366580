"""What a sandbox asks of the machine, and the texts for those whose machine lacks it."""

from __future__ import annotations

from asyncpool._core.base.records import Record
from asyncpool._core.sandbox.filters import MACHINES
from asyncpool._core.sandbox.landlock import KERNELS, SCOPES_SINCE, TCP_SINCE

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncpool._core.sandbox.plan import Machine, Settings

_FILES_SINCE = 3  # before that, whoever may read a file may empty it
_NO_STRICT = "or accept that with strict=False"


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
    return (
        *_landlock(settings, machine),
        *_seccomp(machine),
        *_cgroup(settings, machine),
    )


def refusal(lacks: tuple[Missing, ...]) -> str:
    """Return the text for a pool that does not start."""
    parts = "; ".join(map(str, lacks))
    return f"this sandbox cannot be enforced here: {parts}; {_NO_STRICT}"


def _landlock(settings: Settings, machine: Machine) -> Iterator[Missing]:
    yield from _since(machine, _FILES_SINCE, "read, write", "access to files")
    if settings.ports:
        yield from _since(machine, TCP_SINCE, "network", "connections to other ports")
    yield from _since(
        machine, SCOPES_SINCE, "sandbox", "signals to processes outside of it"
    )


def _since(machine: Machine, since: int, setting: str, what: str) -> Iterator[Missing]:
    if machine.landlock >= since:
        return
    kernel = f"this kernel is {machine.release}"
    if not machine.landlock:
        kernel += ", without Landlock: it is switched on by 'landlock' in lsm= at boot"
    text = f"{what} cannot be refused, since that needs Landlock {since}, and {kernel}"
    yield Missing(setting, text, f"run Linux {KERNELS[since]} or newer")


def _seccomp(machine: Machine) -> Iterator[Missing]:
    if machine.seccomp:
        return
    if machine.machine not in MACHINES:
        what = f"system calls are filtered on {', '.join(MACHINES)}, and this is {machine.machine}"
        cure = "run the service on one of those"
    else:
        what = "system calls cannot be filtered, since the kernel refuses seccomp"
        cure = "allow seccomp in the container's own profile"
    yield Missing("network, processes", what, cure)


def _cgroup(settings: Settings, machine: Machine) -> Iterator[Missing]:
    cure = "delegate a cgroup of version 2 to the service (systemd: Delegate=yes)"
    if settings.cpus is not None and "cpu" not in machine.limits:
        what = "the share of the CPUs cannot be limited without a cgroup"
        yield Missing(f"cpus={settings.cpus:g}", what, cure)
    counted = machine.counts_processes or "pids" in machine.limits
    if settings.processes and not counted:
        what = "the kernel cannot count the processes of each worker"
        cure += ", run it as a user that is not root, or set processes=0 or None"
        yield Missing(f"processes={settings.processes}", what, cure)
