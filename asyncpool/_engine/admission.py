"""Which jobs a pool takes: whether it is open, and has room for another job."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncpool import events
from asyncpool._core import log_messages as say
from asyncpool._core.options import JobOptions
from asyncpool._engine.loop import Alarm
from asyncpool._engine.registry import broken_errors
from asyncpool.errors import PoolClosedError, PoolFullError

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine


class Admission:
    """Admits jobs to a pool, or turns them away.

    Args:
        engine: The pool's engine.

    Attributes:
        saturated: Whether the queue was full, and has not been empty since.  Code that takes
            jobs out of the queue must call :meth:`update_saturated` then.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._core = engine.core
        self._limit = engine.config.max_queued
        self.saturated = False
        self._has_room = asyncio.Event()

    def check_open(self, hold: object = None, *, retrying: bool = False) -> None:
        """Check that the pool is open.

        Args:
            hold: The caller's map or session: while it holds the pool open, a pool that
                drains still admits the caller.
            retrying: Accept a broken pool too, if it still tries to start workers.

        Raises:
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If it is broken.
        """
        engine, core = self._engine, self._core
        if core.closing.finish is not None and not (
            core.closing.draining and hold in engine.holds.holds
        ):
            raise PoolClosedError
        if core.broken is not None:
            if not retrying:
                with engine.turn as now:
                    core.lifecycle.try_sooner(now)
            error = broken_errors(engine)(None)
            if not retrying or error.retry_after is None:
                raise error

    def check(self, options: JobOptions) -> None:
        """Check that the pool takes a job with these options.

        The calls of a broadcast do not come this way (:meth:`Traffic.send_pinned`).  Only the
        broadcast itself needs an open pool.  Its calls take no room in the queue, since each is for
        one worker.  And a worker that starts while the pool drains gets the broadcasts that the
        pool remembers.

        Raises:
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If it is broken.
            PoolFullError: If too many jobs and callers wait.
        """
        core, limit = self._core, self._limit
        if core.closing.finish is not None or core.broken is not None:
            self.check_open(options.hold)
        if limit is None or core.dispatcher.can_begin_now(options.key):
            return
        if options.session is not None:
            return  # it waits for its session's worker, and takes no room in the queue
        # Jobs that are being pickled, and for which workers are idle, will not be queued.
        waiting = self._waiting
        not_for_long = min(core.dispatcher.free, len(core.dispatcher.preparing))
        if waiting - not_for_long >= limit:
            if not self.saturated:
                self.saturated = True
                self._has_room.clear()
                self._engine.hub.publish(events.QueueFull(waiting))
            raise PoolFullError(waiting=waiting, max_queued=limit)

    @property
    def _waiting(self) -> int:
        """How many jobs wait, and callers for a worker of their own."""
        return self._core.waiting + self._core.dispatcher.session_waiters

    def check_session(self) -> None:
        """Check that one more caller may wait for a worker of its own.

        Raises:
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If it is broken.
            PoolFullError: If too many jobs and callers wait.
        """
        self.check_open()
        core, limit = self._core, self._limit
        waiting = self._waiting
        if limit is not None and not core.dispatcher.idle and waiting >= limit:
            raise PoolFullError(waiting=waiting, max_queued=limit)

    def note_queued(self) -> None:
        """Tell the core that a job is queued, since a new worker could take it."""
        if self._core.dispatcher.unserved:
            with self._engine.turn as now:
                self._core.lifecycle.sizing.job_waits(now)

    def update_saturated(self) -> None:
        """Wake the callers that wait for room, if the queue, which was full, is empty."""
        core, closing = self._core, self._core.closing
        if self._waiting:
            return
        closes = closing.finish is not None and not closing.draining
        refuses = closes or core.broken is not None
        # With max_queued=0 the queue is always empty, and there is room only while a worker is
        # idle.  But if the pool ends, callers that wait for room must hear of that.
        if self._limit or refuses or core.dispatcher.can_begin_now(None):
            self.wake_all()
            self._engine.hub.publish(events.QueueEmptied())

    def wake_all(self) -> None:
        """Wake all callers that wait for room."""
        self.saturated = False
        self._has_room.set()

    async def room(self) -> None:
        """Wait until the queue, which was full, is empty; or until the pool is closed.

        Cancellation:
            Safe.
        """
        while self.saturated:  # another caller may have filled it again meanwhile
            await self._has_room.wait()


# What a closing pool waits for: its jobs, and maps and sessions that will submit more jobs; and how
# that is said in words.

# Seconds between two log records of a closing pool.
REPORT_EVERY = 10.0

_MOST = 5  # how many functions are named


def describe_waiting(
    *, jobs: int, queued: int, names: Counter[str], holds: Sequence[str]
) -> str:
    """Say in words what a closing pool waits for.

    Args:
        jobs: How many jobs are open.
        queued: How many of them have not begun.
        names: The functions of the oldest of them, and how many jobs call each.
        holds: What else holds the pool open, maps and sessions, each as a text.
    """
    parts: list[str] = []
    if jobs:
        in_queue = f", {min(queued, jobs)} of them in the queue" if queued else ""
        oldest = "" if names.total() == jobs else f"of the oldest {names.total()}: "
        count = "1 job" if jobs == 1 else f"{jobs} jobs"
        parts.append(f"{count}{in_queue} ({oldest}{list_functions(names)})")
    parts += holds[:_MOST]
    if len(holds) > _MOST:
        parts.append(f"{len(holds) - _MOST} more maps and sessions")
    return "; ".join(parts) or "its workers to end"


def list_functions(names: Counter[str]) -> str:
    """Return the names of functions, the most frequent first, with how many jobs call each."""
    parts = [f"{count} x {name}" for name, count in names.most_common(_MOST)]
    others = names.total() - sum(count for _, count in names.most_common(_MOST))
    return ", ".join([*parts, f"{others} of others"] if others else parts) or "none"


# How many jobs of a queue the message looks at: with a million, 1,000 of them take 0.3 ms.
_LOOKED_AT = 1000


class Holds:
    """Lets maps and sessions hold a pool open, and logs what a closing pool waits for.

    Args:
        engine: The pool's engine.

    Attributes:
        holds: The maps and sessions that hold the pool open, the oldest first; each is described
            by its ``str()``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.holds: dict[object, None] = {}
        self._began: float | None = None
        self._alarm = Alarm(engine.loop, self._say)

    def hold(self, hold: object) -> None:
        """Let *hold* keep the pool open from now on, unless it closes already."""
        closing = self._engine.core.closing
        if closing.finish is None:
            self.holds[hold] = None
            closing.holds += 1

    def release(self, hold: object) -> None:
        """Let the pool close, whatever is left of *hold*."""
        if hold in self.holds:
            del self.holds[hold]
            with self._engine.turn as now:
                self._engine.core.hold_released(now)

    def begin(self) -> None:
        """Note that the pool closes."""
        if self._began is None:
            self._began = self._engine.loop.time()
            self._alarm.set_in(REPORT_EVERY)

    def stop(self) -> None:
        """Stop, and log which jobs failed that nobody waited for."""
        self._alarm.cancel()
        unheard = self._engine.registry.unheard
        if unheard:
            extra = {"jobs": unheard.total()}
            self._engine.log.now(say.JOBS_UNHEARD, extra, names=list_functions(unheard))

    def _say(self, _: float) -> None:
        assert self._began is not None
        engine, jobs = self._engine, self._engine.registry.jobs
        queued = engine.core.waiting
        titles = (job.title for job in itertools.islice(jobs.values(), _LOOKED_AT))
        names, holds = Counter(titles), [*map(str, self.holds)]
        what = describe_waiting(jobs=len(jobs), queued=queued, names=names, holds=holds)
        seconds = round(engine.loop.time() - self._began)
        extra = {"seconds": seconds, "jobs": len(jobs), "queued": queued}
        engine.log.now(say.CLOSE_IS_SLOW, extra, what=what)
        self._alarm.set_in(REPORT_EVERY)
