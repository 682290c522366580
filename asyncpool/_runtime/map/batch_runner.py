"""The items of a map: how they become jobs, and how each gets its outcome.

The items of a *batch* follow one another.  A batch is complete when each of its items has an
outcome.  It begins as one job.  That job may end before all of its items are done, since one
item takes long, or has killed the worker.  Then the other items go on in other jobs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from asyncpool._core.base.job_traits import UNKNOWN
from asyncpool._core.base.names import function_name
from asyncpool._core.main.main_module import Abroad
from asyncpool._core.map.chunks import LOST, Failure, run_chunk
from asyncpool._core.map.pace import Pace
from asyncpool._core.pickling.functions import travels_by_name
from asyncpool._core.pickling.out_of_band import dumps_call
from asyncpool._core.policies.attempts import AttemptPolicy
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._runtime.job.chunk_job import ChunkJob
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.map.batches import Batch, Part, Task, TimeSlice
from asyncpool._runtime.map.map_backend import MapBackend
from asyncpool._runtime.state.draining import MapHold
from asyncpool._runtime.traffic.large_jobs import unpicklable
from asyncpool.enums import Delivery
from asyncpool.errors import (
    AsyncPoolError,
    JobNotPicklableError,
    JobTimeoutError,
    NodeLostError,
    PoolFullError,
    WorkerCrashedError,
)

# With a shorter timeout for each item, chunks have one item: to find out that an item is long
# takes too much of the time of those behind it.
_SHORTEST_TIMEOUT = 0.1

# So many slow items travel for each one that tells how long it took.  In a chunk a large result
# is pickled twice.
_PROBE_EVERY = 32


class BatchRunner:
    """Runs the batches of one map.

    Args:
        backend: The pool.
        task: What the map does with each item.
        chunksize: How many items travel as one job; ``None`` lets the pool choose.
        buffersize: How many items may be drawn and not yielded; ``None`` lets the pool choose.
        hold: Keeps the pool open meanwhile.
        on_complete: Called with a batch when all of its items have an outcome.
        on_held: Called when a part must wait for room in the queue.

    Attributes:
        pace: Decides how many items travel as one job, and how many are drawn.
    """

    def __init__(
        self,
        backend: MapBackend,
        task: Task,
        *,
        chunksize: int | None,
        buffersize: int | None,
        hold: MapHold,
        on_complete: Callable[[Batch], None],
        on_held: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._task = task = task._replace(options=replace(task.options, hold=hold))
        self._on_complete = on_complete
        self._on_held = on_held
        # A pool that is data only sends each item by itself.
        data_only = task.options.codec is not None
        with Abroad() if backend.is_remote else nullcontext():
            self._packed = None if data_only else _pack(task.function)
            self._named = travels_by_name(task.function)
        self._name = function_name(task.function)
        alone = backend.fresh or self._packed is None or not _may_share(task.options)
        self._probes = backend.is_remote and not alone
        self._singles = 0
        if backend.fresh and chunksize not in {None, 1}:
            raise ValueError(
                f"chunksize is {chunksize}, and in a pool with fresh=True each item has a worker "
                "of its own"
            )
        if backend.counts_jobs and chunksize is None:
            chunksize = 1  # max_jobs counts each item, unless the user asks for chunks
        self.pace = Pace(
            chunksize=chunksize,
            buffersize=buffersize,
            alone=alone,
            lanes=backend.concurrency,
        )
        self._together = replace(
            task.options,
            attempts=AttemptPolicy(),
            via="map",
            name=self._name,
        )
        self._jobs: set[Job[Any]] = set()
        self._held: deque[Part] = deque()
        # Chunks that have come back, and that nobody has looked at yet.
        self._returned: deque[tuple[Part, ChunkJob[Any]]] = deque()
        self._unloading = False
        self._loop = asyncio.get_running_loop()
        self._ended = False

    @property
    def full(self) -> bool:
        """Whether a part waits for room in the pool's queue."""
        return bool(self._held)

    @property
    def running(self) -> bool:
        """Whether any job of the map is open."""
        return bool(self._jobs)

    def stop(self) -> None:
        """Cancel the open jobs, and send nothing more."""
        self._ended = True
        self._held.clear()
        for job in list(self._jobs):
            job.cancel()

    def send(self, part: Part) -> None:
        """Submit *part*, or keep it until the queue has room."""
        if self._held:
            self._held.append(part)
            return
        is_chunk = part.count > 1 or (self._probes and self._is_probe(part))
        if is_chunk and self._backend.are_stored(part.items, star=self._task.star):
            self._send_each(part)
            return
        args: tuple[Any, ...] = ()
        if not is_chunk:
            try:
                args = self._task.arguments(part.items[0])
            except Exception as error:  # noqa: BLE001 - the item's own code may run
                self._fail(part, Failure(error))
                return
        try:
            job = self._submit_chunk(part) if is_chunk else self._submit(part, args)
        except PoolFullError:
            self._held.append(part)
            self._on_held()  # perhaps no job is open whose end would wake the map
        except AsyncPoolError as error:  # the pool has ended
            self._fail(part, Failure(error))
        except (SystemExit, KeyboardInterrupt) as error:
            # It may come from a signal handler, so it goes on; but nothing may wait for the part.
            self._fail(part, Failure(unpicklable(error)))
            raise
        else:
            self._jobs.add(job)
            job.add_done_callback(partial(self._on_done, part))

    def _is_probe(self, part: Part) -> bool:
        """Tell whether a single item travels as a chunk, whose result tells how long it took.

        A remote job does not tell that.
        """
        if part.alone:
            return False
        if not self.pace.is_slow:
            return True
        self._singles += 1
        return self._singles % _PROBE_EVERY == 0

    def _submit_chunk(self, part: Part) -> Job[Any]:
        names = {
            "star": self._task.star,
            "named": self._named,
            "max_payload": self._backend.max_payload,
        }
        args = self._packed, part.items
        return self._task.submit(run_chunk, args, names, self._together)

    def _submit(self, part: Part, args: tuple[Any, ...]) -> Job[Any]:
        options = self._task.options
        if part.attempts:
            options = replace(options, begun=part.attempts)
        return self._task.submit(self._task.function, args, {}, options)

    def send_held(self) -> None:
        """Submit the parts that the queue had no room for."""
        held, self._held = self._held, deque()
        while held and not self._held:
            self.send(held.popleft())
        self._held += held

    def _send_each(self, part: Part) -> None:
        """Submit each item of *part* as a job of its own."""
        for offset in range(part.offset, part.offset + part.count):
            self.send(Part(part.batch, offset, 1, alone=True))

    def _send_rest(self, part: Part, done: int) -> None:
        """Submit the items of *part* that were not begun."""
        offset, end = part.offset + done, part.offset + part.count
        while offset < end:
            count = min(self.pace.size(self._backend.most_workers), end - offset)
            self.send(Part(part.batch, offset, count))
            offset += count

    # The way of items back from jobs.

    def _on_done(self, part: Part, job: Job[Any]) -> None:
        self._jobs.discard(job)
        if self._ended:
            _ = (
                job.cancelled() or job.exception()
            )  # marks it as retrieved; nobody needs it
        elif job.cancelled():
            self._fail(part, Failure(asyncio.CancelledError()))
        elif isinstance(job, ChunkJob):
            job.exception()  # marks it as retrieved, even if nobody looks at it later
            self._returned.append((part, job))
            if not self._unloading:
                self._unloading = True
                self._loop.call_soon(self._unload)
        else:
            error = job.exception()
            outcome = job.result() if error is None else Failure(error)
            failed = error is not None
            self._settle(part.batch, part.offset, [outcome], failed=failed)
            cost = job._function.traits.cost
            if cost < UNKNOWN:
                self.pace.note(1, cost)
            else:
                self.pace.ended(self._loop.time())
        if self._held:
            self.send_held()

    def _unload(self) -> None:
        """Take the outcomes of chunks, as many as there is time for in one turn of the loop."""
        turn = TimeSlice()
        self._unloading = False
        while self._returned and not self._ended:
            self._on_chunk(*self._returned.popleft())
            if turn.over:
                self._unloading = True
                self._loop.call_soon(self._unload)
                break

    def _on_chunk(self, part: Part, job: ChunkJob[Any]) -> None:
        error, figures = job.exception(), job._function.figures
        if error is None:
            result = job.result()
            outcomes = result.load()
            figures.items += len(outcomes)
            self.pace.note(len(outcomes), result.microseconds)
            self._take_in(part, outcomes)
            self._send_rest(part, len(outcomes))
        elif job.found is not None:
            # The item that ran last has ended the chunk, so it gets the chunk's error.
            outcomes = [Failure(error) if one is LOST else one for one in job.found]
            outcomes = [*outcomes, Failure(error)][: part.count]
            figures.items += len(outcomes)
            self._take_in(part, outcomes)
            self._send_rest(part, len(outcomes))
        elif _is_of_all(error):
            self._fail(part, Failure(error))
        else:
            # None of the items has begun, since a chunk that has begun notes each outcome.  Alone,
            # each item shows whether it is the cause.
            self._send_each(part)

    def _take_in(self, part: Part, outcomes: list[Any]) -> None:
        """Take outcomes; send each item that is to be tried again as a job of its own."""
        once = self._task.options.attempts.max_attempts == 1
        failed = _any_failed(outcomes)
        if once or not failed:
            self._settle(part.batch, part.offset, outcomes, failed=failed)
            return
        for offset, outcome in enumerate(outcomes, part.offset):
            if type(outcome) is Failure and self._again(outcome.error):
                self.send(Part(part.batch, offset, 1, attempts=1, alone=True))
            else:
                failed = type(outcome) is Failure
                self._settle(part.batch, offset, [outcome], failed=failed)

    def _again(self, error: BaseException) -> bool:
        """Return whether an item gets another attempt after its first."""
        policy = self._task.options.attempts
        if isinstance(error, WorkerCrashedError):
            kind = error.crashes[-1].kind
            return policy.after_crash(
                kind=kind, delivery=Delivery.STARTED, attempt=1, times_returned=0
            )
        return policy.after_exception(error, attempt=1)

    def _fail(self, part: Part, failure: Failure) -> None:
        outcomes = [failure] * part.count
        self._settle(part.batch, part.offset, outcomes, failed=True)

    def _settle(
        self, batch: Batch, offset: int, outcomes: list[Any], *, failed: bool
    ) -> None:
        batch.settle(offset, outcomes, failed=failed)
        if not batch.open:
            self._on_complete(batch)


def _any_failed(outcomes: list[Any]) -> bool:
    return Failure in set(map(type, outcomes))


def _pack(function: Callable[..., Any]) -> bytes | None:
    try:
        return dumps_call(function)
    except Exception:  # noqa: BLE001 - each job by itself says what is wrong
        return None


def _may_share(options: JobOptions) -> bool:
    """Return whether items may share a job, though each has the options for itself."""
    limits = options.limits
    patient = limits.timeout is None or limits.timeout >= _SHORTEST_TIMEOUT
    return patient and limits.heartbeat_timeout is None and options.lease is None


def _is_of_all(error: BaseException) -> bool:
    """Return whether the error of a chunk is also the error of each of its items."""
    if isinstance(error, JobNotPicklableError):
        return error.direction == "result"
    if isinstance(error, NodeLostError):
        return True  # there is no other node
    return isinstance(error, AsyncPoolError | JobTimeoutError) and not isinstance(
        error, WorkerCrashedError
    )
