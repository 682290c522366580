"""Large arguments and outcomes: beside the loop on their way to the queue, and back.

What takes long to pickle comes to the queue when a thread has pickled it, and what takes
long to unpickle ends its job when a thread has done that, and its worker has other jobs
by then.  How it gets into a worker is a matter of ``large_buffers.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from asyncpool._core.pickling.out_of_band import Parcel
from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.job.job import Job, claim
from asyncpool._runtime.state.admission import Admission
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.traffic.packing import Packer, Unpacker, too_large
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
        self._sizing = state.core.rotation.sizing
        self._admission = admission
        self._packer = Packer(
            threads,
            ahead=state.config.workers[1] + 1,
            on_packed=self._on_packed,
            on_refused=self._on_refused,
        )
        self._unpacker = Unpacker(threads, self._on_loaded)

    # To the queue.

    def pack(self, job: Job[Any], call: Call) -> None:
        """Queue a job, which waits from now on, when its call is pickled."""
        self._state.core.announce(job.id)
        self._packer.add(job, call)

    def go_on(self) -> None:
        """Pickle more, now that a job has left the queue."""
        self._packer.go_on()

    @decision
    def _on_packed(self, job: Job[Any], payload: bytes | Parcel) -> None:
        if job.done():
            return
        if len(payload) > self._max_payload:
            self._on_refused(job, too_large(len(payload), self._max_payload))
            return
        job.payload = payload
        now = self._state.loop.time()
        self._state.performer.perform(
            self._state.core.arrive(job.id, job.profile, now, job.priority)
        )
        if self._sizing.watching:
            self._admission.crowded()

    @decision
    def _on_refused(self, job: Job[Any], error: JobNotPicklableError) -> None:
        """End a job that cannot be sent."""
        claim(error, job)
        self._state.book.fail(job, error)
        self._state.performer.perform(
            self._state.core.drop(job.id, self._state.loop.time())
        )

    # From the worker.

    def unpack(self, job: Job[Any], frame: Frame) -> None:
        """Settle a job, which has left its worker, when its outcome is unpickled."""
        self._state.core.landing(job.id)
        self._unpacker.add(job, frame)

    def is_unpacking(self, job: Job[Any]) -> bool:
        """Tell whether the outcome of a job is there."""
        return job.id in self._unpacker.jobs

    @decision
    def _on_loaded(self, job: Job[Any], loaded: Any) -> None:
        core, now = self._state.core, self._state.loop.time()
        if self._state.book.settle(job, loaded):
            self._state.performer.perform(core.give_back({job.id: job.profile}, now))
        self._state.performer.perform(core.landed(job.id, now))
