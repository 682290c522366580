"""The items of a map on their way: into jobs, and what has become of each back.

The items of a *batch* follow one another, and it is complete when all of them have an
outcome.  It begins as one job.  But a job of several items may come back with a part of
them done, since one has taken long, or has killed the worker; the others then go on in
other jobs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from asyncpool._core.base.names import function_name
from asyncpool._core.base.run_times import UNKNOWN
from asyncpool._core.map.chunks import LOST, Failure, run_chunk
from asyncpool._core.map.pace import Pace
from asyncpool._core.pickling.functions import travels_by_name
from asyncpool._core.pickling.out_of_band import dumps_call
from asyncpool._core.policies.attempts import AttemptPolicy
from asyncpool._core.policies.job_limits import JobOptions
from asyncpool._runtime.job.job import ChunkJob, Job
from asyncpool._runtime.map.batches import Batch, Part, Task, TimeSlice
from asyncpool._runtime.state.draining import Hold
from asyncpool._runtime.traffic.large_jobs import unpicklable
from asyncpool.enums import Delivery
from asyncpool.errors import (
    AsyncPoolError,
    JobNotPicklableError,
    JobTimeoutError,
    PoolFullError,
    WorkerCrashedError,
)

# With less time for each item, none may wait behind others until it is seen to be long.
_SHORTEST_TIMEOUT = 0.1


class Room(Protocol):
    """What a map needs of its pool's ``Admission``."""

    async def room(self) -> None:
        """Wait until the queue, which was full, is empty; or the pool is closed."""


class Holds(Protocol):
    """What a map needs of its pool's ``Draining``."""

    def hold(self, hold: Hold, /) -> None:
        """Keep the pool open: when it drains it takes more jobs with this *hold*."""


class MapBackend(Protocol):
    """What a map needs of its pool."""

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        ...

    @property
    def concurrency(self) -> int:
        """How many jobs each worker runs at once."""
        ...

    @property
    def counts_jobs(self) -> bool:
        """Whether no worker may begin more than so many."""
        ...

    @property
    def max_payload(self) -> int:
        """The most bytes of a result."""
        ...

    @property
    def admission(self) -> Room:
        """What tells when there is room in the queue."""
        ...

    @property
    def draining(self) -> Holds:
        """What keeps the pool open."""
        ...

    def check_home(self) -> None:
        """Check that this is the pool's event loop."""
        ...


class BatchRunner:
    """Runs the batches of one map.

    Args:
        backend: The pool.
        task: What is done with each item.
        chunksize: How many items go together; ``None`` for what fits the pool.
        buffersize: How many items may be under way; ``None`` for what fits the pool.
        hold: What holds the pool open meanwhile.
        on_complete: Called with a batch when all of its items have an outcome.
        on_held: Called when something must wait for room in the queue.

    Attributes:
        pace: How many items go together, and are to be under way.
    """

    def __init__(
        self,
        backend: MapBackend,
        task: Task,
        *,
        chunksize: int | None,
        buffersize: int | None,
        hold: Hold,
        on_complete: Callable[[Batch], None],
        on_held: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._task = task = task._replace(options=replace(task.options, hold=hold))
        self._on_complete = on_complete
        self._on_held = on_held
        self._packed = _pack(task.function)
        self._named = travels_by_name(task.function)
        self._name = function_name(task.function)
        alone = self._packed is None or not _may_share(task.options)
        if backend.counts_jobs and chunksize is None:
            chunksize = 1  # each item counts, unless items are to go together
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
            name=function_name(task.function),
        )
        self._jobs: set[Job[Any]] = set()
        self._held: deque[Part] = deque()
        # What has come back, and was not looked at yet.
        self._landed: deque[tuple[Part, ChunkJob[Any]]] = deque()
        self._unloading = False
        self._loop = asyncio.get_running_loop()
        self._ended = False

    @property
    def full(self) -> bool:
        """Whether something is held back, since the pool's queue is full."""
        return bool(self._held)

    @property
    def running(self) -> bool:
        """Whether any job is under way."""
        return bool(self._jobs)

    def stop(self) -> None:
        """Cancel what is under way, and send nothing more."""
        self._ended = True
        self._held.clear()
        for job in list(self._jobs):
            job.cancel()

    def send(self, part: Part) -> None:
        """Have *part* run, if there is room in the queue, or else later."""
        if self._held:
            self._held.append(part)
            return
        try:
            job = self._submit(part)
        except PoolFullError:
            self._held.append(part)
            self._on_held()  # there may be no job left whose end is heard
        except AsyncPoolError as error:  # there is no pool any more
            self._fail(part, Failure(error))
        except (SystemExit, KeyboardInterrupt) as error:
            # It may be a signal's, and goes on; but nobody is to wait for these items.
            self._fail(part, Failure(unpicklable(error)))
            raise
        else:
            self._jobs.add(job)
            job.add_done_callback(partial(self._on_done, part))

    def _submit(self, part: Part) -> Job[Any]:
        function, star, options, submit = self._task
        items = part.batch.items[part.offset : part.offset + part.count]
        if part.count > 1:
            names = {
                "star": star,
                "named": self._named,
                "max_payload": self._backend.max_payload,
            }
            job = submit(run_chunk, (self._packed, items), names, self._together)
            assert isinstance(job, ChunkJob)
            job.items_of = self._name
            return job
        [item] = items
        if part.begun:
            options = replace(options, begun=part.begun)
        return submit(function, tuple(item) if star else (item,), {}, options)

    def send_held(self) -> None:
        """Send what the queue had no room for."""
        held, self._held = self._held, deque()
        while held and not self._held:
            self.send(held.popleft())
        self._held += held

    def _send_rest(self, part: Part, done: int) -> None:
        """Send what was not begun of *part*."""
        offset, end = part.offset + done, part.offset + part.count
        while offset < end:
            count = min(self.pace.size(self._backend.most_workers), end - offset)
            self.send(Part(part.batch, offset, count))
            offset += count

    # And out of them.

    def _on_done(self, part: Part, job: Job[Any]) -> None:
        self._jobs.discard(job)
        if self._ended:
            _ = job.cancelled() or job.exception()  # heard, and nobody's concern now
        elif job.cancelled():
            self._fail(part, Failure(asyncio.CancelledError()))
        elif isinstance(job, ChunkJob):
            job.exception()  # heard, even if nobody should look at it
            self._landed.append((part, job))
            if not self._unloading:
                self._unloading = True
                self._loop.call_soon(self._unload)
        else:
            error = job.exception()
            outcome = job.result() if error is None else Failure(error)
            failed = error is not None
            self._settle(part.batch, part.offset, [outcome], failed=failed)
            cost = job._function.profile.cost
            if cost < UNKNOWN:
                self.pace.note(1, cost)
        if self._held:
            self.send_held()

    def _unload(self) -> None:
        """Look at what has come back, as much of it as there is time for in a turn."""
        turn = TimeSlice()
        self._unloading = False
        while self._landed and not self._ended:
            self._on_chunk(*self._landed.popleft())
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
            if result.plain:
                self._settle(part.batch, part.offset, outcomes, failed=False)
            else:
                self._take_in(part, outcomes)
            self._send_rest(part, len(outcomes))
        elif job.found is not None:
            # The next one is what it was ended by, or for.
            outcomes = [Failure(error) if one is LOST else one for one in job.found]
            outcomes = [*outcomes, Failure(error)][: part.count]
            figures.items += len(outcomes)
            self._take_in(part, outcomes)
            self._send_rest(part, len(outcomes))
        elif _is_of_all(error):
            self._fail(part, Failure(error))
        else:
            # None has begun, since whatever ends a chunk that has is noted as an outcome.
            # Each by itself shows whose fault it is.
            for offset in range(part.offset, part.offset + part.count):
                self.send(Part(part.batch, offset, 1))

    def _take_in(self, part: Part, outcomes: list[Any]) -> None:
        """Take note of outcomes; what is to be tried again is sent alone."""
        once = self._task.options.attempts.max_attempts == 1
        failed = _any_failed(outcomes)
        if once or not failed:
            self._settle(part.batch, part.offset, outcomes, failed=failed)
            return
        for offset, outcome in enumerate(outcomes, part.offset):
            if type(outcome) is Failure and self._again(outcome.error):
                self.send(Part(part.batch, offset, 1, begun=1))
            else:
                failed = type(outcome) is Failure
                self._settle(part.batch, offset, [outcome], failed=failed)

    def _again(self, error: BaseException) -> bool:
        """Tell whether there is another attempt after the first."""
        policy = self._task.options.attempts
        if isinstance(error, WorkerCrashedError):
            kind = error.crashes[-1].kind
            return policy.after_crash(
                kind=kind, delivery=Delivery.STARTED, attempt=1, returns=0
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
    """Tell whether calls that go together can each have what they are to have."""
    limits = options.limits
    patient = limits.timeout is None or limits.timeout >= _SHORTEST_TIMEOUT
    return patient and limits.heartbeat_timeout is None and options.lease is None


def _is_of_all(error: BaseException) -> bool:
    """Tell whether what a job of several items has come to is what each has come to."""
    if isinstance(error, JobNotPicklableError):
        return error.direction == "result"
    return isinstance(error, AsyncPoolError | JobTimeoutError) and not isinstance(
        error, WorkerCrashedError
    )
