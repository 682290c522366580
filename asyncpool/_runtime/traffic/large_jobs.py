"""Large arguments and outcomes: beside the loop on their way to the queue, and back.

What takes long to pickle comes to the queue when a thread has pickled it, and what takes
long to unpickle ends its job when a thread has done that, and its worker has other jobs
by then.  How it gets into a worker is a matter of ``large_buffers.py``.

Pickling and unpickling of large objects, in a thread of the pool's.

Arguments are pickled before their job comes to the queue, a few jobs ahead, since what
is pickled takes memory for a second time; values are unpickled when their job has left
its worker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

from asyncpool._core.pickling.calls import describe, pack_job
from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.base.threads import Pause, Threads
from asyncpool._runtime.job.job import Job, claim
from asyncpool._runtime.state.admission import Admission
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.state.registry import Failed, load_outcome
from asyncpool.errors import JobNotPicklableError

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


class LargeObjects:
    """The jobs of one pool that are being pickled, or whose outcome is unpickled.

    Args:
        state: The pool.
        threads: Where that is done.
        admission: What is told of those that wait for a worker.
    """

    def __init__(
        self,
        state: PoolState,
        threads: Threads,
        admission: Admission,
    ) -> None:
        self._state = state
        self._max_payload = state.config.worker.max_payload
        self._sizing = state.core.replacements.sizing
        self._admission = admission
        self._packer = Packer(threads, self, ahead=state.config.workers[1] + 1)
        self._unpacker = Unpacker(threads, self)

    # To the queue.

    def pack(self, job: Job[Any], call: Call) -> None:
        """Queue a job, which waits from now on, when its call is pickled."""
        self._state.core.jobs.announce(job.id)
        self._packer.add(job, call)

    def go_on(self) -> None:
        """Pickle more, now that a job has left the queue."""
        self._packer.go_on()

    @decision
    def packed(self, job: Job[Any], payload: bytes | OutOfBandPickle) -> None:
        """Put a job into the queue, unless it is done or too large."""
        if job.done():
            return
        if len(payload) > self._max_payload:
            self.refused(job, too_large(len(payload), self._max_payload))
            return
        job._payload = payload
        now = self._state.loop.time()
        self._state.performer.perform(
            self._state.core.jobs.arrive(
                job.id, job._profile, now, job._options.priority
            )
        )
        if self._sizing.watching:
            self._admission.crowded()

    @decision
    def refused(self, job: Job[Any], error: JobNotPicklableError) -> None:
        """End a job that cannot be sent."""
        claim(error, job)
        self._state.registry.fail(job, error)
        self._state.performer.perform(
            self._state.core.jobs.drop(job.id, self._state.loop.time())
        )

    # From the worker.

    def unpack(self, job: Job[Any], frame: Frame) -> None:
        """Settle a job, which has left its worker, when its outcome is unpickled."""
        self._state.core.closing.landing(job.id)
        self._unpacker.add(job, frame)

    def is_unpacking(self, job: Job[Any]) -> bool:
        """Tell whether the outcome of a job is there."""
        return job.id in self._unpacker.unpacking

    @decision
    def loaded(self, job: Job[Any], outcome: Any) -> None:
        """Settle a job."""
        core, now = self._state.core, self._state.loop.time()
        if self._state.registry.settle(job, outcome):
            self._state.performer.perform(
                core.jobs.give_back({job.id: job._profile}, now)
            )
        self._state.performer.perform(core.jobs.landed(job.id, now))


class PackedJobs(Protocol):
    """What hears of the calls that were pickled: :class:`LargeObjects`."""

    def packed(self, job: Job[Any], payload: bytes | OutOfBandPickle) -> None:
        """Take the call of a job, as it is to travel."""
        ...

    def refused(self, job: Job[Any], error: JobNotPicklableError) -> None:
        """Take note that the call of a job cannot be pickled."""
        ...


class LoadedJobs(Protocol):
    """What hears of the outcomes that were unpickled: :class:`LargeObjects`."""

    def loaded(self, job: Job[Any], outcome: Any) -> None:
        """Take the result of a job, or a :class:`Failed`."""
        ...


class Packer:
    """Pickles the arguments of jobs, in their order.

    Args:
        threads: Where.
        jobs: What hears of those that are pickled.
        ahead: How many jobs may be pickled, or being pickled, that have no worker yet.
    """

    def __init__(
        self,
        threads: Threads,
        jobs: PackedJobs,
        *,
        ahead: int,
    ) -> None:
        self._threads = threads
        self._jobs = jobs
        self._most_ahead = ahead
        self._calls: deque[tuple[Job[Any], Call]] = deque()
        self._ahead: list[Job[Any]] = []
        self._begun = 0

    def add(self, job: Job[Any], call: Call) -> None:
        """Pickle a call as soon as it is its turn."""
        self._calls.append((job, call))
        self.go_on()

    def go_on(self) -> None:
        """Begin with the next one if it may begin."""
        self._ahead = [job for job in self._ahead if job._payload and job._slot is None]
        while self._calls and self._begun + len(self._ahead) < self._most_ahead:
            job, call = self._calls.popleft()
            if job.done():
                continue
            self._begun += 1
            packed = self._threads.pickle(_pack, job, call, unwanted=job.done)
            packed.add_done_callback(partial(self._on_done, job))

    def _on_done(
        self, job: Job[Any], packed: asyncio.Future[bytes | OutOfBandPickle]
    ) -> None:
        self._begun -= 1
        error = None if packed.cancelled() else packed.exception()
        if not job.done() and not packed.cancelled():
            if error is None:
                payload = packed.result()
                if isinstance(payload, OutOfBandPickle):
                    self._ahead.append(job)
                self._jobs.packed(job, payload)
            elif isinstance(error, JobNotPicklableError):
                self._jobs.refused(job, error)
            else:
                self._jobs.refused(job, unpicklable(error))
        self.go_on()


class Unpacker:
    """Loads the outcomes of jobs.

    Args:
        threads: Where.
        jobs: What hears of those that are unpickled.

    Attributes:
        unpacking: The numbers of the jobs whose outcomes are there and not unpickled.
    """

    def __init__(
        self,
        threads: Threads,
        jobs: LoadedJobs,
    ) -> None:
        self._threads = threads
        self._jobs = jobs
        self.unpacking: set[int] = set()

    def add(self, job: Job[Any], frame: Frame) -> None:
        """Load an outcome as soon as it is its turn."""
        self.unpacking.add(job.id)
        loaded = self._threads.pickle(load_outcome, frame, unwanted=job.done)
        loaded.add_done_callback(partial(self._on_done, job))

    def _on_done(self, job: Job[Any], loaded: asyncio.Future[Any]) -> None:
        # Asked for in any case: what nobody asks for, the loop complains about.
        error = None if loaded.cancelled() else loaded.exception()
        if not loaded.cancelled() and not job.done():
            outcome = Failed(error, raised=False) if error else loaded.result()
            self._jobs.loaded(job, outcome)
        self.unpacking.discard(job.id)


def _pack(job: Job[Any], call: Call, pause: Pause) -> bytes | OutOfBandPickle:
    function, args, kwargs = call
    pause()  # it may have waited for others, and be unwanted by now
    return pack_job(function, args, kwargs, number=job._function.number, pause=pause)


def unpicklable(error: BaseException) -> JobNotPicklableError:
    """Return the error for a call that pickle has raised *error* for."""
    refusal = _refusal(f"cannot be pickled: {describe(error)}")
    refusal.__cause__ = error
    return refusal


def too_large(size: int, max_message_size: int) -> JobNotPicklableError:
    """Return the error for a call of *size* bytes."""
    return _refusal(
        f"has {size} bytes when pickled, and max_message_size is {max_message_size}"
    )


def _refusal(why: str) -> JobNotPicklableError:
    return JobNotPicklableError(
        f"the call {why}", direction="arguments", name="the call"
    )
