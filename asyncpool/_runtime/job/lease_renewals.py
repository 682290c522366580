"""Send the renewals of leases when the ledger says so, and tell it how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.leases.lease_ledger import (
    LeaseLedger,
    RenewalDecision,
    RenewalResult,
)
from asyncpool.errors import LeaseLostError, ThrottledError
from asyncpool.events import LeaseRelieved, LeaseSaturated

if TYPE_CHECKING:
    from asyncpool._runtime.job.job import Job


# The holder of a lease; ``leases.py`` says why a job does not hold its lease itself.


class Holder(asyncio.Future[None]):
    """What holds a lease: a job, together with the worker that still has it in flight.

    Args:
        tell: Called when it is known that the lease lasts longer.

    Attributes:
        job: The job, once there is one.
        until: When the lease lapses, on the loop's clock, if that is known.
    """

    __slots__ = ("_tell", "job", "until")

    job: Job[Any] | None

    def __init__(self, tell: Callable[[Holder], None]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.job = None
        self.until: float | None = None
        self._tell = tell

    def cancel(self, msg: Any | None = None) -> bool:
        """Hear from the keeper that the lease is lost."""
        if not super().cancel(msg):
            return False
        assert self.job is not None
        self.job.cancel(msg)
        return True

    def extended(self, until: float) -> None:
        """Hear from the keeper when the lease lapses if it is not renewed."""
        self.until = until
        self._tell(self)

    def let_go(self) -> None:
        """Let the keeper give the lease up, unless it is lost already."""
        if not self.done():
            self.set_result(None)


L = TypeVar("L", bound=Hashable)

# What a renewal has raised; ``None`` if it has not.
Problem = Exception | asyncio.CancelledError | None

# Loops round their timers to milliseconds, and uvloop may round down.  A wait that is shorter
# than that would return at once, again and again until the time has come.
_GRAIN = 0.001


class LeaseRenewals(Generic[L]):
    """One task that waits for the ticks, and one more for each renewal in progress.

    Args:
        ledger: Decides which lease is renewed when.
        renew: Extends one lease.
        timeout: Seconds that one renewal may take.
        on_settled: Called for each renewal, with its lease, its result, what the ledger
            says about that, and what *renew* has raised.
        on_lapsed: Called with a lease that has to be given up, and the seconds since it
            was extended.
        on_news: Called when there are too many leases, or no longer too many.
    """

    def __init__(
        self,
        ledger: LeaseLedger[L],
        renew: Callable[[L], Awaitable[object]],
        timeout: float,
        *,
        on_settled: Callable[[L, RenewalResult, RenewalDecision, Problem], None],
        on_lapsed: Callable[[L, float], None],
        on_news: Callable[[LeaseSaturated | LeaseRelieved], None],
    ) -> None:
        self._ledger = ledger
        self._send = renew
        self._timeout = timeout
        self._on_settled = on_settled
        self._on_lapsed = on_lapsed
        self._on_news = on_news
        self._alarm: asyncio.Future[None] | None = None
        self._alarm_at: float | None = None

    async def run(self) -> None:
        """Send renewals for ever.

        Cancellation:
            Ends it: it cancels the renewals in progress, and waits for them.
        """
        ledger, loop = self._ledger, asyncio.get_running_loop()
        async with asyncio.TaskGroup() as renewals:
            while True:
                # Before any renewal: a lease that has lapsed must not be extended any more.  And
                # before the ends of workers are looked at, in case the loop has been blocked: a
                # job that has ended meanwhile then gets no other attempt.
                for lapsed, gap in ledger.lapsed(loop.time()):
                    self._on_lapsed(lapsed, gap)
                if (news := ledger.news(loop.time())) is not None:
                    self._on_news(news)
                while (lease := ledger.begin_renewal(loop.time())) is not None:
                    renewals.create_task(
                        self._renewal(lease), name="asyncpool lease renewal"
                    )
                await self._sleep(self._next_look())

    def reconsider(self) -> None:
        """Look at the ledger again: it has changed, and may want something sooner."""
        due = self._next_look()
        if due is not None and (self._alarm_at is None or due < self._alarm_at):
            self._wake()

    def _next_look(self) -> float | None:
        ledger = self._ledger
        return earliest(ledger.next_due(), ledger.next_lapse(), ledger.next_news())

    async def _sleep(self, until: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._alarm, self._alarm_at = loop.create_future(), until
        timer = None
        if until is not None:
            timer = loop.call_at(max(until, loop.time() + _GRAIN), self._wake)
        try:
            await self._alarm
        finally:
            self._alarm = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)

    async def _renewal(self, lease: L) -> None:
        problem: Problem = None
        retry_after = 0.0
        # This task begins a turn after it was created.  The lease may be given up meanwhile.
        if self._ledger.withdraw(lease, asyncio.get_running_loop().time()):
            self.reconsider()
            return
        try:
            async with asyncio.timeout(self._timeout):
                await self._send(lease)
            result = RenewalResult.EXTENDED
        except LeaseLostError as error:
            result, problem = RenewalResult.LOST, error
        except ThrottledError as error:
            result, problem = RenewalResult.THROTTLED, error
            retry_after = error.retry_after
        except asyncio.CancelledError as error:
            # This task is cancelled at the end of the keeper, and never before.  If that is
            # not why, something else was cancelled that *renew* awaits: an error like others.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            result, problem = RenewalResult.FAILED, error
        except Exception as error:  # noqa: BLE001 - it is the user's
            result, problem = RenewalResult.FAILED, error
        now = asyncio.get_running_loop().time()
        decision = self._ledger.end_renewal(lease, result, now, retry_after=retry_after)
        self._on_settled(lease, result, decision, problem)
        self.reconsider()
