"""How a job asks that its worker begins no other one."""

from __future__ import annotations

from asyncpool._worker.api.context import NO_JOB, running

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable

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
