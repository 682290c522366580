"""The events of a pool, and those of its jobs, which are many, for whoever asks for them."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from asyncpool._core import log_messages as say
from asyncpool._engine.life_log import LOGGER
from asyncpool._engine.loop import ItemStream
from asyncpool.enums import JobOutcome
from asyncpool.events import Event, JobEnded, JobEvent, JobQueued, JobStarted

if TYPE_CHECKING:
    from asyncpool._core.slots import Slot
    from asyncpool._engine.job import PoolJob
    from asyncpool._wire.frames import Frame

# Events to any number of listeners, none of which can hold up the pool.

E = TypeVar("E")


class EventStream(ItemStream[E]):
    """The events of a pool from here on, for one listener; an async iterator.

    It ends when the pool is closed.  If the listener is slower than the pool, the
    oldest events are dropped and counted.  A lease keeper's events come in such a stream too.

    Attributes:
        dropped: How many events this listener has missed.
    """

    def __init__(self, size: int) -> None:
        super().__init__("an iterator over events", size)


def _nothing(*_: object) -> None:
    pass


class EventHub(Generic[E]):
    """Hands each event to all streams that somebody still holds, and to listeners, which it calls.

    Args:
        on_change: Called when there is a stream or a listener more, or less.

    Attributes:
        dropped: How many events streams have missed.
        ended: Whether there will be no more events.
    """

    def __init__(self, on_change: Callable[[], object] = _nothing) -> None:
        self._on_change, self.ended = on_change, False
        self.dropped: int = 0
        self._streams: weakref.WeakSet[EventStream[E]] = weakref.WeakSet()
        # A new list at each change, since an event may be on its way through the old one.
        self.listeners: list[Callable[[E], object]] = []

    def listen(self, size: int) -> EventStream[E]:
        """Return a stream of the events from now on."""
        stream: EventStream[E] = EventStream(size)
        held = weakref.ref(stream)

        def put(event: E) -> None:
            if (stream := held()) is not None:
                self.dropped += not stream.put(event)
            else:  # noticed here, in the loop: a stream may be collected in any thread
                self.remove_listener(put)

        if self.ended:
            stream.end()
        else:
            self._streams.add(stream)
            self.add_listener(put)
        return stream

    def add_listener(self, listener: Callable[[E], object]) -> None:
        """Have *listener* called with each event."""
        self.listeners = [*self.listeners, listener]
        self._on_change()

    def remove_listener(self, listener: object) -> int:
        """Call *listener* no more, and return how often it was there."""
        before = self.listeners
        self.listeners = [other for other in before if other != listener]
        self._on_change()
        return len(before) - len(self.listeners)

    def publish(self, event: E) -> None:
        """Hand *event* to everybody who listens."""
        for listener in self.listeners:
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - nobody else's concern
                words: dict[str, Any] = {"listener": listener, "event": event}
                say.LISTENER_FAILED.log(LOGGER, {}, error=error, **words)

    def end(self) -> None:
        """End all streams, and call nobody any more."""
        self.ended, self.listeners = True, []
        for stream in self._streams:
            stream.end()


# Tracers: they follow some jobs by direct calls, not through events.


class Attempt(NamedTuple):
    """An attempt at a job.

    Attributes:
        slot: The slot of its worker.
        queued: Since when the job had waited for it, by :func:`time.monotonic`.
        began: When it began, on the same clock.
        run: How many seconds its function ran; ``None`` if the worker has not said that.
    """

    slot: int
    queued: float
    began: float
    run: float | None


class JobTracer(Protocol):
    """Something that follows some of the jobs.

    It is called in the loop, for each new job, for each step of those that any tracer follows,
    and for each failure of the others, so that it can tell of these too.  It raises nothing.  If
    it begins to follow a job, it says so by :meth:`PoolHub.trace`.  A job is a
    :class:`asyncpool.Job`.
    """

    def queued(self, job: Any, /) -> None:
        """Take note of a new job; it may set the trace context of the job."""

    def sending(self, job: Any, slot: int, /) -> None:
        """Take note that an attempt is about to be sent to the worker in *slot*."""

    def unassigned(self, job: Any, /) -> None:
        """Take note that a worker has not begun a job, which waits again."""

    def attempt_failed(
        self, job: Any, error: BaseException, attempt: Attempt | None, /
    ) -> None:
        """Take note that an attempt has failed, and that the job waits for the next one.

        *attempt* is ``None`` if it had not begun.
        """

    def ended(
        self,
        job: Any,
        outcome: JobOutcome,
        error: BaseException | None,
        attempt: Attempt | None,
        /,
    ) -> None:
        """Take note of the end of a job; *error* is what its caller gets."""


# It does what JobEnded(...) and so on do, in half of the time.
_new = tuple.__new__  # pyright: ignore[reportUnknownMemberType] - of a bare tuple


class PoolHub:
    """Hands the events of a pool, and those of its jobs, to streams, listeners and tracers.

    The pool does not hear when a job begins in its worker.  But a worker begins its next job when
    it has ended the one before, and that it tells; so the begin of a job is known as soon as
    anything else is.

    A caller on the way of every job tells of it only while *tracks_jobs* is true, since a call
    costs as much as a tenth of a short job.  The methods for failures look themselves.  Listeners
    and tracers hear of what goes well with a job only if somebody listens, or if the job is traced.

    Attributes:
        listen: Returns a stream of the events of the pool, as of an :class:`EventHub`.
        add_listener: Has a listener called with these.
        listen_to_jobs: Returns a stream of events, those of jobs among them.
        add_job_listener: Has a listener called with these.
        add_end_listener: Has a listener called with the end of each job, and with nothing else.
        publish_job: Hands an event of a job that has not ended to everybody who listens to jobs.
        job_listeners: Whether anybody may listen to jobs.  Nothing is done for their events while
            nobody does.
        step_listeners: Whether anybody hears more of jobs than their ends.
        tracers: What follows some of the jobs by direct calls.
        traced: The numbers of the open jobs that tracers follow.
        tracks_jobs: Whether there are jobs of which each step is told, and not only a failure: all
            if somebody listens, else the traced ones.
        announces_jobs: Whether :meth:`queued` is to be called for each new job.
        companions: Close what lives beside the pool, before anybody hears of its end.
        ends: Called at the end of the pool.
        on_listeners_changed: Called when *announces_jobs* may have changed.
    """

    def __init__(self) -> None:
        self._events: EventHub[Event] = EventHub()
        self._jobs: EventHub[Event | JobEvent] = EventHub(self._update)
        self._job_ends: EventHub[JobEnded] = EventHub(self._update)
        self._hubs = self._events, self._jobs, self._job_ends
        self.listen, self.add_listener = self._events.listen, self._events.add_listener
        self.listen_to_jobs = self._jobs.listen
        self.add_job_listener = self._jobs.add_listener
        self.add_end_listener = self._job_ends.add_listener
        # No method: a call that forwards takes 60 ns, for each event of each job.
        self.publish_job = self._jobs.publish
        self.tracks_jobs = self.announces_jobs = False
        self.job_listeners = self.step_listeners = False
        self.tracers: tuple[JobTracer, ...] = ()
        self.traced: set[int] = set()
        self._attempts: dict[int, Attempt] = {}
        self.on_listeners_changed: Callable[[], object] = _nothing
        self.ends: list[Callable[[], object]] = []
        self.companions: list[Callable[[], Awaitable[object]]] = []

    @property
    def dropped(self) -> int:
        """How many events streams have missed."""
        return sum(hub.dropped for hub in self._hubs)

    @property
    def ended(self) -> bool:
        """Whether there will be no more events."""
        return self._events.ended

    async def close_companions(self) -> None:
        """Close what lives beside the pool; what that raises is logged.

        Cancellation:
            Leaves some of them open.
        """
        while self.companions:
            close = self.companions.pop()
            try:
                await close()
            except Exception as error:  # noqa: BLE001 - nobody else's concern
                say.READER_FAILED.log(LOGGER, {}, error=error, reader=close)

    def add_tracer(self, tracer: JobTracer) -> None:
        """Have *tracer* told of the jobs that come from now on."""
        self.tracers = (*self.tracers, tracer)
        self._update()

    def remove_tracer(self, tracer: JobTracer) -> None:
        """Tell *tracer* nothing any more."""
        self.tracers = tuple(each for each in self.tracers if each is not tracer)
        self._update()

    def trace(self, number: int) -> None:
        """Take note that a tracer follows a job, up to its end."""
        self.traced.add(number)
        self.tracks_jobs = True

    def remove_listener(self, listener: object) -> int:
        """Call *listener* no more, and return how often it was there."""
        return sum(hub.remove_listener(listener) for hub in self._hubs)

    def publish(self, event: Event) -> None:
        """Hand *event* to everybody who listens."""
        self._events.publish(event)
        self._jobs.publish(event)

    def publish_end(self, event: JobEnded) -> None:
        """Hand the end of a job to everybody who listens to jobs, or to their ends alone."""
        self._jobs.publish(event)
        self._job_ends.publish(event)

    def end(self) -> None:
        """End all streams, tell that to whoever asked for it, and call nobody any more."""
        for hub in self._hubs:
            hub.end()
        ends, self.ends = self.ends, []
        for callback in ends:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - nobody else's concern
                say.READER_FAILED.log(LOGGER, {}, error=error, reader=callback)

    def _update(self) -> None:
        before = self.job_listeners
        self.step_listeners = bool(self._jobs.listeners)
        self.job_listeners = self.step_listeners or bool(self._job_ends.listeners)
        if not self.tracers:
            self.traced.clear()
        self.tracks_jobs = self.job_listeners or bool(self.traced)
        self.announces_jobs = self.step_listeners or bool(self.tracers)
        if before and not self.job_listeners:
            # The attempts of jobs that end while nobody listens would stay for ever.
            self._attempts.clear()
        self.on_listeners_changed()

    # The steps of a job.

    def queued(self, job: PoolJob[Any]) -> None:
        """Tell of a new job."""
        for tracer in self.tracers:
            tracer.queued(job)
        self._tell_queued(job)

    def _tell_queued(self, job: PoolJob[Any]) -> None:
        """Tell that a job waits for an attempt, if steps are heard."""
        if self.step_listeners:
            told = job.id, job.title, job.options.via, job.attempt, job.queued_at
            self.publish_job(_new(JobQueued, told))

    def attempt_failed(self, job: PoolJob[Any], error: BaseException) -> None:
        """Tell that an attempt has failed with *error*, and that the job waits for the next."""
        attempt = self._attempts.pop(job.id, None)
        for tracer in self.tracers:
            tracer.attempt_failed(job, error, attempt)
        self._tell_queued(job)

    def sending(self, job: PoolJob[Any], slot: int) -> None:
        """Take note that an attempt is about to be sent to the worker in *slot*."""
        for tracer in self.tracers:
            tracer.sending(job, slot)

    def running(self, jobs: Iterable[PoolJob[Any]], slot: int, at: float) -> None:
        """Tell which of *jobs*, those that run in *slot*, have begun since the last look."""
        for job in jobs:
            if job.id not in self._attempts:
                self.attempted(job, _new(Attempt, (slot, job.queued_at, at, None)))

    def attempted(self, job: PoolJob[Any], attempt: Attempt) -> None:
        """Take note of an attempt that has begun, or ended."""
        is_news = job.id not in self._attempts
        self._attempts[job.id] = attempt
        if is_news and self.step_listeners:
            told = job.id, job.title, job.attempt, attempt.slot, attempt.began
            self.publish_job(_new(JobStarted, told))

    def ran(self, job: PoolJob[Any], slot: int, frame: Frame, at: float) -> None:
        """Take note of an attempt whose outcome, *frame*, came at *at* from *slot*."""
        run = frame.number / 1e6
        self.attempted(job, _new(Attempt, (slot, job.queued_at, at - run, run)))

    def failed(self, job: PoolJob[Any], slot: int, frame: Frame, at: float) -> None:
        """Take note of an attempt whose outcome is a failure, if anybody traces jobs."""
        if self.tracers:
            self.ran(job, slot, frame, at)

    def lost(self, job: PoolJob[Any], slot: Slot, since: float) -> None:
        """Take note of an attempt that comes to no outcome, if anybody traces jobs.

        Args:
            job: The job.
            slot: The slot of its worker.
            since: When the worker has ended the job before, or got the first one.
        """
        if self.tracers:
            # In one lane it has begun when the job before it has ended.
            began = job.sent_at if slot.in_flight.concurrency > 1 else since
            attempt = Attempt(slot.index, job.queued_at, began, None)
            self._attempts.setdefault(job.id, attempt)

    def unassigned(self, job: PoolJob[Any]) -> None:
        """Take note that a job has not begun after all."""
        if job.id in self.traced:
            for tracer in self.tracers:
                tracer.unassigned(job)
        if self._attempts.pop(job.id, None) is not None:
            self._tell_queued(job)

    def job_ended(
        self, job: PoolJob[Any], outcome: JobOutcome, error: BaseException | None = None
    ) -> None:
        """Tell how a job has ended just now, and with which *error* if there is one."""
        attempt = self._attempts.pop(job.id, None)
        if error is not None or job.id in self.traced:
            for tracer in self.tracers:
                tracer.ended(job, outcome, error, attempt)
            self.traced.discard(job.id)
            self.tracks_jobs = self.job_listeners or bool(self.traced)
        if not self.job_listeners:
            return
        now, slot, run = monotonic(), None, 0.0
        wait = now - job.queued_at
        if attempt is not None:
            slot, queued, began, known = attempt
            run = now - began if known is None else known
            wait = began - queued
        if wait < 0.0:  # noqa: PLR1730 - max() takes 100 ns
            wait = 0.0
        told = job.id, job.title, outcome, job.attempt, slot, wait, run, now
        self.publish_end(_new(JobEnded, told))
