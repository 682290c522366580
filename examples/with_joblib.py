"""A backend of joblib's on supervised workers, and what happens when one of them dies."""

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import joblib
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

import asyncpool


class AsyncpoolBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc] # untyped
    """Runs batches of calls in an executor, which lasts for one ``Parallel``."""

    supports_retrieve_callback = True

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many workers are meant; -1 stands for one on each CPU."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(1, joblib.cpu_count() + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        """Begin a ``Parallel``; of joblib's options only the initializer means something."""
        self.parallel = parallel
        workers = self.effective_n_jobs(n_jobs)
        options = {**self.backend_kwargs, **options}
        self.executor = asyncpool.ProcessPoolExecutor(
            workers,
            initializer=options.get("initializer"),
            initargs=options.get("initargs", ()),
        )
        return workers

    def terminate(self) -> None:
        """End it."""
        self.executor.shutdown(cancel_futures=True)
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: FBT001, FBT002 - joblib's
        """End what is running, since a call has failed or ``timeout`` is over."""
        self.executor.kill_workers()
        self.executor.shutdown()
        if ensure_ready:
            self.configure(self.parallel.n_jobs, self.parallel)

    def submit(
        self, func: Callable[[], Any], callback: Callable[[Future[Any]], None]
    ) -> Future[Any]:
        """Run a batch."""
        future = self.executor.submit(func)
        future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return what came of a batch."""
        return out.result()


joblib.register_parallel_backend("asyncpool", AsyncpoolBackend)


def square(number: int) -> int:
    """Compute."""
    return number * number


def prepare(topping: str) -> None:
    """Have something ready in a new worker."""
    os.environ["TOPPING"] = topping


if __name__ == "__main__":
    with joblib.parallel_config(backend="asyncpool", n_jobs=2):
        parallel = joblib.Parallel()
        print(sum(parallel(joblib.delayed(square)(n) for n in range(100))))
        try:
            parallel([joblib.delayed(os._exit)(3)])
        except asyncpool.WorkerCrashedError as error:
            print("exit code", error.exit_code)
        print("the next sum:", sum(parallel([joblib.delayed(square)(12)])))
        try:
            with joblib.Parallel(timeout=0.5) as impatient:
                impatient([joblib.delayed(time.sleep)(60) for _ in range(2)])
        except multiprocessing.TimeoutError:
            print("nobody waits for those that were too slow")

    with joblib.parallel_config(
        "asyncpool", n_jobs=2, initializer=prepare, initargs=("cherry",)
    ):
        print(*joblib.Parallel()([joblib.delayed(os.getenv)("TOPPING")]))

# Output:
# 328350
# exit code 3
# the next sum: 144
# nobody waits for those that were too slow
# cherry
