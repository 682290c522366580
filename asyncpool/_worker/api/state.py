"""What a worker keeps from one job to the next."""

from __future__ import annotations

from types import SimpleNamespace

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
