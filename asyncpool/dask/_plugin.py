"""What Dask asks of a plugin for its workers, by an executor."""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import Worker, WorkerPlugin

from asyncpool.executor import ProcessPoolExecutor


class PoolPlugin(WorkerPlugin):
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
