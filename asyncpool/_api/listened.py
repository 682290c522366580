"""How callers hear of what happens in a pool or a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncpool._runtime.base.arguments import check_int, not_callable
from asyncpool._runtime.base.event_hub import EventStream
from asyncpool.events import Event, JobEvent


class Listened:
    """Something whose events anybody can hear."""

    __slots__ = ()

    # It has the ``hub``, and a ``check_loop()``; each class knows its type.
    _life: Any

    def _listening(self) -> None:
        """Hear that somebody listens from now on."""

    def events(self, *, buffer: int = 1000) -> EventStream[Event]:
        """Return an async iterator over the events from now on.

        Called before the start, it misses none.  Each iterator has its own buffer for *buffer*
        events.  A full buffer drops the oldest event and counts it in ``dropped``.  The iterator
        ends with the pool or cluster.

        Raises:
            TypeError: If *buffer* is no int.
            ValueError: If it is less than 1.
            RuntimeError: If the pool or cluster was started in another event loop.
        """
        check_int("buffer", buffer, at_least=1)
        self._life.check_loop()
        stream: EventStream[Event] = self._life.hub.listen(buffer)
        self._listening()
        return stream

    def add_listener(self, listener: Callable[[Event], object]) -> None:
        """Have *listener* called with each event from now on, as soon as it happens.

        It is called in the event loop, between the steps of the pool or cluster, so it must be
        quick and must not wait.  What it raises is logged.

        Raises:
            TypeError: If *listener* cannot be called.
            RuntimeError: If the pool or cluster was started in another event loop.
        """
        if not callable(listener):
            raise not_callable("add_listener", listener)
        self._life.check_loop()
        self._life.hub.add_listener(listener)
        self._listening()

    def remove_listener(self, listener: Callable[..., object]) -> int:
        """Call *listener* no more, and return how often it had been added.

        Raises:
            RuntimeError: If the pool or cluster was started in another event loop.
        """
        self._life.check_loop()
        count: int = self._life.hub.remove_listener(listener)
        return count


class JobsListened(Listened):
    """Something with jobs whose events anybody can hear."""

    __slots__ = ()

    def job_events(self, *, buffer: int = 10_000) -> EventStream[Event | JobEvent]:
        """Return an async iterator over the events of the pool and of its jobs from now on.

        It is as that of :meth:`events`, and has :class:`asyncpool.events.JobQueued`,
        :class:`~asyncpool.events.JobStarted` and :class:`~asyncpool.events.JobEnded` for each
        job, in this order.  While nobody listens to jobs, nothing is done for these events.

        Raises:
            TypeError: If *buffer* is no int.
            ValueError: If it is less than 1.
            RuntimeError: If the pool was started in another event loop.
        """
        check_int("buffer", buffer, at_least=1)
        self._life.check_loop()
        stream: EventStream[Event | JobEvent] = self._life.hub.listen_to_jobs(buffer)
        self._listening()
        return stream

    def add_job_listener(self, listener: Callable[[Event | JobEvent], object]) -> None:
        """Have *listener* called with each event of the pool and of its jobs from now on.

        As with :meth:`add_listener` it must be quick: it is called three times for each job.
        That of :class:`~asyncpool.events.JobQueued` comes from within ``submit``, in the
        caller's context.  It may submit jobs, which no worker gets before the next turn of the
        loop.

        Raises:
            TypeError: If *listener* cannot be called.
            RuntimeError: If the pool was started in another event loop.
        """
        if not callable(listener):
            raise not_callable("add_job_listener", listener)
        self._life.check_loop()
        self._life.hub.add_job_listener(listener)
        self._listening()
