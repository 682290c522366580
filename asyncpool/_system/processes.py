"""Processes, as both sides see them: how they are started, signalled, and what memory they have.

A launcher, and a worker that is spawned, is a fresh interpreter.  A plain Python runs
``python -P -c BOOTSTRAP ROOT ROLE FD...``.  A frozen program is no Python: it runs its own script,
whatever its command line says.  What makes the tools that freeze programs do something else is the
command line of the standard library's spawn, ``--multiprocessing-fork pipe_handle=FD``.  They, or
``multiprocessing.freeze_support()`` in the script, call ``multiprocessing.spawn.spawn_main``, which
unpickles from the pipe what to call.

A worker handles two signals while it runs a job.  They are real-time signals where the system has
them, because jobs hardly ever use these.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys

# The environment of a fresh interpreter has it until the process has become what it was started for.
# The value is the descriptor of its channel.  A process that runs a program, and still has it,
# was started for another purpose, and must not start others in turn.
MARK = "ASYNCPOOL_STARTS"

# What such a process answers on its channel instead of a greeting.
REFUSAL = b"refused\n"

_FROZEN = "--multiprocessing-fork"

_FIRST = getattr(signal, "SIGRTMIN", None)

# Its handler raises JobCancelled in the main thread, if that still runs the cancelled job.
INTERRUPT = int(signal.SIGUSR1 if _FIRST is None else _FIRST + 11)

# Its handler writes the stacks of all threads to the worker page.
STACKS = int(signal.SIGUSR2 if _FIRST is None else _FIRST + 12)


def greeting() -> bytes:
    """Return the first line on a launcher's channel: whether it can run what this Python runs."""
    threaded = "t" * ("t" in sys.abiflags)
    tag, version = sys.implementation.cache_tag, sys.version.split()[0]
    folder = os.path.realpath(os.path.dirname(getattr(os, "__file__", "")))  # noqa: PTH120 - as the other side
    return f"{tag}{threaded} {version} in {folder!a}\n".encode()


def frozen(executable: str) -> tuple[str, ...]:
    """Return the beginning of the command line of a frozen program."""
    return executable, _FROZEN


def command_line(
    program: tuple[str, ...], role: str, fds: tuple[int, ...]
) -> list[str]:
    """Return the command line of a process in a *role*, which inherits these descriptors.

    If there is one more in it, ``pipe_handle``, the process inherits that too.

    Args:
        program: The beginning of the command line.
        role: ``"launcher"`` or ``"worker"``.
        fds: The descriptors.
    """
    if program[-1] != _FROZEN:
        return [*program, role, *map(str, fds)]
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    # Two pickles, as spawn_main reads them: an empty dictionary, and the object that it is to
    # call, by its name, since not both sides may import it.
    numbers = "".join(f"I{fd}\n" for fd in fds)
    start = f"casyncpool._worker.process\nStart\n(V{role}\n{numbers}tR."
    os.write(writing, b"}." + start.encode())
    os.close(writing)
    return [*program, f"pipe_handle={reading}"]


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, which has a number and no name
        return f"signal {number}"


def memory_at_most(pid: int) -> int:
    """Return an upper bound, in 8 us; 0 if the process is gone.

    Pages that it shares since a fork count in, and shared memory that others have mapped too.
    """
    return sum(_resident(pid))


def private_memory(pid: int) -> int:
    """Return how many bytes of memory a process has to itself; 0 if it is gone.

    What it has of its parent, and has not written to, is not its own.  Nor is memory that other
    processes have mapped too, or files.  This goes through its pages: 6 to 40 us for each
    MiB that is resident.
    """
    anonymous, shared = _resident(pid)
    private = files = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123
            for line in file:
                if line.startswith(b"Private_"):
                    private += int(line.split()[1]) << 10
                elif line.startswith(b"Pss_File:"):
                    files = int(line.split()[1]) << 10
    except OSError:  # an older kernel, or gVisor
        return anonymous
    # Shared memory that nobody else has mapped, such as mmap(-1, ...), is private here; but so is
    # a file.  Pss_File also has a part of the libraries, hence the larger of the two figures.
    return min(anonymous + shared, max(min(anonymous, private), private - files))


def _resident(pid: int) -> tuple[int, int]:
    """Return how much anonymous memory, and how much shared memory that is no file, is resident."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - workers import this
            status = file.read()
        found = [status.partition(name)[2] for name in (b"\nRssAnon:", b"\nRssShmem:")]
        if all(found):
            anonymous, shared = (int(rest.split(None, 1)[0]) << 10 for rest in found)
            return anonymous, shared
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - gVisor has only this
            _, resident, shared_too, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0, 0
    return (resident - shared_too) * mmap.PAGESIZE, 0
