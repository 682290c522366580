"""Carry out the plan of a sandbox: the last thing that this process does in freedom.

Landlock and seccomp hold for the thread that asks for them, and for all that it starts.  So this
happens before the worker has a second thread.
"""

from __future__ import annotations

import os
import resource
import sys

from asyncpool._core.policies.starting import outside
from asyncpool._core.sandbox.landlock import CONNECT_TCP, OF_A_FILE, WRITE
from asyncpool._system.confinement import (
    drop_capabilities,
    filter_calls,
    forbid_new_privileges,
    restrict,
)
from asyncpool._worker.process.os_setup import apply_bounds
from asyncpool._worker.sandbox.descriptors import open_descriptors, unknown_descriptors
from asyncpool._worker.sandbox.imports import ReachableModules
from asyncpool._worker.sandbox.preparation import enter_namespaces
from asyncpool._worker.sandbox.trampolines import unshare_trampolines

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpool._core.sandbox.plan import SandboxPlan
    from asyncpool._worker.process.preloading import Preloading


def enter(
    plan: SandboxPlan,
    folder: str,
    cgroup: str,
    descriptors: Iterable[int],
    preloading: Preloading,
) -> None:
    """Shut this process in.

    Args:
        plan: What is to be done.
        folder: The private folder of this worker.
        cgroup: The folder of its cgroup; empty if it has none.
        descriptors: What this worker needs, beside its standard streams.
        preloading: Knows what has started threads here.

    Raises:
        OSError: If the kernel refuses a step.
        RuntimeError: If *preload* has left something that would be outside of the sandbox.
    """
    separate = enter_namespaces(plan.namespaces)
    if threads := preloading.left():
        raise RuntimeError(outside(threads))
    _check_what_is_left(unshare_trampolines(open_descriptors()), descriptors)
    _join(cgroup)
    _settle(plan, folder)
    apply_bounds(0, None, plan.rlimits)
    if plan.tasks is not None:
        _bound_tasks(plan, separate=separate, counted=bool(cgroup))
    if plan.descriptors is not None:
        _bound_descriptors(plan.descriptors)
    if plan.memory is not None:
        _bound_memory(plan.memory)
    _become(plan)
    _close_doors(plan, folder)
    sys.meta_path.insert(0, ReachableModules())


def _check_what_is_left(
    found: Iterable[tuple[int, str]], descriptors: Iterable[int]
) -> None:
    if left := unknown_descriptors(found, descriptors):
        raise RuntimeError(
            f"preload left descriptors open, which jobs would have: {', '.join(left)}; "
            "close them after the import, or name another preload"
        )


def _join(cgroup: str) -> None:
    if cgroup:
        with open(f"{cgroup}/cgroup.procs", "w") as members:  # noqa: PTH123
            members.write("0")


def _settle(plan: SandboxPlan, folder: str) -> None:
    """Take the environment and the folder of the plan."""
    os.environ.clear()
    os.environ.update({"HOME": folder, "TMPDIR": folder}, **dict(plan.env))
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        vars(tempfile)["tempdir"] = None  # it may have looked already
    os.chdir(folder if plan.workdir is None else plan.workdir)
    os.umask(0o077)


def _bound_tasks(plan: SandboxPlan, *, separate: bool, counted: bool) -> None:
    """Bound the number of threads, if the kernel counts those of this worker apart."""
    if separate and plan.tasks is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (plan.tasks, plan.tasks))
    elif plan.forks and not counted:
        raise OSError(
            "the kernel refuses user namespaces, so it cannot count the processes of a worker: "
            "allow them (kernel.apparmor_restrict_unprivileged_userns=0, for one), delegate a "
            "cgroup to the service, or set processes=0 or None"
        )


def _bound_descriptors(most: int) -> None:
    soft, hard = (
        most if limit == resource.RLIM_INFINITY else min(limit, most)
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _bound_memory(more: int) -> None:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        most = int(file.read().split()[0]) * resource.getpagesize() + more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _become(plan: SandboxPlan) -> None:
    """Become the user of the plan, or a root that may do no more than others."""
    if plan.user is not None:
        os.setgroups([])
        os.setresgid(plan.user[1], plan.user[1], plan.user[1])
        os.setresuid(plan.user[0], plan.user[0], plan.user[0])
    if plan.drop or plan.namespaces:
        drop_capabilities()


def _close_doors(plan: SandboxPlan, folder: str) -> None:
    if not (plan.files or plan.filter):
        return
    forbid_new_privileges()
    if plan.files:
        restrict(
            plan.files,
            plan.network,
            plan.scopes,
            (*plan.paths, (folder, WRITE)),
            plan.ports,
            of_a_file=OF_A_FILE,
            connect=CONNECT_TCP,
        )
    if plan.filter:
        filter_calls(plan.filter)
