"""What joblib asks of a backend, by an executor."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import cached_property
from pickle import PickleBuffer
from types import SimpleNamespace
from typing import Any

import joblib
from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
    default_parallel_config,
)

from asyncpool._wire.pickling import ARRAYS, dump, reduce_array
from asyncpool.executor import ProcessPoolExecutor
from asyncpool.joblib import load_mapped, prepare, run_packed

# What ``Parallel`` passes to every backend.
_FOR_OTHERS = {*default_parallel_config, "context"}

# Smaller arrays travel with each call.
_LARGE = 1 << 20

_numbers = itertools.count()


class _Stored:
    """An array that calls have in common, and a file with it that their workers map.

    As with loky, its owner does not change it while they run.

    Args:
        array: The array.
        first: What the first call needs, with which the array travels like any other.
    """

    def __init__(self, array: Any, first: list[_Stored]) -> None:
        self.array = array  # as long as it exists, no other one has its id
        self.first = id(first)  # no cycle

    @cached_property
    def file(self) -> tuple[str, int]:
        """The path of the file, which exists as long as this object, and a number.

        No other file has both, so that a worker which compares the pickles of globals sees a new one.
        """
        with os.fdopen(os.memfd_create("asyncpool joblib"), "wb") as file:
            joblib.dump(self.array, file)
            fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, fd)
        return f"/proc/{os.getpid()}/fd/{fd}", next(_numbers)


class AsyncpoolBackend(AutoBatchingMixin, ParallelBackendBase):
    """Runs batches of calls in an executor.

    All ``Parallel`` of a ``parallel_config`` have this object in common, and several of them may
    be in use at a time: generators that are not exhausted yet.  They share the executor, which ends
    with this object.
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lock = threading.Lock()  # a generator may be dropped in any thread
        self._executor: ProcessPoolExecutor | None = None
        self._how: dict[str, Any] = {}
        self._pid = 0
        self._users = 0
        self._stored = weakref.WeakValueDictionary[int, _Stored]()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many workers are meant; -1 stands for one on each CPU."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(1, joblib.cpu_count() + 1 + n_jobs)

    def configure(
        self, n_jobs: int = 1, parallel: object = None, **options: Any
    ) -> int:
        """Begin a ``Parallel``, and return how many workers it has."""
        workers = self.effective_n_jobs(n_jobs)
        if workers == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        how = self._arguments(workers, {**self.backend_kwargs, **options})
        with self._lock:
            own = False
            if self._executor is not None and self._pid == os.getpid():
                with contextlib.suppress(Exception):  # it compares arrays, say
                    own = how == self._how
            if not own:
                executor = ProcessPoolExecutor(**how)
                if self._executor is not None:
                    self._executor.shutdown(wait=False)  # when its calls are done
                self._executor, self._how, self._pid = executor, how, os.getpid()
            self._users += 1
            self.parallel = parallel
        return workers

    def _arguments(self, workers: int, options: dict[str, Any]) -> dict[str, Any]:
        how = {k: value for k, value in options.items() if k not in _FOR_OTHERS}
        initializer: Callable[..., object] | None = how.get("initializer")
        initargs: Iterable[Any] = how.get("initargs", ())
        threads = self._prepare_worker_env(n_jobs=workers)
        return {
            **how,
            "max_workers": workers,
            "initializer": prepare,
            "initargs": (initializer, *initargs),
            "worker_env": {**threads, **how.get("worker_env", {})},
        }

    def terminate(self) -> None:
        """End a ``Parallel``; the workers live on for the next one, as long as this object does."""
        with self._lock:
            self._users = max(0, self._users - 1)
            if not self._users:
                # No cycle, with which the workers might live on; a late callback may still ask.
                self.parallel = SimpleNamespace(verbose=0)
                self.reset_batch_stats()

    def __del__(self) -> None:
        if self._executor is not None and self._pid == os.getpid():
            self._executor.shutdown(cancel_futures=True)

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: FBT001, FBT002 - joblib's
        """End what is running, since a call has failed or the time is over."""
        with self._lock:
            aborted, self._executor = self._executor, None
            if ensure_ready or self._users > 1:
                self._executor = ProcessPoolExecutor(**self._how)
        if aborted is not None:
            aborted.kill_workers()
            aborted.shutdown()

    def submit(
        self, func: Callable[[], Any], callback: Callable[[Future[Any]], None]
    ) -> Future[Any]:
        """Run a batch, unless all was aborted in another thread."""
        stored: list[_Stored] = []
        call: tuple[Any, ...] = (func,)
        # If there is no memory, or no descriptor, the executor sends the arrays.  What cannot be
        # pickled it refuses, and says why.
        with contextlib.suppress(Exception):
            call = self._packed(func, stored)
        with self._lock:  # else the executor might be shut down in between
            if self._executor is None:
                future: Future[Any] = Future()
                future.cancel()
                return future
            future = self._executor.submit(*call)
        future.add_done_callback(lambda _: stored.clear())
        future.add_done_callback(callback)
        return future

    def _packed(
        self, func: Callable[[], Any], stored: list[_Stored]
    ) -> tuple[Any, ...]:
        """Pickle a batch; return the call that runs it, and which needs what is *stored*."""

        def reduce(array: Any) -> Any:
            if array.nbytes >= _LARGE and not array.dtype.hasobject:
                it = self._stored.setdefault(id(array), _Stored(array, stored))
                stored.append(it)
                if it.first != id(stored):
                    mode = "c" if array.flags.writeable else "r"
                    return load_mapped, (*it.file, mode)
            return reduce_array(array)

        numpy = sys.modules.get(ARRAYS)
        batch = dump(func, others=lambda: {numpy.ndarray: reduce} if numpy else {})
        return run_packed, b"".join(batch.pieces), *map(PickleBuffer, batch.buffers)

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return what came of a batch."""
        return out.result()
