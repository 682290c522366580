"""A backend for joblib: its calls run in supervised workers.

:func:`register` tells joblib of it.  The module needs the extra ``joblib``.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

try:
    from joblib import register_parallel_backend
    from joblib.parallel import ParallelBackendBase
except ModuleNotFoundError as _error:
    if _error.name != "joblib":
        raise
    raise ModuleNotFoundError(
        "asyncpool.joblib needs joblib, which is not installed: "
        "pip install 'asyncpool-supervised[joblib]'",
        name=_error.name,
    ) from None

__all__ = ["register"]


def register() -> None:
    """Tell joblib of the backend ``"asyncpool"``, for ``Parallel`` and ``parallel_config``.

    Each ``Parallel`` that runs more than one call at a time has an
    :class:`asyncpool.ProcessPoolExecutor`, which lasts as long as it, or as the ``parallel_config``
    that names the backend.  In its workers the backend is registered too.  ``parallel_config`` and ``Parallel`` also take what the executor takes:
    *initializer*, *initargs*, *max_tasks_per_child*, *mp_context*, *start_timeout*, *worker_output* and, as a
    mapping, *worker_env*.

    If a worker dies, ``Parallel`` raises a :exc:`asyncpool.errors.WorkerCrashedError`.  When a call
    raises, when *timeout* is over, and after Ctrl-C, the calls that are running are ended by
    SIGKILL.

    You may call it any number of times.
    """
    register_parallel_backend("asyncpool", _make_backend)


def _make_backend(**options: Any) -> ParallelBackendBase:
    # Workers register it too, and must not pay for what most of them never use.
    from asyncpool.joblib._backend import AsyncpoolBackend  # noqa: PLC0415

    return AsyncpoolBackend(**options)


# For the backend, in its workers.


def prepare(initializer: Callable[..., object] | None, *initargs: object) -> None:
    """Let calls use the backend by its name too, and call *initializer*."""
    register()
    if initializer is not None:
        initializer(*initargs)


def run_packed(batch: bytes, *buffers: memoryview) -> Any:
    """Run a batch of calls that the backend has pickled."""
    return pickle.loads(batch, buffers=buffers)()  # noqa: S301 - it is the program's


def load_mapped(path: str, _number: int, mode: str) -> Any:
    """Map the array in a file of the backend's, read-only or as a copy that the call may change."""
    import joblib  # noqa: PLC0415

    # A plain array, as the first call got it: a memmap has another hash, say.
    return joblib.load(path, mode).__array__()
