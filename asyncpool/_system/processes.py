"""How much memory a process has to itself, as Linux tells it."""

from __future__ import annotations

import mmap


def memory_at_most(pid: int) -> int:
    """Return an upper bound, in 5 us: pages that it shares since a fork count in; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - workers import this
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * mmap.PAGESIZE


def private_memory(pid: int) -> int:
    """Return how many bytes of memory a process has to itself; 0 if it is gone.

    What it has of its parent, and has not written to, is not its own.  Nor is memory that other
    processes have mapped too, or libraries.  This goes through its pages: 6 to 40 us for each
    MiB that is resident.
    """
    most, private = memory_at_most(pid), 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123
            for line in file:
                if line.startswith(b"Private_"):
                    private += int(line.split()[1]) << 10
    except OSError:  # an older kernel, or gVisor
        return most
    return min(most, private)
