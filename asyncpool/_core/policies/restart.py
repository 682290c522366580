"""Decide whether a dead worker is replaced, and when.

Three kinds of death are told apart, by what they say about the environment:

* *In the middle of a job.*  That job is blamed, and the death has cost it one of its
  attempts.  The replacement comes at once, however many such jobs there are: every
  one of them uses up attempts, so this cannot spin.
* *After readiness, without a job.*  The worker has proved that workers can be started,
  so its replacement comes at once too.  A token bucket keeps a storm of such deaths from
  turning into a storm of forks: some starts for each worker are free, and then they come
  at the rate that costs a tenth of a core.
* *Before readiness*: a failed start.  Only that speaks against the environment.  The delay
  before the next start doubles with each failed start in a row, in the pool as a whole, and
  one slot tries for all of them.  The first worker that is ready ends this.

A pool whose starts fail, and that has no worker left, is *broken* after
``max_failed_starts``: then it refuses jobs, and goes on trying in the same way.

The limit that gives up for good, ``max_restarts`` within ``period``, counts deaths of every
kind.  It is Erlang/OTP's restart intensity and Node's limited restart, and off by default.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from asyncpool._core.base.validation import INT, SECONDS, check_types, or_none

_TYPES = {
    "initial_delay": SECONDS,
    "max_delay": SECONDS,
    "max_failed_starts": or_none(INT),
    "max_restarts": or_none(INT),
    "period": SECONDS,
}

# So many restarts for each worker are free, if nothing has died for a while.
BURST = 4

# Further ones come at the rate at which their starts take a tenth of the time: ten a second
# at the most, since a death costs 9 ms in all processes together where a start takes 3; and
# two at the least, since a worker is not to be missed for longer than half a second.
_SHARE = 0.1
_INTERVALS = (0.1, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How a supervisor replaces workers that die, and when it gives up.

    A worker that was ready and dies is replaced at once.  The arguments are about starts
    that fail, since the worker ends, or raises, or says nothing for ``start_timeout``,
    before it is ready; and about giving up, which a pool never does by default.

    Args:
        initial_delay: Seconds before the next start after one that failed; they double with
            each failed start in a row.  Delays are randomised between their half and
            themselves.
        max_delay: The most seconds between two starts.
        max_failed_starts: After so many failed starts in a row a pool without any worker is
            broken: its queued jobs fail with :exc:`asyncpool.PoolBrokenError`, new ones are
            refused, and it works again as soon as a start succeeds.  ``None``: jobs wait.
        max_restarts: How many workers may die within *period*, of whatever cause, before
            the pool gives up for good; ``None`` for any number.
        period: Length of the sliding window of *max_restarts*, in seconds.

    Raises:
        ValueError: If a value is out of range, or if starts that fail are delayed so much
            that they can never exceed *max_restarts* within *period*.
        TypeError: If a value is of the wrong type.
    """

    initial_delay: float = 0.05
    max_delay: float = 30.0
    max_failed_starts: int | None = 5
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

        Every death counts, whoever is to blame, failed starts included.  This is the rule
        of Node's limited restart and of an OTP supervisor.
        """
        return cls(
            initial_delay=0.0,
            max_failed_starts=None,
            max_restarts=max_restarts,
            period=period,
        )

    def delay(self, failures: int, *, jitter: float) -> float:
        """Return how long to wait after so many failed starts in a row.

        *jitter* is a random number in ``[0, 1)``; 0 gives the longest delay.
        """
        # 2.0**1024 overflows; long before that the maximum has won anyway.
        full = min(self.initial_delay * 2.0 ** min(failures - 1, 1000), self.max_delay)
        return full * (1.0 - 0.5 * jitter)

    def _refuse_unreachable(self) -> None:
        # Starts that fail one after another, at the longest delays: death number n + 1
        # comes at the sum of the first n delays.
        if self.max_restarts is None or self.initial_delay == 0:
            return
        elapsed, deaths = 0.0, 1
        delays: list[str] = []
        while deaths <= self.max_restarts:
            delay = self.delay(deaths, jitter=0.0)
            elapsed += delay
            if elapsed > self.period:
                break
            delays.append(f"{delay:g}")
            deaths += 1
        if deaths <= self.max_restarts:
            raise ValueError(
                f"starts that fail never exceed max_restarts={self.max_restarts} in "
                f"period={self.period:g} s: with initial_delay={self.initial_delay:g} and "
                f"max_delay={self.max_delay:g} they are tried again after "
                f"{', '.join(delays)} s, which makes at most {deaths} deaths in "
                f"{self.period:g} s; use a smaller max_restarts, a longer period, or "
                "smaller delays"
            )


@dataclass(frozen=True, slots=True)
class Restart:
    """Verdict: start a new worker in *delay* seconds, in the same slot."""

    delay: float


@dataclass(frozen=True, slots=True)
class Retry:
    """Verdict: a start has failed; the pool tries the next one in *delay* seconds.

    *breaks_pool* says that a pool without any worker is broken now.
    """

    delay: float
    reason: str
    breaks_pool: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Verdict: start no worker any more."""

    reason: str


Verdict = Restart | Retry | GiveUp


@dataclass(slots=True)
class RestartLedger:
    """What a :class:`RestartPolicy` must remember of one pool.

    Args:
        policy: The rules.
        workers: How many workers there may be.

    Attributes:
        failures: How many starts have failed in a row.
    """

    policy: RestartPolicy
    workers: int
    failures: int = 0
    _failed_at: float = float("-inf")
    _interval: float = _INTERVALS[0]
    _free: float = field(default=float("inf"))  # restarts that need not wait
    _filled_at: float = 0.0
    _deaths: deque[float] = field(default_factory=deque)

    @property
    def breaks_pool(self) -> bool:
        """Whether so many have that a pool without any worker is broken."""
        limit = self.policy.max_failed_starts
        return limit is not None and self.failures >= limit

    def ready(self, took: float, now: float) -> None:
        """Take note that a worker is ready, *took* seconds after it was forked."""
        self.failures, self._failed_at = 0, float("-inf")
        self._fill(now)
        before, (shortest, longest) = self._interval, _INTERVALS
        self._interval = min(max(took / _SHARE, shortest), longest)
        if self._free < 0.0:
            # Those starts have their times already: until then, and no longer, others wait.
            self._free *= before / self._interval

    def start_failed(self, began: float, now: float, *, jitter: float) -> Verdict:
        """Enter the end of a worker that was never ready, and say what to do about it.

        Args:
            began: When it was forked.
            now: The time, on a clock that never goes backwards.
            jitter: A random number in ``[0, 1)``.
        """
        # Starts that overlap fail of the same thing, and say no more than one of them.
        if began >= self._failed_at:
            self.failures += 1
            self._failed_at = now
        if self._is_one_too_many(now):
            return self._give_up()
        return Retry(
            self.policy.delay(self.failures, jitter=jitter),
            "the start failed"
            if self.failures == 1
            else f"{self.failures} starts failed in a row",
            breaks_pool=self.breaks_pool,
        )

    def died(self, now: float, *, blamed: bool) -> Verdict:
        """Enter the death of a worker that was ready, and say what to do about it.

        Args:
            now: The time, on a clock that never goes backwards.
            blamed: Whether a job is to blame.
        """
        if self._is_one_too_many(now):
            return self._give_up()
        return Restart(0.0 if blamed else self._wait(now))

    def _wait(self, now: float) -> float:
        """Take a restart out of the bucket; return the seconds until it is there."""
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
        # One death more than the limit is all that ever matters.
        while (
            self._deaths[0] < now - policy.period
            or len(self._deaths) > policy.max_restarts + 1
        ):
            self._deaths.popleft()
        return len(self._deaths) > policy.max_restarts

    def _give_up(self) -> GiveUp:
        return GiveUp(
            f"{len(self._deaths)} workers died within {self.policy.period:g} s, "
            f"and the policy allows {self.policy.max_restarts}"
        )
