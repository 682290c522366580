"""Find out what a test has left behind in this process and around it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir

import psutil

from tests.helpers.patience import PATIENCE

# Every process that descends from this one has this in its environment, also when
# it has lost its parents, changed its session and its command line.
MARK = "ASYNCPOOL_TESTS"

_HAS_PROC = sys.platform == "linux"
_SHM = Path("/dev/shm")
_FD = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")


# Who was there before anything was started here, and still is.  To look at each of them
# twice in every test would take a minute in all.
_strangers: set[int] = set()


# What multiprocessing puts before the names of semaphores by default.
_ANYBODYS = "sem.mp-"


def mark_descendants() -> None:
    """Mark what this process starts from here on, and the semaphores that it makes."""
    os.environ[MARK] = f"{os.getpid()}-{time.monotonic_ns()}"
    config = vars(multiprocessing.current_process())["_config"]
    config["semprefix"] = f"/tests-{os.getpid()}"
    _strangers.update(psutil.pids())


def marked_processes() -> dict[int, str]:
    """Return the pid and command line of every living process with our mark."""
    found = {}
    for pid in _newcomers():
        with suppress(psutil.Error, OSError):
            if _is_marked(pid):
                program, *arguments = psutil.Process(pid).cmdline() or [""]
                # The path of the interpreter may be longer than all else.
                found[pid] = " ".join([Path(program).name, *arguments])[:200]
    return found


def _is_marked(pid: int) -> bool:
    # Of each process that others have started meanwhile, twice in every test: psutil would
    # take ten times as long.
    if _HAS_PROC:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        return f"{MARK}={os.environ[MARK]}".encode() in environment.split(b"\0")
    return psutil.Process(pid).environ().get(MARK) == os.environ[MARK]


def _parent(pid: int) -> int:
    if _HAS_PROC:
        # What stands before is the name, which may have any characters.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[1])
    return psutil.Process(pid).ppid()


def _newcomers() -> set[int]:
    living = set(psutil.pids())
    _strangers.intersection_update(living)
    return living - _strangers - {os.getpid()}


# Where the package and its tests open files: what stays open there is theirs.
_THEIRS = (
    *(
        f"{os.path.realpath(folder)}/"
        for folder in (gettempdir(), Path(__file__).parents[2])
    ),
    *("/dev/shm/", "/dev/null", "/dev/pts/", "/dev/tty", "/proc/", "/run/", "/sys/"),
    *("/memfd:asyncpool", "/memfd:semaphore"),
)
# What a C library has opened for the rest of this process, with its descriptor.
_of_libraries: dict[str, int] = {}


def _is_of_a_library(fd: int, target: str) -> bool:
    """Tell whether it is what a C library opens once and keeps, and no test's leak.

    libffi keeps a file of memory for its callbacks, libuuid a clock in /var/lib; which ones there
    are depends on the machine.  What is opened a second time is a leak, wherever it is.
    """
    if not target.startswith("/") or target.startswith(_THEIRS):
        return False
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        return False
    return _of_libraries.setdefault(target, fd) == fd


def open_fds() -> dict[int, str]:
    """Map each open descriptor of this process to what it points at."""
    found = {}
    for name in os.listdir(_FD):
        # The descriptor of listdir() itself is gone by now.
        with suppress(OSError):
            target = os.readlink(_FD / name) if sys.platform == "linux" else "?"
            os.fstat(int(name))
            found[int(name)] = target
    return found


@contextmanager
def few_descriptors(more: int) -> Iterator[None]:
    """Let this process open no more than that many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _shm_entries() -> set[str]:
    return set(os.listdir(_SHM)) if _SHM.is_dir() else set()


def _descendants() -> dict[int, str]:
    """Return what is marked, and children that are not: zombies have no environment."""
    found = marked_processes()
    for pid in _newcomers() - found.keys():
        with suppress(psutil.Error, OSError):
            if _parent(pid) in {os.getpid(), *found}:
                process = psutil.Process(pid)
                found[pid] = f"{process.status()} {process.name()}"
    return found


def _inherited() -> frozenset[int]:
    """Return which of the standard descriptors the processes have that are started here."""
    found = set()
    for fd in range(3):
        with suppress(OSError):
            if os.get_inheritable(fd):
                found.add(fd)
    return frozenset(found)


def _ignored() -> frozenset[int]:
    """Return the signals that this process ignores, and with it all that it starts."""
    every = signal.valid_signals()
    return frozenset(it for it in every if signal.getsignal(it) is signal.SIG_IGN)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there was before a test."""

    fds: dict[int, str] = field(default_factory=open_fds)
    inherited: frozenset[int] = field(default_factory=_inherited)
    threads: frozenset[threading.Thread] = field(
        default_factory=lambda: frozenset(threading.enumerate())
    )
    shm: set[str] = field(default_factory=_shm_entries)
    processes: dict[int, str] = field(default_factory=_descendants)
    ignored: frozenset[int] = field(default_factory=_ignored)

    def leaks(self) -> list[str]:
        """Return a line for everything that was not there before, and end it."""
        # What is only waiting for the collector is no leak.  And what is kept, such as
        # pytest's reports, need not be looked at again after every other test: that
        # would take longer than most tests do, and more with each.
        gc.collect()
        gc.freeze()
        found = [
            f"process {pid}: {what}"
            for pid, what in _descendants().items()
            if pid not in self.processes and _end(pid)
        ]
        found += [
            f"descriptor {fd}: {target}"
            for fd, target in open_fds().items()
            if self.fds.get(fd) != target and not _is_of_a_library(fd, target)
        ]
        found += [
            f"descriptor {fd} is inherited no more"
            for fd in sorted(self.inherited - _inherited())
        ]
        found += [f"signal {it} is ignored" for it in _ignored() - self.ignored]
        found += [f"thread: {thread!r}" for thread in self._new_threads()]
        found += [f"/dev/shm/{name}" for name in self._new_shm()]
        return found

    def _new_threads(self) -> list[threading.Thread]:
        """Return those that are not on their way out (a child watcher's may be)."""
        extra = [t for t in threading.enumerate() if t not in self.threads]
        for thread in extra:
            thread.join(0.5)
        return [thread for thread in extra if thread.is_alive()]

    def _new_shm(self) -> set[str]:
        """Return what stays, and is no other program's."""
        give_up_at = time.monotonic() + PATIENCE
        while extra := _shm_entries() - self.shm:
            extra = {name for name in extra if not _is_anothers(name)}
            if not extra or time.monotonic() > give_up_at:
                return extra
            time.sleep(0.05)
        return set()


def _is_anothers(name: str) -> bool:
    """Tell whether a program that is none of ours has made or uses /dev/shm/*name*.

    Other programs of the machine use the place too, and so do tests side by side.
    """
    if name.startswith(_ANYBODYS):
        return True
    strangers = set(psutil.pids()) - {os.getpid(), *marked_processes()}
    # joblib and loky put the number of their process there.
    if strangers.intersection(map(int, re.findall(r"\b\d+\b", name.replace("_", " ")))):
        return True
    return any(f"{_SHM}/{name}" in used for used in map(_used_by, strangers))


def _used_by(pid: int) -> str:
    """Return what a process has mapped and open, as far as that may be known."""
    found = []
    with suppress(OSError):
        found.append(Path(f"/proc/{pid}/maps").read_text())
        found += [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return "\n".join(found)


def _end(pid: int) -> bool:
    """End a leaked process, so that it is held against one test only."""
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
    return True
