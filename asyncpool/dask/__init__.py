"""Supervised workers for the tasks of Dask: a crash costs one task, and not a Dask worker.

:func:`pool_plugin` gives each Dask worker a pool.  The module needs the extra ``dask``.
"""

from __future__ import annotations

from typing import Any

try:
    from distributed import WorkerPlugin
except ModuleNotFoundError as _error:
    if _error.name not in {"distributed", "dask"}:
        raise
    raise ModuleNotFoundError(
        f"asyncpool.dask needs {_error.name}, which is not installed: "
        "pip install 'asyncpool-supervised[dask]'",
        name=_error.name,
    ) from None

import asyncio

from distributed import Worker, WorkerPlugin

from asyncpool.executor import ProcessPoolExecutor

__all__ = ["pool_plugin"]


# What Dask asks of a plugin for its workers, by an executor.


class _PoolPlugin(WorkerPlugin):
    """Gives each Dask worker an executor; its copies on the Dask workers have one each.

    Args:
        max_workers: How many workers; ``None`` for as many as the Dask worker has threads.
        options: What else executors take.
    """

    name = "asyncpool"

    def __init__(self, max_workers: int | None, options: dict[str, Any]) -> None:
        self._max_workers = max_workers
        self._options = options

    def setup(self, worker: Worker) -> None:
        """Give *worker* an executor; its pool begins with the first task."""
        workers = self._max_workers
        if workers is None:
            workers = worker.state.nthreads
        worker.executors[self.name] = ProcessPoolExecutor(workers, **self._options)

    async def teardown(self, worker: Worker) -> None:
        """Take it away, and kill what still runs.

        Dask would only wait for that, and so would the end of the interpreter.
        """
        executor = worker.executors.pop(self.name)
        assert isinstance(executor, ProcessPoolExecutor)
        executor.kill_workers()
        await asyncio.to_thread(executor.shutdown)


def pool_plugin(max_workers: int | None = None, **options: Any) -> WorkerPlugin:
    """Return what gives each Dask worker a :class:`asyncpool.ProcessPoolExecutor`, ``"asyncpool"``.

    Register it with ``client.register_plugin(pool_plugin())``.  Then
    ``with dask.annotate(executor="asyncpool"):`` has the tasks run there that are made in it.

    If a task ends its process, it alone fails, with a :exc:`WorkerCrashedError`, or Dask runs it
    again as often as its ``retries`` say.  The Dask worker goes on, with its data and its other
    tasks.  Each pool starts with its first task.  When a Dask worker closes, or the plugin is
    unregistered, what still runs is killed.

    Args:
        max_workers: How many workers each pool has; by default as many as its Dask worker
            runs tasks at a time.
        **options: What :class:`asyncpool.ProcessPoolExecutor` takes, such as *initializer*.
            The client raises what is wrong with them, as it registers the plugin.
    """
    return _PoolPlugin(max_workers, options)
