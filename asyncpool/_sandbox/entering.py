"""Carry out the plan of a sandbox: the last thing that this process does in freedom.

Landlock and seccomp hold for the thread that asks for them, and for all that it starts.  So this
happens before the worker has a second thread.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import sys
from importlib.machinery import PathFinder, all_suffixes

from asyncpool._sandbox.filters import NO_RINGS
from asyncpool._sandbox.leftovers import check_leftovers
from asyncpool._sandbox.namespaces import (
    drop_capabilities,
    filter_calls,
    forbid_capabilities,
    forbid_new_privileges,
    new_namespaces,
    restrict,
)
from asyncpool._sandbox.plan import (
    NEW_NETWORK,
    NEW_USER,
    UNUSED_USERS,
    WRITE,
)
from asyncpool._wire.messages import outside

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from asyncpool._sandbox.plan import SandboxPlan
    from asyncpool._worker.process import Preloading

# What is installed may be out of a sandbox's reach.  The modules of this package are not, and idna
# is asked for by each connection.
_NEEDED = (
    "asyncio",
    "cloudpickle",
    "ctypes",
    "encodings.idna",
    "json",
    "logging",
    "resource",
    "select",
    "threading",
    "typing",
)


def enter(
    plan: SandboxPlan,
    folder: str,
    cgroup: str,
    descriptors: Iterable[int],
    preloading: Preloading,
    open_loop: Callable[[], object] | None,
) -> None:
    """Shut this process in.

    Args:
        plan: What is to be done.
        folder: The private folder of this worker.
        cgroup: The folder of its cgroup; empty if it has none.
        descriptors: What this worker needs, beside its standard streams.
        preloading: Knows what has started threads here.
        open_loop: Opens the event loop of its jobs, if that needs an epoll.

    Raises:
        OSError: If the kernel refuses a step.
        RuntimeError: If *preload* has left something that would be outside of the sandbox.
    """
    warm_up()
    _do_without()
    if os.geteuid() == 0:
        forbid_capabilities()
    separate = bool(plan.namespaces) and _separate(plan.namespaces)
    if threads := preloading.left():
        raise RuntimeError(outside(threads))
    check_leftovers(descriptors)
    if cgroup:
        with open(f"{cgroup}/cgroup.procs", "w") as members:  # noqa: PTH123
            members.write("0")
    os.environ.clear()
    os.environ.update({"HOME": folder, "TMPDIR": folder}, **dict(plan.env))
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        vars(tempfile)["tempdir"] = None  # it may have looked already
    os.chdir(folder if plan.workdir is None else plan.workdir)
    os.umask(0o077)
    _become(plan, counted=separate or bool(cgroup))
    for name, limits in plan.rlimits:
        _bound(getattr(resource, name), *limits)
    if plan.memory is not None:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            now = int(file.read().split()[0]) * resource.getpagesize()
        _bound(resource.RLIMIT_AS, now + plan.memory, now + plan.memory)
    if plan.files or plan.filter:
        forbid_new_privileges()
    if plan.files:
        restrict(
            plan.files,
            plan.network,
            plan.scopes,
            (*plan.paths, (folder, WRITE)),
            plan.ports,
        )
    if plan.filter:
        if open_loop is not None:
            filter_calls(NO_RINGS)  # uvloop has one if it can
            open_loop()
        filter_calls(plan.filter)
    sys.meta_path.insert(0, ReachableModules())


def warm_up() -> None:
    """Import these modules, which forked workers then share."""
    for name in set(_NEEDED) - {*sys.modules}:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _separate(flags: int) -> bool:
    """Make the namespaces of a worker; return whether the kernel allows them."""
    user, group = os.getuid(), os.getgid()
    try:
        new_namespaces(flags & (NEW_USER | NEW_NETWORK))
    except OSError:  # they come on top of the rest
        return False
    if flags & NEW_USER:
        # The same numbers inside as outside.
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                file.write(text)
    return True


def _bound(kind: int, soft: int, hard: int) -> None:
    """Lower a limit; one that is lower already stays."""
    most = resource.getrlimit(kind)
    soft, hard = (
        new if old == resource.RLIM_INFINITY else min(old, new)
        for old, new in zip(most, (soft, hard), strict=True)
    )
    resource.setrlimit(kind, (min(soft, hard), hard))


def _become(plan: SandboxPlan, *, counted: bool) -> None:
    """Become the user of the plan, or a root that may do no more than others.

    Args:
        plan: What is to be done.
        counted: Whether the kernel counts the threads of this worker apart.
    """
    if plan.user is not None:
        os.setgroups([])
        os.setresgid(plan.user[1], plan.user[1], plan.user[1])
        os.setresuid(plan.user[0], plan.user[0], plan.user[0])
    elif plan.apart:
        # Of the threads of root the kernel knows no limit.  It counts them, and much else, for the
        # real user; files are opened as the effective one.
        os.setresuid(UNUSED_USERS + os.getpid(), 0, 0)
        os.umask(
            0o007
        )  # that user is of root's group, and access() asks what he may do
        counted = True
    if plan.drop or plan.namespaces:
        drop_capabilities()
    if plan.tasks is None:
        return
    if counted:
        _bound(resource.RLIMIT_NPROC, plan.tasks, plan.tasks)
    elif plan.forks:
        raise OSError(
            "the kernel refuses user namespaces, so it cannot count the processes of a worker: "
            "allow them (kernel.apparmor_restrict_unprivileged_userns=0, for one), delegate a "
            "cgroup to the service, or set processes=0 or None"
        )
    else:
        _bound(resource.RLIMIT_NPROC, plan.share, plan.share)


def _do_without() -> None:
    """Have the standard library do without what the filter refuses, since it is counted.

    Watches of an epoll are counted for the user, and so are descriptors in messages.
    """
    import asyncio.selector_events as loops  # noqa: PLC0415 - most workers are in no sandbox
    import selectors  # noqa: PLC0415 - likewise

    selectors.__dict__["DefaultSelector"] = selectors.PollSelector
    if hasattr(loops, "_HAS_SENDMSG"):  # from Python 3.12 on; it has another way
        loops.__dict__["_HAS_SENDMSG"] = False


class ReachableModules:
    """A finder before all others; it finds what they find, or says why nobody can.

    The kernel lets this process see that a file exists, but not read it.  Without this finder such
    an import would fail in one of two ways that both mislead: there is no such module, or the file
    is not permitted.
    """

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return what is to be imported as *name*; ``None`` if nothing is known of it.

        Raises:
            ModuleNotFoundError: If it is there, and out of reach.
        """
        if path is None and name in sys.builtin_module_names:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            if spec.has_location and spec.origin and not _is_readable(spec.origin):
                raise _out_of_reach(name, spec.origin)
            return spec
        where = _where(name, sys.path if path is None else path)
        if where is not None:
            raise _out_of_reach(name, where)
        return None


def _is_readable(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return False
    except OSError:
        return True  # not a file, such as a member of an archive: its loader knows
    return True


def _where(name: str, path: Sequence[str]) -> str | None:
    """Return the file of a module that its folder's listing would show, if it may be listed."""
    last = name.rpartition(".")[2]
    for folder in path:
        for suffix in ("/__init__.py", *all_suffixes()):
            file = f"{folder}/{last}{suffix}"
            if os.path.exists(file) and not _is_readable(file):  # noqa: PTH110
                return file
    return None


def _out_of_reach(name: str, where: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"the module {name!r} is in {where}, which the sandbox of this worker does not let it "
        f"read: add {name!r} to Pool(preload=...), or its folder to Sandbox(read=...)",
        name=name,
        path=where,
    )
