"""What this process and its machine are: what a pool may use, what children inherit, which script.

And whether a pool can run here at all, and which arguments it takes.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import importlib
import importlib.util
import math
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from asyncpool._core import checks, log_messages as say
from asyncpool._core.options import MAX_WORKERS, WorkerLimits
from asyncpool._engine.life_log import LOGGER
from asyncpool._wire import scripts
from asyncpool._wire.posix import FROZEN, REFUSAL, STARTS, read
from asyncpool._wire.scripts import Script
from asyncpool.errors import UnsupportedPlatformError

# System calls that exist but are refused, as in sandboxes; the pool does without them.
#
# A filter of system calls (seccomp, gVisor) answers with ``EPERM`` or ``ENOSYS``.  So the pool
# learns only from the call itself whether it is allowed.

_REFUSED = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})

_told: set[str] = set()

T = TypeVar("T")


def tell_refusal(call: str, error: OSError, instead: str) -> None:
    """Log that *call* is refused, and what the pool does instead; once for each call.

    Raises:
        OSError: *error*, unless it says that the system call itself is not allowed here.
    """
    if error.errno not in _REFUSED:
        raise error
    if call not in _told:
        _told.add(call)
        say.CALL_REFUSED.log(LOGGER, {"call": call}, why=error, instead=instead)


def answer(ask: Callable[..., T], *about: object) -> T | None:
    """Return what the system answers; ``None`` if it, or a sandbox, refuses to."""
    try:
        return ask(*about)
    except OSError:
        return None


# What arguments there may be.


def not_picklable(owner: object) -> TypeError:
    """Return the error for a pool, or something like one, that a job was given."""
    return TypeError(
        f"cannot pickle a {type(owner).__name__}, which stays in its process: leave it out of "
        "what the job gets, also out of the object whose method is called"
    )


def least_and_most(workers: int | tuple[int, int]) -> tuple[int, int]:
    """Return the least and the greatest number of workers.

    Raises:
        TypeError: If *workers* is neither an int nor two of them.
        ValueError: If they leave a pool without workers, or are more than :data:`MAX_WORKERS`, or
            are in the wrong order.
    """
    pair: Any = workers if isinstance(workers, tuple) else (workers, workers)
    if len(pair) != 2 or isinstance(pair[0], list):  # noqa: PLR2004
        raise TypeError(
            f"workers must be an int, or a pair such as (2, 16), not {workers!r}"
        )
    least, most = (checks.at_least(1)("workers", number) for number in pair)
    if max(least, most) > MAX_WORKERS:
        raise ValueError(
            f"workers must be at most {MAX_WORKERS}, not {max(least, most)}"
        )
    if least > most:
        raise ValueError(f"workers must be the least and the most, not {workers!r}")
    return least, most


# On macOS a fork without exec breaks the system's frameworks: jobs that use Accelerate, as NumPy
# does, or that look for a proxy, crash or hang.
DEFAULT_LAUNCHER: Literal["forkserver", "spawn"] = (
    "spawn" if sys.platform == "darwin" else "forkserver"
)

_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60

# Which field of /proc/PID/stat is the exit status, counted from the state.
_EXIT_CODE = 52 - 3


# How many descriptors a pool leaves for other things, such as starting workers.
_SPARE_DESCRIPTORS = 64


def is_scarce(fd: int) -> bool:
    """Return whether descriptors are scarce here, given that *fd* is the newest."""
    unknown = resource.RLIM_INFINITY, 0
    limit, _ = answer(resource.getrlimit, resource.RLIMIT_NOFILE) or unknown
    # A new descriptor gets the lowest free number, so its number shows how many are open.
    return limit != resource.RLIM_INFINITY and fd >= limit - _SPARE_DESCRIPTORS


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one, here and for child processes."""
    # macOS reports no hard limit, and refuses too high a soft one.
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_platform() -> None:
    """Check that this platform has what a pool needs.

    Raises:
        UnsupportedPlatformError: If something is missing; the text says what.
    """
    if os.name != "posix":
        missing = "a POSIX system, such as Linux or macOS"
    elif not (hasattr(socket, "AF_UNIX") and hasattr(socket, "SCM_RIGHTS")):
        missing = "Unix sockets that pass descriptors"
    elif not program()[0]:
        missing = (
            "the path of a Python interpreter: sys.executable is empty, so name one by "
            "multiprocessing.set_executable()"
        )
    else:
        return
    raise UnsupportedPlatformError(f"asyncpool needs {missing}")


def check_loop_kind(name: str, value: str) -> str:
    """Return an argument that is a kind of event loop which workers can have.

    Raises:
        ValueError: If there is no such kind, or it is not installed.
    """
    checks.one_of(("asyncio", "uvloop"))(name, value)
    if value == "uvloop" and importlib.util.find_spec("uvloop") is None:
        raise ValueError(
            "uvloop is not installed: pip install 'asyncpool-supervised[uvloop]'"
        )
    return value


def module_path() -> tuple[str, ...]:
    """Return ``sys.path`` without entries that the import system would ignore."""
    entries: list[object] = [*sys.path]
    return tuple(entry for entry in entries if isinstance(entry, str))


def working_folder() -> str:
    """Return the path of this process's folder; empty if somebody has removed it.

    It is ``$PWD`` if that leads there, as after ``cd current`` where that is a symbolic link.  A
    deployment has the link lead to its next release, and later workers are to be in that one.
    """
    shown = os.environ.get("PWD", "")
    if shown.startswith("/") and folder_at(shown) == folder_at("."):
        return shown
    return answer(os.getcwd) or ""


def folder_at(path: str) -> tuple[int, int] | None:
    """Return which folder a path leads to now; ``None`` for none."""
    found = answer(os.stat, path)
    return None if found is None else (found.st_dev, found.st_ino)


def inherited() -> tuple[object, ...]:
    """Return all that a child process inherits from this one, and its own children too.

    With the umask, and the signals that it ignores, as far as Linux tells: ``os.umask()`` cannot
    ask without setting another umask for a moment, in which another thread may create a file.
    """
    status = _read(Path("/proc/self/status")).splitlines()
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return (
        tuple(os.environ.items()),
        (os.getuid(), os.geteuid(), os.getgid(), os.getegid(), *os.getgroups()),
        tuple(line for line in status if line.startswith(("Umask:", "SigIgn:"))),
        answer(os.getpriority, os.PRIO_PROCESS, 0),
        frozenset(usable_cores()),
        *(answer(resource.getrlimit, getattr(resource, it)) for it in limits),
    )


def is_stopped(pid: int) -> bool:
    """Return whether SIGSTOP or a debugger has stopped a process, as far as Linux tells."""
    return _stat(pid)[:1] in (["T"], ["t"])


def status_of_zombie(pid: int) -> int | None:
    """Return the exit status of a process that has ended and whose parent has not yet asked for it.

    A negative status means that a signal with that number has ended the process.

    Returns:
        ``None`` if there is no such process, or if Linux does not tell.  It says 0 of processes
        of other users, so that says nothing.
    """
    stat = _stat(pid)
    if stat[:1] != ["Z"] or len(stat) <= _EXIT_CODE:
        return None
    return os.waitstatus_to_exitcode(int(stat[_EXIT_CODE])) or None


def _stat(pid: int) -> list[str]:
    """Return what Linux tells of a process, from its state on; see ``proc_pid_stat(5)``."""
    # The state comes after the process's name, which may contain anything.
    _, _, rest = _read(Path(f"/proc/{pid}/stat")).rpartition(") ")
    return rest.split()


def usable_cpus() -> int:
    """Return how many CPUs this process may use, by affinity and by cgroup quota."""
    cpus = len(usable_cores()) or os.cpu_count() or 1
    for file in _cgroup_files("cpu", "cpu.max", "cpu.cfs_quota_us"):
        # Version 2 has both in one file.
        beside = _read(file.with_name("cpu.cfs_period_us"))
        # No quota is "max", and -1 in version 1.
        with contextlib.suppress(ValueError, ZeroDivisionError):
            quota, period = map(int, f"{_read(file)} {beside}".split())
            cpus = min(cpus, math.ceil(quota / period)) if quota > 0 else cpus
    return max(1, cpus)


def usable_cores() -> set[int]:
    """Return the numbers of the CPUs that this process may use; an empty set if unknown."""
    has = hasattr(os, "sched_getaffinity")
    return (answer(os.sched_getaffinity, 0) if has else None) or set()


def _cgroup_files(controller: str, second: str, first: str) -> Iterator[Path]:
    """Yield a file of each of this process's cgroups, and after it of those that contain it.

    Args:
        controller: Which cgroups.
        second: The name of the file in a cgroup of version 2.
        first: Its name in one of version 1.
    """
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base, name = (
            (_CGROUPS / controller, first) if controllers else (_CGROUPS, second)
        )
        # In a container the path is often that of the host, and not visible here.
        place = base / path.lstrip("/")
        folders = (it for it in (place, *place.parents) if it.is_relative_to(base))
        yield from (folder / name for folder in folders)


class OomKills:
    """How many processes the kernel has killed since memory ran out.

    The count is that of this process's cgroup, if the cgroup counts, else that of the
    machine.  If it has risen while a worker died of a SIGKILL that the pool has not sent,
    that worker was probably one of them.  To find the file with the count takes 0.3 ms, so
    that is done only once and not at every crash.
    """

    def __init__(self) -> None:
        files = _cgroup_files("memory", "memory.events", "memory.oom_control")
        files = chain(files, [Path("/proc/vmstat")])
        self._file = next((file for file in files if oom_kills(file) >= 0), None)

    def count(self) -> int | None:
        """Return the count, or ``None`` if nobody counts."""
        return None if self._file is None else max(oom_kills(self._file), 0)


def oom_kills(file: Path) -> int:
    """Return how many processes a file says were killed since memory ran out; -1 if it says nothing."""
    _, name, rest = f"\n{_read(file)}".partition("\noom_kill ")
    return int(rest.partition("\n")[0]) if name else -1


def memory_limit() -> int | None:
    """Return the smallest memory limit of this process's cgroups in bytes, if there is one."""
    files = _cgroup_files("memory", "memory.max", "memory.limit_in_bytes")
    limits = [int(text) for text in map(_read, files) if text.strip().isdecimal()]
    # No limit is "max" in version 2, and in version 1 a number of bytes that no machine has.
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def cpu_time(pid: int) -> float:
    """Return how many seconds of CPU time a process has used; 0 if it is gone.

    With those of its children that it has waited for.
    """
    # User, system, and both of the children.
    ticks = sum(int(field) for field in _stat(pid)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def check_limits(name: str, value: Any) -> WorkerLimits:
    """Return an argument that is the limits of workers, which this machine can set.

    Raises:
        TypeError: If it is something else.
        UnsupportedPlatformError: If this platform does not offer a limit.
        ValueError: If this machine does not have what a limit names.
    """
    limits = WorkerLimits() if value is None else value
    checks.Argument((WorkerLimits,), "a WorkerLimits")(name, limits)
    watched = limits.max_memory is not None or limits.kill_memory is not None
    if watched and not Path("/proc/self/statm").exists():
        raise UnsupportedPlatformError("max_memory and kill_memory need Linux's /proc")
    if limits.cpu_affinity is not None:
        if not hasattr(os, "sched_setaffinity"):
            raise UnsupportedPlatformError("cpu_affinity needs Linux")
        if not (usable := usable_cores()):
            text = "cpu_affinity: sched_getaffinity is refused here"
            raise UnsupportedPlatformError(text)
        if unusable := set(limits.cpu_affinity) - usable:
            raise ValueError(f"cpu_affinity: this process may not use {unusable}")
    for limit in limits.rlimits:
        if not hasattr(resource, limit):
            raise ValueError(f"rlimits: there is no {limit} here")
    return limits


def _read(path: Path) -> str:
    return read(str(path)).decode(errors="replace")  # a process's name may be any bytes


# Which program this is: how another interpreter is started like it, and what its script is.
#
# ``multiprocessing`` imports each script in its workers, under the name ``__mp_main__``.
# So what a script starts must be behind ``if __name__ == "__main__":``.  This module
# takes that guard as the sign that a script may be imported.

# The new process needs the asyncpool of this process, even if another one is installed.  So its
# directory comes first while asyncpool is imported, and last before anything else is imported.
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); import asyncpool; "
    "sys.path.append(sys.path.pop(0)); "
    "from asyncpool._worker.process import main; main()"
)
_ROOT = str(Path(__file__).parents[2])


def worker_command() -> tuple[str, ...]:
    """Return the command line of a worker that starts as a fresh interpreter, up to its role."""
    executable, is_frozen = program()
    if is_frozen:
        return executable, FROZEN
    # The flags of this interpreter, as multiprocessing passes them on.  No directory comes in
    # front of the path, since any file in it could pose as a module.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
    safe = [] if "-P" in flags else ["-P"]
    return (executable, *flags, *safe, "-c", _BOOTSTRAP, _ROOT)


def program() -> tuple[str, bool]:
    """Return what to start, empty if nobody knows, and whether it is a frozen program."""
    # Nuitka compiles the main module in any case, and this one not always.
    main = sys.modules["__main__"]
    is_frozen = hasattr(sys, "frozen") or hasattr(main, "__compiled__")
    if is_frozen:
        # With this, programs of Nuitka get the right sys.executable.
        importlib.import_module("multiprocessing.spawn")
    spawn = sys.modules.get("multiprocessing.spawn")
    chosen = os.fsdecode(spawn.get_executable() or b"") if spawn is not None else ""
    if chosen and chosen != sys.executable:  # by multiprocessing.set_executable()
        return chosen, False
    if not is_frozen and not sys.orig_argv:
        # This Python is part of another program, which sys.executable may name.
        name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        for prefix in (sys.exec_prefix, sys.base_exec_prefix):
            if os.access(beside := f"{prefix}/bin/{name}", os.X_OK):
                return beside, False
    return sys.executable, is_frozen


HERE, THERE = "__main__", "__mp_main__"


def main_script() -> tuple[str, str, tuple[str, ...]] | None:
    """Return the script that workers import: its module's name, file and arguments.

    ``None`` if what is defined in ``__main__`` travels by value.
    """
    found = _script_of(sys.modules["__main__"])
    return None if found is None else (found.module, found.path, tuple(sys.argv))


@lru_cache(1)
def _script_of(main: ModuleType) -> Script | None:
    """Return the script that *main* is, and have this process know it, once for each ``__main__``."""
    script, file = None, getattr(main, "__file__", None)
    # The user may define more in it.
    grows = hasattr(sys, "ps1") or sys.flags.interactive or hasattr(sys, "frozen")
    if isinstance(file, str) and not grows:
        path = Path(file).absolute()
        # It may be inside an archive, or have a test that is deeper than the stack.
        with contextlib.suppress(OSError, RecursionError):
            if path.is_file():
                name = getattr(getattr(main, "__spec__", None), "name", "")
                known = main.__name__ == THERE
                script = recognise(str(path), path.read_bytes(), name, imported=known)
    scripts.know(script)
    if script is not None:
        # Workers import the script under that name, so pickles from them need it here.
        sys.modules[THERE] = main
    return script


def check_not_imported(what: str) -> None:
    """Check that this process is no worker that imports the script, before it starts a *what*.

    Raises:
        RuntimeError: If it is one, or should be: then each worker would start a pool with workers.
    """
    if (channel := os.environ.get(STARTS)) is not None:
        # If it runs a program, it will never come to the rest.
        if "-c" not in sys.orig_argv:
            with contextlib.suppress(OSError, ValueError):
                socket.socket(fileno=int(channel)).send(REFUSAL)
        raise RuntimeError(
            f"a {what} is started in a process that was itself started to have workers: a frozen "
            "program must call multiprocessing.freeze_support() first under `if __name__ == "
            "'__main__':`, and what each interpreter imports as it starts must start none"
        )
    path = scripts.importing
    if path:
        raise RuntimeError(
            f"a {what} is started while a worker imports the script {path}: put what "
            "starts it under `if __name__ == '__main__':`"
        )


def recognise(
    path: str, source: bytes, module: str = "", *, imported: bool = False
) -> Script | None:
    """Return the script that workers can import; ``None`` if they must not.

    Args:
        path: The file of ``__main__``.
        source: The content of that file.
        module: The name under which ``python -m`` has found it, or ``""``.
        imported: Whether it belongs to a worker, and the process that started the
            worker had it imported.
    """
    if not (imported or b"__name__" in source):
        return None  # there is no guard
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # it is not Python code
        return None
    guarded = imported
    # The names that an import defines; and those that are defined in a part which only runs in
    # ``__main__``, or when a function is called.
    own, elsewhere = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            elsewhere.update(node.names)
    rest: list[tuple[ast.AST, set[str]]] = [(tree, own)]
    while rest:
        node, names = rest.pop()
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                must, may = truth = _truth(test, THERE)
                guarded = guarded or truth != _truth(test, HERE)
                rest.append((test, names))
                rest += [(it, names if may else elsewhere) for it in body]
                rest += [(it, elsewhere if must else names) for it in orelse]
                continue
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
                continue
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp():
                continue
            case ast.GeneratorExp():
                continue
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case _:
                pass
        rest += [(child, names) for child in ast.iter_child_nodes(node)]
    if not guarded:
        return None
    # "__main__" is the name of what "python folder" runs.  An import of that name would
    # find another module.
    module = "" if module in {HERE, THERE} else module
    return Script(module or "", path, frozenset(own), frozenset(own - elsewhere))


# What a comparison of the module's name with others is made of.
_PLAIN = {
    *(ast.Compare, ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Load),
    *(ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Name),
}


def _truth(test: ast.expr, name: str) -> tuple[bool, bool]:
    """Return whether *test* must, and whether it may be true in a module with this name."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        must, may = _truth(test.operand, name)
        return not may, not must
    if isinstance(test, ast.BoolOp):
        parts = zip(*(_truth(value, name) for value in test.values), strict=True)
        must, may = map(any if isinstance(test.op, ast.Or) else all, parts)
        return must, may
    if isinstance(test, ast.Compare) and {type(it) for it in ast.walk(test)} <= _PLAIN:
        code = compile(ast.Expression(test), "<guard>", "eval")
        # There are other names in it, or it looks for one in a number, for example.
        with contextlib.suppress(NameError, TypeError):
            value = bool(eval(code, {"__builtins__": {}, "__name__": name}))  # noqa: S307
            return value, value
    return False, True
