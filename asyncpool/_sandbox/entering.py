"""Carry out the plan of a sandbox: the last thing that this process does in freedom.

Landlock and seccomp hold for the thread that asks for them, and for all that it starts.  So this
happens before the worker has a second thread.

They, namespaces and capabilities have no functions in the standard library, and of the libraries
that wrap Landlock none does the rest; see ``docs/decisions/codecs-and-sandboxes.md``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import resource
import stat
import struct
import sys
from importlib.machinery import PathFinder, all_suffixes

from asyncpool._sandbox import plan as rules
from asyncpool._sandbox.leftovers import check_leftovers
from asyncpool._wire.messages import threads_outside
from asyncpool._wire.posix import HANDED

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

    from asyncpool._worker.process import Preloading
    from asyncpool._worker.runner import JobRunner

_libc = ctypes.CDLL(None, use_errno=True)

# Calls of which libc has no function; their numbers are the same on every machine.
_NUMBERS = {
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH, _NET_PORT = 1, 2

_PR_GET_SECCOMP, _PR_SET_SECCOMP, _FILTER = 21, 22, 2
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITIES_3 = 0x20080522
_MOST_CAPABILITIES = 64

# What is installed may be out of a sandbox's reach.  The modules of this package are not, and idna
# is asked for by each connection.
_NEEDED = """
asyncio cloudpickle ctypes encodings.idna json logging resource select threading typing
"""


def enter(runner: JobRunner, preloading: Preloading) -> None:
    """Shut this worker in, as its configuration says.

    Args:
        runner: Has the configuration, and what else this worker needs.
        preloading: Knows what has started threads here.

    Raises:
        OSError: If the kernel refuses a step.
        RuntimeError: If *preload* has left something that would be outside of the sandbox.
    """
    config, identity = runner.config, runner.control.identity
    plan, folder = config.sandbox, identity.folder
    assert plan is not None
    warm_up()
    _do_without()
    is_root = os.geteuid() == 0
    if is_root:
        # No program that it runs is to have what makes root more than any other user.
        with contextlib.suppress(OSError):  # the kernel has no more of them
            for number in range(_MOST_CAPABILITIES):
                _call("prctl", _PR_CAPBSET_DROP, number, 0, 0, 0)
        with contextlib.suppress(OSError):
            _call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    is_separate = bool(plan.namespaces) and _separate(plan.namespaces)
    if threads := preloading.left():
        raise RuntimeError(threads_outside(threads))
    handed = [fd for fd in HANDED if fd is not None]
    check_leftovers((*runner.control.fds(), *handed))
    if identity.cgroup:
        with open(f"{identity.cgroup}/cgroup.procs", "w") as members:  # noqa: PTH123
            members.write("0")
    os.environ.clear()
    os.environ.update({"HOME": folder, "TMPDIR": folder})
    os.environ.update((*plan.env, *identity.environment))
    if tempfile := sys.modules.get("tempfile"):
        vars(tempfile)["tempdir"] = None  # it may have looked already
    os.chdir(folder if plan.workdir is None else plan.workdir)
    os.umask(0o077)
    if plan.user is not None:
        user, group = plan.user
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    elif plan.apart:
        # Of the threads of root the kernel knows no limit.  It counts them, and much else, for the
        # real user; files are opened as the effective one.
        os.setresuid(rules.UNUSED_USERS + os.getpid(), 0, 0)
        # That user is of root's group, and access() asks what he may do.
        os.umask(0o007)
    if is_root or plan.namespaces:
        # What makes root more than any other user, for good.
        header = struct.pack("=Ii", _CAPABILITIES_3, 0)
        _call("capset", header, bytes(24))
    limits = dict(plan.rlimits)
    if plan.tasks is not None:
        # Does the kernel count the processes of this worker apart?
        is_counted = is_separate or bool(identity.cgroup) or plan.apart
        most = plan.tasks[0 if is_counted else 1]
        if not most:
            raise OSError(
                "the kernel refuses user namespaces, so it cannot count the processes of a worker: "
                "allow them (kernel.apparmor_restrict_unprivileged_userns=0, for one), delegate a "
                "cgroup to the service, or set processes=0 or None"
            )
        limits["RLIMIT_NPROC"] = most, most
    if plan.memory is not None:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            now = int(file.read().split()[0]) * resource.getpagesize()
        limits["RLIMIT_AS"] = now + plan.memory, now + plan.memory
    for name, bounds in limits.items():
        kind = getattr(resource, name)
        # One that is lower already stays.
        soft, hard = (
            new if old == resource.RLIM_INFINITY else min(old, new)
            for old, new in zip(resource.getrlimit(kind), bounds, strict=True)
        )
        resource.setrlimit(kind, (min(soft, hard), hard))
    if plan.landlock[0] or plan.filter:
        # No program that it runs may have more rights than it has.
        of = "(PR_SET_NO_NEW_PRIVS)"
        _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, of=of)
    if plan.landlock[0]:
        _restrict(plan, folder)
    if plan.filter:
        if config.loop == "uvloop":  # which needs an epoll, and has a ring if it can
            _filter_calls(rules.NO_RINGS)
            runner.loop()
        _filter_calls(plan.filter)
    sys.meta_path.insert(0, ReachableModules())


def warm_up() -> None:
    """Import these modules, which forked workers then share."""
    for name in set(_NEEDED.split()) - {*sys.modules}:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _do_without() -> None:
    """Have the standard library do without what the filter refuses, since it is counted.

    Watches of an epoll are counted for the user, and so are descriptors in messages.
    """
    import asyncio.selector_events as loops  # noqa: PLC0415 - most workers are in no sandbox
    import selectors  # noqa: PLC0415 - likewise

    selectors.__dict__["DefaultSelector"] = selectors.PollSelector
    if hasattr(loops, "_HAS_SENDMSG"):  # from Python 3.12 on; it has another way
        loops.__dict__["_HAS_SENDMSG"] = False


def _separate(flags: int) -> bool:
    """Make the namespaces of a worker; return whether the kernel allows them."""
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", flags)
    except OSError:  # they come on top of the rest
        return False
    if flags & rules.NEW_USER:
        # The same numbers inside as outside.
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                file.write(text)
    return True


def _restrict(plan: rules.SandboxPlan, folder: str) -> None:
    """Let this thread, and all that it starts, do only what the rules grant; by Landlock."""
    layout = struct.pack("=QQQ", *plan.landlock)
    # A kernel that knows only the first of them takes the others too, if they are 0.
    ruleset = _call("landlock_create_ruleset", layout, len(layout), 0)
    for path, granted in (*plan.paths, (folder, rules.WRITE)):
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # the service has checked those that must be there
            continue
        rights = granted & plan.landlock[0]
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= rules.OF_A_FILE
        rule = struct.pack("=Qi", rights, fd)
        # An error ends this process, so nobody has to close anything.
        _call("landlock_add_rule", ruleset, _PATH_BENEATH, rule, 0, of=f" of {path}")
        os.close(fd)
    for port in plan.ports:
        rule = struct.pack("=QQ", rules.CONNECT_TCP, port)
        _call("landlock_add_rule", ruleset, _NET_PORT, rule, 0)
    _call("landlock_restrict_self", ruleset, 0)
    os.close(ruleset)


def _filter_calls(program: bytes) -> None:
    """Filter the system calls of this thread, and of all that it starts."""
    memory = ctypes.create_string_buffer(program)
    # The kernel's struct sock_fprog.
    code = struct.pack("HP", len(program) // 8, ctypes.addressof(memory))
    _call("prctl", _PR_SET_SECCOMP, _FILTER, code, 0, 0, of="(PR_SET_SECCOMP)")


def landlock_version() -> int:
    """Return which version of Landlock the kernel has; 0 for none."""
    try:
        return _call("landlock_create_ruleset", None, 0, _VERSION)
    except OSError:
        return 0


def can_filter() -> bool:
    """Return whether this process may filter its system calls."""
    # Asks for a filter that lies nowhere: a kernel that has filters finds no fault but that.
    try:
        _call("prctl", _PR_GET_SECCOMP, 0, 0, 0, 0)
        _call("prctl", _PR_SET_SECCOMP, _FILTER, 0, 0, 0)
    except OSError as error:
        return error.errno in {errno.EFAULT, errno.EACCES}
    return False


def _call(name: str, *arguments: object, of: str = "") -> int:
    """Make a system call.

    Args:
        name: Its name.
        arguments: Numbers, addresses and the bytes of structures.
        of: What it is about, for the error.

    Raises:
        OSError: If the kernel refuses it.
    """
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if name in _NUMBERS:
        answer = int(_libc.syscall(ctypes.c_long(_NUMBERS[name]), *words))
    else:
        answer = int(getattr(_libc, name)(*words))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{of}: {os.strerror(number)}")
    return answer


class ReachableModules:
    """A finder before all others; it finds what they find, or says why nobody can.

    The kernel lets this process see that a file exists, but not read it.  Without this finder such
    an import would fail in one of two ways that both mislead: there is no such module, or the file
    is not permitted.
    """

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return what is to be imported as *name*; ``None`` if nothing is known of it.

        Raises:
            ModuleNotFoundError: If it is there, and out of reach.
        """
        if path is None and name in sys.builtin_module_names:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None:
            # What its folder's listing would show, if it may be listed.
            folders, last = sys.path if path is None else path, name.rpartition(".")[2]
            ends = f"/{last}/__init__.py", *(f"/{last}{it}" for it in all_suffixes())
            files = [f"{folder}{end}" for folder in folders for end in ends]
        else:
            files = [spec.origin] if spec.has_location and spec.origin else []
        for file in files:
            if _is_out_of_reach(file):
                raise ModuleNotFoundError(
                    f"the module {name!r} is in {file}, which the sandbox of this worker does not "
                    f"let it read: add {name!r} to Pool(preload=...), or its folder to "
                    "Sandbox(read=...)",
                    name=name,
                    path=file,
                )
        return spec


def _is_out_of_reach(path: str) -> bool:
    """Return whether there is such a file, and this process may not read it."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return isinstance(error, PermissionError) and os.path.exists(path)  # noqa: PTH110
    return False
