"""Decide whether a dead worker is replaced, and when.

A worker may die at three moments.  Each says something else about the environment:

* *In the middle of a job.* The pool blames that job, and the death costs the job one of
  its attempts.  The replacement starts at once, however many such jobs there are.  Each
  of them runs out of attempts, so this cannot go on for ever.
* *Ready, and without a job.* The worker has proved that workers can be started, so its
  replacement starts at once too.  A token bucket limits the forks when many workers die
  like this: some starts for each worker are free, and further ones come at the rate
  that costs a tenth of a core.
* *Before it was ready*: a failed start.  Only this speaks against the environment.  The
  delay before the next start doubles with each failed start in a row, counted for the
  whole pool.  Only one slot tries at a time, for all of them.  The first worker that
  becomes ready ends this.  A failure that cannot come out otherwise (an import, a
  check) counts as ``max_failed_starts``.

After ``max_failed_starts``, a pool that has no worker left is *broken*.  A broken pool
refuses jobs, and goes on trying to start a worker in the same way.

``max_restarts`` within ``period`` is the limit after which the pool gives up for good.
It counts deaths of every kind.  It is Erlang/OTP's restart intensity and Node's limited
restart, and off by default.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field

from asyncpool._core.base.validation import INT, SECONDS, check_types, or_none
from asyncpool._dataclass import dataclass

_TYPES = {
    "initial_delay": SECONDS,
    "max_delay": SECONDS,
    "max_failed_starts": or_none(INT),
    "max_restarts": or_none(INT),
    "period": SECONDS,
}

# After so many failed starts in a row a pool without any worker is broken, by default.
MAX_FAILED_STARTS = 5

# This many restarts for each worker are free, if no worker has died for a while.
BURST = 4

# Further restarts come at the rate at which starts take a tenth of the time.  That is
# at most ten a second, since a death costs 9 ms in all processes together where a start
# takes 3 ms.  It is at least two a second, so that no worker is missing for longer than
# half a second.
_SHARE = 0.1
_INTERVALS = (0.1, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How a supervisor replaces workers that die, and when it gives up.

    If a worker that was ready dies, the pool replaces it at once.  The arguments are
    about two other things.  One is starts that fail: the worker ends, raises, or says
    nothing for ``start_timeout`` before it is ready.  The other is giving up, which a
    pool never does by default.

    Args:
        initial_delay: Seconds before the next start after a start that failed.
            They double with each failed start in a row.  Each delay is random, between
            half of its value and all of it.
        max_delay: The most seconds between two starts.
        max_failed_starts: After how many failed starts in a row a pool without any
            worker is broken.  One is enough if the next ones would fail in the same
            way, as an import that raises does.  Its queued jobs then fail with
            :exc:`asyncpool.PoolBrokenError`, and it refuses new ones.  It works again
            as soon as a start succeeds.  ``None``: jobs wait instead.
        max_restarts: How many workers may die within *period*, whatever the cause,
            before the pool gives up for good; ``None`` for any number.
        period: Length of the sliding window of *max_restarts*, in seconds.

    Raises:
        ValueError: If a value is out of range, or if starts that fail are delayed so much
            that they can never exceed *max_restarts* within *period*.
        TypeError: If a value is of the wrong type.
    """

    initial_delay: float = 0.05
    max_delay: float = 30.0
    max_failed_starts: int | None = MAX_FAILED_STARTS
    max_restarts: int | None = None
    period: float = 60.0

    def __post_init__(self) -> None:
        check_types(self, _TYPES)
        if not 0 <= self.initial_delay <= self.max_delay:
            raise ValueError(
                f"initial_delay must be between 0 and max_delay ({self.max_delay:g}), "
                f"not {self.initial_delay:g}"
            )
        if not self.period > 0:
            raise ValueError(f"period must be > 0, not {self.period:g}")
        if self.max_failed_starts is not None and self.max_failed_starts < 1:
            raise ValueError(
                f"max_failed_starts must be >= 1 or None, not {self.max_failed_starts}"
            )
        if self.max_restarts is not None and self.max_restarts < 1:
            raise ValueError(
                f"max_restarts must be >= 1 or None, not {self.max_restarts}"
            )
        if self.initial_delay == 0 and self.max_restarts is None:
            raise ValueError(
                "initial_delay=0 would start workers that never become ready without "
                "any pause, and needs max_restarts"
            )
        self._refuse_unreachable()

    @classmethod
    def limited(cls, max_restarts: int, period: float) -> RestartPolicy:
        """Restart at once, at most *max_restarts* times in *period* seconds, then give up.

        Every death counts, whatever its cause, and failed starts count too.  This is
        the rule of Node's limited restart and of an OTP supervisor.
        """
        return cls(
            initial_delay=0.0,
            max_failed_starts=None,
            max_restarts=max_restarts,
            period=period,
        )

    def delay(self, failures: int, *, jitter: float) -> float:
        """Return how many seconds to wait after *failures* failed starts in a row.

        *jitter* is a random number in ``[0, 1)``; 0 gives the longest delay.
        """
        # 2.0**1024 overflows; the delay reaches its maximum long before that.
        full = min(self.initial_delay * 2.0 ** min(failures - 1, 1000), self.max_delay)
        return full * (1.0 - 0.5 * jitter)

    def _refuse_unreachable(self) -> None:
        # If all starts fail and all delays are the longest, death number n + 1 comes
        # after the sum of the first n delays.
        if self.max_restarts is None or self.initial_delay == 0:
            return
        elapsed, deaths = 0.0, 1
        delays: list[float] = []
        while deaths <= self.max_restarts:
            delays.append(self.delay(deaths, jitter=0.0))
            elapsed += delays[-1]
            if elapsed > self.period:
                break
            deaths += 1
        if deaths <= self.max_restarts:
            # The last delay is too long, and is named only if there is no other.
            named = ", ".join(f"{delay:g}" for delay in delays[:-1] or delays)
            many = "1 death" if deaths == 1 else f"{deaths} deaths"
            raise ValueError(
                f"starts that fail never exceed max_restarts={self.max_restarts} in "
                f"period={self.period:g} s: with initial_delay={self.initial_delay:g} and "
                f"max_delay={self.max_delay:g} they are tried again after "
                f"{named} s, which makes at most {many} in "
                f"{self.period:g} s; use a smaller max_restarts, a longer period, or "
                "smaller delays"
            )


@dataclass(frozen=True, slots=True)
class RestartWorker:
    """Decision: start a new worker in *delay* seconds, in the same slot."""

    delay: float


@dataclass(frozen=True, slots=True)
class RetryStart:
    """Decision: a start has failed, and the pool tries the next one in *delay* seconds.

    *breaks_pool* says that a pool without any worker is now broken.
    """

    delay: float
    reason: str
    breaks_pool: bool


@dataclass(frozen=True, slots=True)
class GiveUpRestarting:
    """Decision: start no worker any more."""

    reason: str


RestartDecision = RestartWorker | RetryStart | GiveUpRestarting


@dataclass(slots=True)
class RestartLedger:
    """What a :class:`RestartPolicy` must remember of one pool.

    Args:
        policy: The rules.
        workers: How many workers the pool may have.

    Attributes:
        failures: How many starts have failed in a row.
        hopeless: Whether the next start would fail as the last one has.
    """

    policy: RestartPolicy
    workers: int
    failures: int = 0
    hopeless: bool = False
    _failed_at: float = float("-inf")
    _interval: float = _INTERVALS[0]
    _free: float = field(default=float("inf"))  # restarts that need not wait
    _filled_at: float = 0.0
    _deaths: deque[float] = field(default_factory=deque)

    @property
    def breaks_pool(self) -> bool:
        """Whether enough starts have failed in a row to break a pool without any worker."""
        return self.policy.max_failed_starts is not None and self.starts_fail

    @property
    def starts_fail(self) -> bool:
        """Whether so many starts have failed in a row that the next ones will, too.

        A policy that never breaks the pool does not say how many that are.
        """
        limit = self.policy.max_failed_starts
        least = MAX_FAILED_STARTS if limit is None else limit
        return self.hopeless or self.failures >= least

    @property
    def reason(self) -> str:
        """How starts have failed, as a clause."""
        if self.hopeless:
            return "the start failed, and is likely to fail again"
        if self.failures == 1:
            return "the start failed"
        return f"{self.failures} starts failed in a row"

    def ready(self, took: float, now: float) -> None:
        """Record that a worker is ready, *took* seconds after it was forked."""
        self.failures, self._failed_at, self.hopeless = 0, float("-inf"), False
        self._fill(now)
        before, (shortest, longest) = self._interval, _INTERVALS
        self._interval = min(max(took / _SHARE, shortest), longest)
        if self._free < 0.0:
            # The restarts that wait have their times already.  Others wait until then,
            # and no longer.
            self._free *= before / self._interval

    def start_failed(
        self, began: float, now: float, *, jitter: float, final: bool = False
    ) -> RestartDecision:
        """Record the end of a worker that was never ready, and return what to do about it.

        Args:
            began: When it was forked.
            now: The time, on a clock that never goes backwards.
            jitter: A random number in ``[0, 1)``.
            final: Whether the next start would fail in the same way.
        """
        # Starts that overlap fail for the same reason, so they count as one.
        if began >= self._failed_at:
            self.failures += 1
            self._failed_at = now
        self.hopeless = final
        if self._is_one_too_many(now):
            return self._give_up()
        return RetryStart(
            self.policy.delay(
                self.failures + (MAX_FAILED_STARTS - 1 if final else 0), jitter=jitter
            ),
            self.reason,
            breaks_pool=self.breaks_pool,
        )

    def died(self, now: float, *, blamed: bool) -> RestartDecision:
        """Record the death of a worker that was ready, and return what to do about it.

        Args:
            now: The time, on a clock that never goes backwards.
            blamed: Whether a job is to blame.
        """
        if self._is_one_too_many(now):
            return self._give_up()
        return RestartWorker(0.0 if blamed else self._wait(now))

    def _wait(self, now: float) -> float:
        """Take a restart out of the bucket; return in how many seconds it is allowed."""
        self._fill(now)
        self._free -= 1.0
        return max(0.0, -self._free * self._interval)

    def _fill(self, now: float) -> None:
        come = (now - self._filled_at) / self._interval
        self._free = min(self._free + come, BURST * self.workers)
        self._filled_at = now

    def _is_one_too_many(self, now: float) -> bool:
        policy = self.policy
        if policy.max_restarts is None:
            return False
        self._deaths.append(now)
        # Only so many deaths matter: one more than the limit.
        while (
            self._deaths[0] < now - policy.period
            or len(self._deaths) > policy.max_restarts + 1
        ):
            self._deaths.popleft()
        return len(self._deaths) > policy.max_restarts

    def _give_up(self) -> GiveUpRestarting:
        return GiveUpRestarting(
            f"{len(self._deaths)} workers died within {self.policy.period:g} s, "
            f"and the policy allows {self.policy.max_restarts}"
        )
