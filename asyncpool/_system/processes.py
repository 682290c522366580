"""Other processes: how much memory they have to themselves, as Linux tells it, and signals to them.

A worker handles two signals while it runs a job.  They are real-time signals where the system has
them, because jobs hardly ever use these.
"""

from __future__ import annotations

import mmap
import signal

_FIRST = getattr(signal, "SIGRTMIN", None)

# Its handler raises JobCancelled in the main thread, if that still runs the cancelled job.
INTERRUPT = int(signal.SIGUSR1 if _FIRST is None else _FIRST + 11)

# Its handler writes the stacks of all threads to the worker page.
STACKS = int(signal.SIGUSR2 if _FIRST is None else _FIRST + 12)


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
