"""What a worker keeps from one job to the next.

How a job asks that its worker begins no other one.
"""

from __future__ import annotations

from types import SimpleNamespace

from asyncpool._worker.api.context import NO_JOB, running

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable


# The one of this process, if it is a worker.
_states: list[SimpleNamespace] = []


def open_state() -> None:
    """Let this process, which becomes a worker, have a state."""
    _states.append(SimpleNamespace())


def in_worker() -> bool:
    """Tell whether this process is a worker, of a pool or a cluster, or a fork of one.

    The launcher, which imports what is preloaded and a script with a guard, is none.
    """
    return bool(_states)


def worker_state() -> SimpleNamespace:
    """Return the namespace of this worker, for the initializer to fill and jobs to read.

    There is one for each worker process, empty at first, and it is gone with it.

    Raises:
        RuntimeError: If this process is no worker of a pool.
    """
    if not _states:
        raise RuntimeError("worker_state() was called outside a worker of a pool")
    return _states[0]


# What tells the pool, in a worker.
_tell: list[Callable[[], None]] = []


def on_retire(tell: Callable[[], None]) -> None:
    """Have *tell* called by :func:`retire_worker`."""
    _tell[:] = [tell]


def retire_worker() -> None:
    """Have the worker that runs this job begin no other one, and end after it.

    For a job that knows that its process is not what it was: a C library's state is
    corrupt, a device is lost.  Jobs that wait in the worker go to others, and another
    worker is started at once.  Further calls change nothing.

    Raises:
        RuntimeError: If this does not run in a job of a pool, or runs in a broadcast that a
            new worker makes up for: no worker would ever get to a job.
    """
    job = running.get()
    if job is not None and job[0] == NO_JOB:
        raise RuntimeError(
            "retire_worker() was called in a broadcast that a new worker makes up for: "
            "to have fresh workers, await roll() of the pool"
        )
    if job is None or not _tell:
        raise RuntimeError("retire_worker() was called outside a job of a pool")
    _tell[0]()
