"""Large arguments and results, which the pool's threads pickle and unpickle.

The arguments of a large job are pickled before the job comes into the queue.  That is done
for a few jobs ahead only, since a pickle takes the memory of its objects a second time.  A
large result is unpickled after its job has left the worker, which has other jobs by then.
An outbox moves the pickles into the worker and out of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from asyncpool._engine.job import Failed, PoolJob, attribute_to, load_outcome
from asyncpool._engine.loop import Pause, Threads
from asyncpool._engine.worker import WorkerHandle
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.pickling import too_large, unpicklable
from asyncpool.errors import JobNotPicklableError

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine


Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


class Packer:
    """Pickles the arguments of jobs, in their order; a derived class has a queue for them.

    Args:
        threads: Do the pickling.
        ahead: Returns how many jobs without a worker may be pickled, or in pickling, at once.
        max_payload: The most bytes that a pickle may have, with its large buffers.
    """

    def __init__(
        self, threads: Threads, ahead: Callable[[], int], max_payload: int
    ) -> None:
        self._threads = threads
        self._most_ahead, self._max_payload = ahead, max_payload
        self._calls: deque[tuple[PoolJob[Any], Call]] = deque()
        self._ahead: list[PoolJob[Any]] = []
        self._begun = 0

    def queue(self, job: PoolJob[Any]) -> None:
        """Put a job into the queue, now that it has its payload."""
        raise NotImplementedError

    def refused(self, job: PoolJob[Any], error: JobNotPicklableError) -> None:
        """End a job whose call cannot be pickled."""
        raise NotImplementedError

    def add(self, job: PoolJob[Any], call: Call) -> None:
        """Pickle a call when its turn comes."""
        self._calls.append((job, call))
        self.go_on()

    def go_on(self) -> None:
        """Begin with the next calls, if they may begin; a job that leaves the queue makes room."""
        self._ahead = [job for job in self._ahead if job.payload and job.slot is None]
        while self._calls and self._begun + len(self._ahead) < self._most_ahead():
            job, call = self._calls.popleft()
            if job.done():
                continue
            self._begun += 1
            packed = self._threads.pickle(_pack, job, call, unwanted=job.done)
            packed.add_done_callback(partial(self._on_done, job))

    def packed(self, job: PoolJob[Any], payload: bytes | OutOfBandPickle) -> None:
        """Queue a job whose call is pickled, unless the job is done or the call too large."""
        if job.done():
            return
        if len(payload) > self._max_payload:
            self.refused(job, too_large(len(payload), self._max_payload))
        else:
            job.payload, job.call_size = payload, len(payload)
            self.queue(job)

    def _on_done(
        self, job: PoolJob[Any], packed: asyncio.Future[bytes | OutOfBandPickle]
    ) -> None:
        self._begun -= 1
        # Retrieved in any case: the loop complains about an exception that nobody retrieves.
        error = None if packed.cancelled() else packed.exception()
        if packed.cancelled() or job.done():
            pass
        elif error is None:
            payload = packed.result()
            if isinstance(payload, OutOfBandPickle):
                self._ahead.append(job)
            self.packed(job, payload)
        else:
            if not isinstance(error, JobNotPicklableError):
                error = unpicklable(error)
            self.refused(job, error)
        self.go_on()


class LargeObjects(Packer):
    """The jobs of one pool whose arguments are being pickled, or whose results are unpickled.

    Args:
        engine: The pool's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        ahead, most = lambda: engine.most_workers + 1, engine.config.worker.max_payload
        super().__init__(engine.threads, ahead, most)

    # To the queue.

    def pack(self, job: PoolJob[Any], call: Call) -> None:
        """Pickle a job's call, and queue the job then; it counts as queued from now on."""
        self._engine.core.dispatcher.preparing[job.id] = None
        self.add(job, call)

    def put_off(self, job: PoolJob[Any], payload: bytes | OutOfBandPickle) -> None:
        """Queue a job in the next iteration of the loop; it counts as queued from now on."""
        self._engine.core.dispatcher.preparing[job.id] = None
        self._engine.loop.call_soon(self.packed, job, payload)

    def packed(self, job: PoolJob[Any], payload: bytes | OutOfBandPickle) -> None:
        """Queue a job whose call is pickled, if workers have no older code than it needs."""
        try:
            function = job.function
            self._engine.traffic.check_code(function.name, payload, function.payload)
        except JobNotPicklableError as error:
            if not job.done():
                self.refused(job, error)
        else:
            super().packed(job, payload)

    def queue(self, job: PoolJob[Any]) -> None:
        """Put a job into the queue, or send it to a worker."""
        core = self._engine.core
        with self._engine.turn as now:
            core.submit_prepared(job.id, job.traits, now, job.options.priority)
        if core.lifecycle.sizing.may_grow:
            self._engine.admission.note_queued()

    def refused(self, job: PoolJob[Any], error: JobNotPicklableError) -> None:
        """End a job whose call cannot be pickled."""
        attribute_to(error, job)
        with self._engine.turn as now:
            self._engine.registry.fail(job, error)
            self._engine.core.drop(job.id, now)

    # To the worker, in whose memory the large buffers come first.

    def send(
        self, handle: WorkerHandle, job: PoolJob[Any], pickled: OutOfBandPickle
    ) -> None:
        """Put a job's large buffers where its worker sees them, then send the job.

        The worker gets nothing else before.
        """
        send = partial(self._send_loaded, handle, job, pickled)
        handle.outbox.lend(pickled, send)
        self.go_on()

    def _send_loaded(
        self, handle: WorkerHandle, job: PoolJob[Any], pickled: OutOfBandPickle
    ) -> None:
        """Send a job whose large buffers the worker can see by now."""
        outbox, core = handle.outbox, self._engine.core
        # The pool may have been closed meanwhile, which has failed the job.
        if job.id in self._engine.registry.jobs:
            self._engine.registry.leases.before_sending(job, handle.slot)
            outbox.put_job(job, pickled.payload)
            self._engine.timers.watch_running(job)
        outbox.flush()
        if self._engine.config.worker.concurrency > 1:
            with self._engine.turn as now:
                core.arguments_loaded(handle.slot, now)

    # From the worker.

    def unpack(self, job: PoolJob[Any], frame: Frame, handle: WorkerHandle) -> None:
        """Unpickle the outcome of a job, which has left its worker, and settle the job then."""
        self._engine.core.closing.unpacking[job.id] = None
        if frame.kind is FrameKind.ERROR:
            self._engine.hub.failed(job, handle.slot, frame, handle.since)
        unpack(self._engine.threads, job, frame, partial(self._unpacked, handle))

    def _unpacked(self, handle: WorkerHandle, job: PoolJob[Any], outcome: Any) -> None:
        if type(outcome) is Failed and outcome.distrust:
            handle.distrust(outcome.distrust)
        core = self._engine.core
        with self._engine.turn as now:
            if self._engine.registry.settle(job, outcome):
                core.requeue({job.id: job.traits}, now)
            core.outcome_unpacked(job.id, now)


def unpack(
    threads: Threads,
    job: PoolJob[Any],
    frame: Frame,
    unpacked: Callable[[PoolJob[Any], Any], object],
) -> None:
    """Have a thread unpickle the outcome of a job; *unpacked* is called with it."""

    def on_done(loaded: asyncio.Future[Any]) -> None:
        # Retrieved in any case: the loop complains about an exception that nobody retrieves.
        error = None if loaded.cancelled() else loaded.exception()
        if not loaded.cancelled() and not job.done():
            outcome = Failed(error, may_retry=False) if error else loaded.result()
            unpacked(job, outcome)

    serializer = job.function.serializer
    loading = threads.pickle(load_outcome, serializer, frame, unwanted=job.done)
    loading.add_done_callback(on_done)


async def load_item(threads: Threads, job: PoolJob[Any], frame: Frame) -> Any:
    """Return the item of a stream that is in *frame*.

    Raises:
        JobNotPicklableError: If it cannot be unpickled here.
        ProtocolError: If no worker sends such an item.

    Cancellation:
        Safe.
    """
    serializer, payload = job.function.serializer, frame.payload
    if not serializer.is_heavy(payload):
        return serializer.load_item(payload)
    load: Callable[[Any, Pause], Any] = serializer.load_item
    item = threads.pickle(load, payload, unwanted=job.cancelled)
    try:
        return await item
    finally:
        item.cancel()  # if its reader was closed, which cancels nothing by itself


def _pack(job: PoolJob[Any], call: Call, pause: Pause) -> bytes | OutOfBandPickle:
    function, args, kwargs = call
    pause()  # it may have waited for other calls, and be unwanted by now
    known = job.function
    return known.serializer.pack_job(
        function, args, kwargs, number=known.number, pause=pause
    )
