"""The state that a worker keeps between jobs, and how a job retires its worker."""

from __future__ import annotations

from types import SimpleNamespace

from asyncpool._worker.api.context import NO_JOB, running

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable


# The state of this process, if it is a worker.
_states: list[SimpleNamespace] = []


def open_state() -> None:
    """Give this process, which becomes a worker, an empty state."""
    _states.append(SimpleNamespace())


def in_worker() -> bool:
    """Tell whether this process is a worker, of a pool or a cluster, or a fork of one.

    The launcher is no worker, although it imports the preloaded modules and a script with a
    guard.
    """
    return bool(_states)


def worker_state() -> SimpleNamespace:
    """Return the namespace of this worker, for the initializer to fill and jobs to read.

    Each worker process has one.  It is empty at first, and ends with the process.

    Raises:
        RuntimeError: If this process is no worker of a pool.
    """
    if not _states:
        raise RuntimeError("worker_state() was called outside a worker of a pool")
    return _states[0]


# In a worker, the function that tells the pool.
_tell: list[Callable[[], None]] = []


def on_retire(tell: Callable[[], None]) -> None:
    """Have *tell* called by :func:`retire_worker`."""
    _tell[:] = [tell]


def retire_worker() -> None:
    """Make the running job the last one of its worker.

    Call it when the process can no longer be trusted: a C library has corrupt state, or a
    device is lost.  Jobs that wait in this worker go to other workers, and the pool starts
    another worker at once.  Further calls change nothing.

    Raises:
        RuntimeError: If the caller is no job of a pool, or is an earlier broadcast that a
            new worker runs: every new worker would end before its first job.
    """
    job = running.get()
    if job is not None and job[0] == NO_JOB:
        raise RuntimeError(
            "retire_worker() was called in a broadcast that a new worker makes up for; "
            "for fresh workers, await the roll() of the pool"
        )
    if job is None or not _tell:
        raise RuntimeError("retire_worker() was called outside a job of a pool")
    _tell[0]()
