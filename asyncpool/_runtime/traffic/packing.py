"""Pickling and unpickling of large objects, in a thread of the pool's.

Arguments are pickled before their job comes to the queue, a few jobs ahead, since what
is pickled takes memory for a second time; values are unpickled when their job has left
its worker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from asyncpool._core.pickling.calls import describe, pack_job
from asyncpool._core.pickling.out_of_band import Parcel
from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.base.threads import Pause, Threads
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.registry import Failed, load_outcome
from asyncpool.errors import JobNotPicklableError

_Call = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


class Packer:
    """Pickles the arguments of jobs, in their order.

    Args:
        threads: Where.
        ahead: How many jobs may be pickled, or being pickled, that have no worker yet.
        on_packed: Called with a job and what it is to travel as.
        on_refused: Called with a job that cannot be pickled.
    """

    def __init__(
        self,
        threads: Threads,
        *,
        ahead: int,
        on_packed: Callable[[Job[Any], bytes | Parcel], None],
        on_refused: Callable[[Job[Any], JobNotPicklableError], None],
    ) -> None:
        self._threads = threads
        self._most_ahead = ahead
        self._on_packed = on_packed
        self._on_refused = on_refused
        self._calls: deque[tuple[Job[Any], _Call]] = deque()
        self._ahead: list[Job[Any]] = []
        self._begun = 0

    def add(self, job: Job[Any], call: _Call) -> None:
        """Pickle a call as soon as it is its turn."""
        self._calls.append((job, call))
        self.go_on()

    def go_on(self) -> None:
        """Begin with the next one if it may begin."""
        self._ahead = [job for job in self._ahead if job.payload and job.slot is None]
        while self._calls and self._begun + len(self._ahead) < self._most_ahead:
            job, call = self._calls.popleft()
            if job.done():
                continue
            self._begun += 1
            packed = self._threads.pickle(_pack, job, call, unwanted=job.done)
            packed.add_done_callback(partial(self._on_done, job))

    def _on_done(self, job: Job[Any], packed: asyncio.Future[bytes | Parcel]) -> None:
        self._begun -= 1
        error = None if packed.cancelled() else packed.exception()
        if not job.done() and not packed.cancelled():
            if error is None:
                payload = packed.result()
                if isinstance(payload, Parcel):
                    self._ahead.append(job)
                self._on_packed(job, payload)
            elif isinstance(error, JobNotPicklableError):
                self._on_refused(job, error)
            else:
                self._on_refused(job, unpicklable(error))
        self.go_on()


class Unpacker:
    """Loads the outcomes of jobs.

    Args:
        threads: Where.
        on_loaded: Called with a job, and what its outcome is.
    """

    def __init__(
        self,
        threads: Threads,
        on_loaded: Callable[[Job[Any], Any], None],
    ) -> None:
        self._threads = threads
        self._on_loaded = on_loaded
        self.jobs: set[int] = set()

    def add(self, job: Job[Any], frame: Frame) -> None:
        """Load an outcome as soon as it is its turn."""
        self.jobs.add(job.id)
        loaded = self._threads.pickle(load_outcome, frame, unwanted=job.done)
        loaded.add_done_callback(partial(self._on_done, job))

    def _on_done(self, job: Job[Any], loaded: asyncio.Future[Any]) -> None:
        # Asked for in any case: what nobody asks for, the loop complains about.
        error = None if loaded.cancelled() else loaded.exception()
        if not loaded.cancelled() and not job.done():
            self._on_loaded(
                job, Failed(error, raised=False) if error else loaded.result()
            )
        self.jobs.discard(job.id)


def _pack(job: Job[Any], call: _Call, pause: Pause) -> bytes | Parcel:
    function, args, kwargs = call
    pause()  # it may have waited for others, and be unwanted by now
    return pack_job(function, args, kwargs, number=job.function.number, pause=pause)


def unpicklable(error: BaseException) -> JobNotPicklableError:
    """Return the error for a call that pickle has raised *error* for."""
    refusal = _refusal(f"cannot be pickled: {describe(error)}")
    refusal.__cause__ = error
    return refusal


def too_large(size: int, max_message: int) -> JobNotPicklableError:
    """Return the error for a call of *size* bytes."""
    return _refusal(f"has {size} bytes when pickled, and max_message is {max_message}")


def _refusal(why: str) -> JobNotPicklableError:
    return JobNotPicklableError(
        f"the call {why}", direction="arguments", name="the call"
    )
