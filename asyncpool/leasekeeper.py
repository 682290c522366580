"""The lease keeper: extends leases in an outside system while jobs need them."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from asyncpool._core import checks, log_messages as say
from asyncpool._core.leases import GIVE_UP, LeaseLedger, longest_gap
from asyncpool._engine.hub import EventHub, EventStream
from asyncpool._engine.job import Holder
from asyncpool._engine.life_log import LOGGER
from asyncpool._engine.loop import Alarm, check_loop, outlast
from asyncpool.events import (
    LeaseEvent,
    LeaseLapsed,
    LeaseLost,
    LeaseMissed,
    LeaseSaturated,
    LeaseStats,
)

__all__ = ["LeaseKeeper"]


_KEEPER = "a lease keeper"

# Seconds between two lines in the log about leases that were not extended.  If the outside
# system is down, that concerns every lease.  There is an event for each.
_QUIET = 10.0

L = TypeVar("L", bound=Hashable)


def _named(lease: object) -> str:
    """Return what the records of a lease call it."""
    return lease if isinstance(lease, str) else repr(lease)


@dataclass(slots=True)
class _Hold:
    """Why a lease is kept, and what happens when it is lost."""

    job: asyncio.Future[Any] | None = None
    on_done: Callable[[asyncio.Future[Any]], object] | None = None
    on_lost: Callable[[Any], object] | None = None

    def over(self) -> bool:
        """Tell whether the lease is kept for a job, and the job is done."""
        return self.job is not None and self.job.done()

    def detach(self) -> None:
        """Leave no reference behind in the job, which may live much longer."""
        if self.job is not None and self.on_done is not None:
            self.job.remove_done_callback(self.on_done)


class LeaseKeeper(Generic[L]):
    """Extends any number of leases in an outside system, at a bounded rate.

    Use it as an async context manager, around the pool whose jobs have the leases::

        async with LeaseKeeper(extend) as keeper, Pool() as pool:
            view = pool.options(lease=(keeper, message.id))
            job = view.submit(work, message.body)

    In each interval the keeper renews every lease once: ``await renew(lease)``.  No more than
    *max_rate* renewals begin in a second, one at a time.  From 40 a second on, the renewals of
    50 ms begin together.  (Any n + 1 in a row take n / *max_rate* seconds, or
    (n + 1 - b) / *max_rate* if b begin together, less 2 ms for the lateness of timers.)  After a
    stall the keeper does not catch up.  If there are more leases than ``max_rate * interval``,
    events and the log say so at once.  The lease that is due first goes first, so that all leases
    wait equally longer.

    Renewals of several leases overlap if *renew* takes long: as many as *max_rate* needs, up to
    32.  If that is too few, ``stats().capacity`` says how many leases there may be.  Renewals
    of the same lease never overlap.

    Args:
        renew: Extends one lease.  If it raises :exc:`LeaseLostError`, the lease is lost: the
            keeper forgets it and cancels its job.  If it raises :exc:`ThrottledError`, the
            outside system wants fewer renewals: the keeper repeats this one before all others,
            after a pause that doubles each time, up to an eighth of an interval.  After six times
            in a row it goes behind the others.  If *renew* raises anything else, the keeper
            repeats it after pauses of, by default, 1/16, 1/8 and 1/4 of an interval, and then
            in the next interval.  Repeats take half of the renewals at the most while other
            leases wait.
        max_rate: The most renewals a second.
        interval: Seconds in which every lease gets a renewal.  A lease must last longer than
            that in the outside system, by the time of its answers and of stalls of your event
            loop.
        max_retries: How often a renewal that has failed is repeated in an interval.
        timeout: Seconds that *renew* may take; then it is cancelled and has failed.
            ``None`` means ``interval / (2 * (1 + max_retries))``, 15 s by default.  Then
            the attempts at a lease whose renewals hang take half an interval, and the pauses
            between them the other half.
        ttl: Seconds that a lease lasts after an extension.  If you give it, a job does
            not outlast its lease.  After nine tenths of it without an extension the keeper
            cancels the job, which has the last tenth to clean up.  If the job was submitted with
            ``pool.options(lease=...)`` and still runs at the end of the *ttl*, its worker
            ends itself, even while your process is stopped or its loop is blocked.  The
            *ttl* counts from the begin of the last renewal that has succeeded, or else from the
            moment in which the keeper took the lease.

    Raises:
        ValueError: If an argument is out of range, if the interval is too short for one renewal,
            or if it is so long that all attempts of a turn do not fit into nine tenths of the
            *ttl*.
        TypeError: If *renew* is not callable, or a number is of the wrong type.
    """

    def __init__(
        self,
        renew: Callable[[L], Awaitable[object]],
        max_rate: float = 1.0,
        interval: float = 120.0,
        max_retries: int = 3,
        *,
        timeout: float | None = None,
        ttl: float | None = None,
    ) -> None:
        if not callable(renew):
            raise TypeError(f"renew must be callable, not {renew!r}")
        checks.at_least(0)("max_retries", max_retries)
        for name, value, kind in (
            ("max_rate", max_rate, checks.NUMBER),
            ("interval", interval, checks.SECONDS),
            ("timeout", timeout, checks.SECONDS.or_none()),
            ("ttl", ttl, checks.SECONDS.or_none()),
        ):
            kind.within("> 0 and finite", lambda it: 0 < it < math.inf)(name, value)
        if timeout is None:
            timeout = interval / (2 * (1 + max_retries))
        gap = longest_gap(interval, max_retries, timeout)
        if ttl is not None and gap > (most := GIVE_UP * ttl):
            raise ValueError(
                f"an interval of {interval:g} s and {max_retries} retries, of {timeout:g} s each, "
                f"can take {gap:g} s until a lease is extended, and it is given up after {most:g} "
                f"s, nine tenths of ttl={ttl:g}: choose a shorter interval, a shorter timeout, or "
                "fewer retries"
            )
        # Rounding must not matter: 0.1 renewals/s for 30 s are three.
        if max_rate * interval + 1e-9 < 1:
            raise ValueError(
                f"max_rate={max_rate:g} renewals/s for interval={interval:g} s make "
                f"{max_rate * interval:g} renewals: one at least is needed"
            )
        self._ledger: LeaseLedger[L] = LeaseLedger(
            max_rate=max_rate,
            interval=interval,
            max_retries=max_retries,
            ttl=ttl,
        )
        self._renew, self._timeout = renew, timeout
        self._holds: dict[L, _Hold] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarm: Alarm | None = None  # for the next look, while the keeper runs
        self._renewals: set[asyncio.Task[None]] = set()
        self._hub: EventHub[LeaseEvent] = EventHub()
        self._quiet_until, self._unsaid = 0.0, 0

    def add(self, lease: L, *, on_lost: Callable[[L], object] | None = None) -> None:
        """Keep *lease* until :meth:`remove`.  Its first renewal is within an interval.

        Args:
            lease: Any hashable value that tells it from other leases.
            on_lost: Called with the lease if it is lost, or has lapsed (see *ttl*).  An exception
                of it is logged.

        Raises:
            TypeError: If *on_lost* is not callable.
            ValueError: If the lease is here already.
            RuntimeError: If the keeper is not running, or in another event loop.
        """
        checks.CALLBACK("on_lost", on_lost)
        self._take(lease, _Hold(on_lost=on_lost))

    def keep(self, lease: L, job: asyncio.Future[Any]) -> None:
        """Keep *lease* until *job* is done, and cancel the job if the lease is lost.

        The keeper also cancels the job if the lease has lapsed: it was not extended for most of
        its *ttl*.  A job of a pool is done as soon as it is cancelled, though it may run on for a
        while, to clean up.  Submit it with ``pool.options(lease=(keeper, lease))`` instead, to
        keep the lease until it has ended.

        Args:
            lease: Any hashable value that tells it from other leases.
            job: Any future or task of this loop.

        Raises:
            TypeError: If *job* is no future or task.
            ValueError: If the lease is here already, for a job that is not done.
            RuntimeError: If the keeper is not running, or in another event loop.
        """
        if not asyncio.isfuture(job):
            raise TypeError(f"keep() takes a future of asyncio's, not {job!r}")
        hold = _Hold(job=job)
        hold.on_done = functools.partial(self._on_done, lease)
        self._take(lease, hold)
        job.add_done_callback(hold.on_done)

    def remove(self, lease: L) -> bool:
        """Let *lease* go, and return whether it was here.

        No renewal of it begins after this.  A renewal in progress is not interrupted, but
        its result is ignored, even if the same lease is added again meanwhile.

        Raises:
            RuntimeError: If the keeper was started in another event loop.
        """
        check_loop(self._loop, _KEEPER)
        hold = self._holds.pop(lease, None)
        if hold is None:
            return False
        hold.detach()
        self._ledger.discard(lease)
        self._reconsider()
        return True

    def events(self, *, buffer: int = 1000) -> EventStream[LeaseEvent]:
        """Return an async iterator over what happens from now on.

        Each iterator has its own buffer for *buffer* events.  A full buffer drops the
        oldest event and counts it in ``dropped``.  The iterator ends with the keeper.

        Raises:
            ValueError: If *buffer* is not positive.
            RuntimeError: If the keeper was started in another event loop.
        """
        checks.at_least(1)("buffer", buffer)
        check_loop(self._loop, _KEEPER)
        return self._hub.listen(buffer)

    def stats(self) -> LeaseStats:
        """Return the figures of the keeper: how it stands, and what happened since its start."""
        return self._ledger.stats(self._hub.dropped, over=self._alarm is None)

    async def __aenter__(self) -> Self:
        """Start.

        Raises:
            RuntimeError: If it was started before: a keeper can be used only once.
        """
        if self._loop is not None:
            raise RuntimeError("a lease keeper can be used only once")
        self._loop = asyncio.get_running_loop()
        # Renewals are made in the context of whoever has started the keeper, and not of whoever
        # happens to have added a lease, or ended a job, before.
        context = contextvars.copy_context()
        self._alarm = Alarm(self._loop, lambda now: context.run(self._look, now))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Forget all leases, and cancel the renewals in progress.

        Raises:
            RuntimeError: If the keeper was started in another event loop; it goes on.

        Cancellation:
            Leaves nothing running: this returns when the last renewal has ended.
        """
        check_loop(self._loop, _KEEPER)
        open_jobs = sum(
            hold.job is not None and not hold.over() for hold in self._holds.values()
        )
        if open_jobs:
            say.KEEPER_ENDS_EARLY.log(LOGGER, {"jobs": open_jobs})
        for lease in list(self._holds):
            self.remove(lease)
        assert self._alarm is not None
        self._alarm.cancel()
        self._alarm = None
        for task in self._renewals:
            task.cancel()
        try:
            await outlast(asyncio.gather(*self._renewals, return_exceptions=True))
        finally:
            self._hub.end()

    def __repr__(self) -> str:
        state = "running" if self._alarm is not None else "not running"
        leases, most = len(self._ledger), self._ledger.capacity
        return f"<LeaseKeeper {state}: {leases} leases of {most}>"

    def _look(self, now: float) -> None:
        """Do what is to be done by *now*."""
        # Before any renewal: a lease that has lapsed must not be extended any more.  And
        # before the ends of workers are looked at, in case the loop has been blocked: a
        # job that has ended meanwhile then gets no other attempt.
        try:
            for lapsed, gap in self._ledger.lapsed(now):
                why = f"has lapsed: not extended for {gap:.3g} s"
                self._give_up(lapsed, LeaseLapsed(lapsed, gap), why)
            if (news := self._ledger.news(now)) is not None:
                self._hub.publish(news)
                too_many = isinstance(news, LeaseSaturated)
                message = say.LEASES_SATURATED if too_many else say.LEASES_RELIEVED
                extra = {"leases": news.leases, "capacity": news.capacity}
                message.log(LOGGER, extra, news=news)
            while (lease := self._ledger.begin_renewal(now)) is not None:
                task = asyncio.create_task(
                    self._renewal(lease), name="asyncpool lease renewal"
                )
                self._renewals.add(task)
                task.add_done_callback(self._renewals.discard)
        finally:  # whatever the code of a user's raises: nobody else would set the alarm
            self._reconsider()

    def _reconsider(self) -> None:
        """Look at the ledger again in time: it has changed, and may want something sooner."""
        due = self._ledger.next_look()
        if self._alarm is not None and due is not None:
            self._alarm.set_by(due)

    async def _renewal(self, lease: L) -> None:
        loop = asyncio.get_running_loop()
        # This task begins a turn after it was created.  The lease may be given up meanwhile.
        if self._ledger.withdraw(lease, loop.time()):
            self._reconsider()
            return
        problem: BaseException | None = None
        try:
            async with asyncio.timeout(self._timeout):
                await self._renew(lease)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # or nobody would renew this lease again
            # This task is cancelled at the end of the keeper, and never before.  If that is
            # not why, something else was cancelled that *renew* awaits: an error like others.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            problem = error
        now = loop.time()
        event = self._ledger.end_renewal(lease, problem, now)
        try:
            if problem is None:
                self._tell_holder(lease)
            if isinstance(event, LeaseLost):
                self._give_up(lease, event, "is gone")
            elif event is not None:
                self._hub.publish(event)
                if isinstance(event, LeaseMissed):
                    self._log_missed(event, now)
        finally:
            self._reconsider()

    def _log_missed(self, missed: LeaseMissed, now: float) -> None:
        """Log now and then that a lease was not extended for too long."""
        if now < self._quiet_until:
            self._unsaid += 1
            return
        why = f": {missed.error!r}" if missed.error is not None else ""
        others = f"; so were {self._unsaid} others before" if self._unsaid else ""
        extra = {"lease": _named(missed.lease), "seconds": missed.gap}
        say.LEASE_MISSED.log(LOGGER, extra, of=missed.lease, why=why, others=others)
        self._quiet_until, self._unsaid = now + _QUIET, 0

    def _give_up(self, lease: L, event: LeaseLapsed | LeaseLost, why: str) -> None:
        hold = self._holds.pop(lease)
        hold.detach()
        if hold.over():
            return
        self._hub.publish(event)
        extra, text = dict[str, object](), f"its lease {why}"
        try:
            text, extra["lease"] = f"lease {lease!r} {why}", _named(lease)
            say.LEASE_GIVEN_UP.log(LOGGER, extra, of=lease, why=why)
            if hold.on_lost is not None:
                hold.on_lost(lease)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - it is the user's code
            say.ON_LOST_FAILED.log(LOGGER, extra, error=error)
        finally:
            if hold.job is not None:
                hold.job.cancel(text)

    def _take(self, lease: L, hold: _Hold) -> None:
        if self._alarm is None or self._loop is None:
            raise RuntimeError("the lease keeper is not running: use 'async with'")
        check_loop(self._loop, _KEEPER)
        current = self._holds.get(lease)
        if current is not None:
            if not current.over():
                raise ValueError(f"lease {lease!r} is kept already")
            self.remove(lease)
        if hold.over():
            return
        self._holds[lease] = hold
        self._ledger.add(lease, self._loop.time())
        self._tell_holder(lease)
        self._reconsider()

    def _tell_holder(self, lease: L) -> None:
        """Tell the worker of a pool's job until when its lease lasts."""
        hold = self._holds.get(lease)
        if hold is not None and isinstance(hold.job, Holder):
            until = self._ledger.lapses_at(lease)
            if until is not None:
                hold.job.extended(until)

    def _on_done(self, lease: L, job: asyncio.Future[Any]) -> None:
        hold = self._holds.get(lease)
        # Another job may have taken the lease over by now.
        if hold is not None and hold.job is job:
            self.remove(lease)
