"""Decide whether a dead worker is replaced, and when.

A worker must be replaced quickly, or the pool loses capacity; and not too often,
or a broken program becomes a fork bomb.  The first question is whose fault it was.

* A crash in the middle of a job is blamed on that job.  The replacement comes at
  once: this cannot spin, since each such crash consumes an attempt of a job, and
  it must not be rationed, since then a few hostile inputs a minute would take the
  service down.  Only when ``fruitless_limit`` generations of a slot in a row end
  without a single outcome does its backoff begin: then it is the environment.  Not if
  meanwhile a job kills a worker of another slot that had delivered some: then it is
  the jobs.
* Every other crash (failed start, failed initializer, death while idle) is the
  pool's own.  Three counters judge it, because each alone can be defeated: failed
  starts in a row (a slot that never comes up), short runs in a row (one that comes
  up and dies at once, however long the backoff has become), and the crashes of the
  whole pool in a sliding window (a storm over many slots).  The first two park the
  slot, the third breaks the pool.

The delay doubles with each crash of the pool's own in a row whose worker had not
served any job, is randomised by *equal jitter* (half fixed, half random: it never
exceeds the cap, and workers that died together do not return together) and is absent
at the first restart after a healthy run.  Only a run of ``healthy_after`` seconds resets the counters; were it
the handshake, a worker that starts well and dies at once would loop at full speed.
The window is Erlang/OTP's restart intensity.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from asyncpool._core.kinds import INT, SECONDS, SWITCH, check_kinds, or_none

__all__ = ["Break", "Park", "Restart", "RestartLedger", "RestartPolicy", "Verdict"]

_KINDS = {
    "base": SECONDS,
    "cap": SECONDS,
    "jitter": SWITCH,
    "healthy_after": SECONDS,
    "max_failed_starts": or_none(INT),
    "max_short_runs": or_none(INT),
    "max_crashes": or_none(INT),
    "period": SECONDS,
    "fruitless_limit": INT,
    "count_blamed": SWITCH,
    "probe_after": or_none(SECONDS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How hard a supervisor tries to keep its workers alive.

    Durations are in seconds.

    Args:
        base: Delay before the second restart in a row; it doubles from there.
        cap: Upper bound of the delay.
        jitter: Whether delays are randomised, between their half and themselves.
        healthy_after: Length of a run after which all is forgiven.
        max_failed_starts: Starts of a slot that may fail in a row before it is
            parked; ``None`` for no limit.
        max_short_runs: Runs of a slot shorter than *healthy_after* in a row, those
            blamed on jobs aside, before it is parked; ``None`` for no limit.
        max_crashes: Crashes of the pool's own within *period* before it breaks.
            ``None`` means ``max(5, 1 + 2 * workers)``.
        period: Length of the sliding window of *max_crashes*.
        fruitless_limit: Generations of a slot that may end in a row without any
            outcome of a job before its restarts are delayed, unless jobs kill workers
            of other slots that have delivered some.
        count_blamed: Count crashes in the middle of a job too, as if they were the
            pool's own.
        probe_after: How long a parked slot or a broken pool waits before it tries
            one start; ``None`` means for ever.

    Raises:
        ValueError: If a value is out of range, or if the backoff of a slot is so
            slow that it can never reach *max_crashes* within *period*.
        TypeError: If a value is of the wrong kind.
    """

    base: float = 0.5
    cap: float = 30.0
    jitter: bool = True
    healthy_after: float = 30.0
    max_failed_starts: int | None = 5
    max_short_runs: int | None = 8
    max_crashes: int | None = None
    period: float = 60.0
    fruitless_limit: int = 8
    count_blamed: bool = False
    probe_after: float | None = 30.0

    def __post_init__(self) -> None:
        check_kinds(self, _KINDS)
        if not 0 <= self.base <= self.cap:
            raise ValueError(
                f"base must be between 0 and cap ({self.cap:g}), not {self.base:g}"
            )
        for name in ("period", "healthy_after", "probe_after"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be > 0, not {seconds:g}")
        for name in ("max_failed_starts", "max_short_runs", "max_crashes"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ValueError(f"{name} must be >= 1 or None, not {limit}")
        if self.fruitless_limit < 1:
            raise ValueError(
                f"fruitless_limit must be >= 1, not {self.fruitless_limit}"
            )
        self._refuse_unreachable()

    @classmethod
    def limited(cls, limit: int, during: float) -> RestartPolicy:
        """Restart at once, at most *limit* times in *during* seconds.

        This is the rule of Node's limited restart and of an OTP supervisor: every
        crash counts, whoever is to blame, and the next one breaks the pool.
        """
        return cls(
            base=0.0,
            max_failed_starts=None,
            max_short_runs=None,
            max_crashes=limit,
            period=during,
            count_blamed=True,
        )

    def delay(self, streak: int, *, roll: float) -> float:
        """Return the delay before restart number *streak* in a row, from 1.

        *roll* is a random number in ``[0, 1)``; the same one gives the same delay.
        """
        if streak <= 1:
            return 0.0
        # 2.0**1024 overflows; long before that the cap has won anyway.
        full = min(self.base * 2.0 ** min(streak - 2, 1000), self.cap)
        return full * (0.5 + 0.5 * roll) if self.jitter else full

    def crash_limit(self, workers: int) -> int:
        """Return how many crashes a pool of *workers* tolerates in the window."""
        if self.max_crashes is not None:
            return self.max_crashes
        return max(5, 1 + 2 * workers)

    def _refuse_unreachable(self) -> None:
        # Instant crashes of one slot, at the longest delays: crash number n + 1
        # comes at the sum of the first n delays.
        if self.max_crashes is None or self.base == 0:
            return
        elapsed, fit = 0.0, 1
        delays: list[str] = []
        while fit <= self.max_crashes:
            delay = self.delay(fit, roll=1.0)
            elapsed += delay
            if elapsed > self.period:
                break
            delays.append(f"{delay:g}")
            fit += 1
        if fit <= self.max_crashes:
            raise ValueError(
                f"max_crashes={self.max_crashes} in period={self.period:g} s can never "
                f"be exceeded: with base={self.base:g} and cap={self.cap:g} a slot is "
                f"restarted after {', '.join(delays)} s, which makes at most {fit} "
                f"crashes in {self.period:g} s; use a smaller max_crashes, a longer "
                "period, or a smaller base or cap"
            )


@dataclass(frozen=True, slots=True)
class Restart:
    """Verdict: start a new worker in the slot in *delay* seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Park:
    """Verdict: leave the slot empty."""

    reason: str


@dataclass(frozen=True, slots=True)
class Break:
    """Verdict: the pool as a whole has no hope."""

    reason: str


Verdict = Restart | Park | Break


@dataclass(slots=True)
class _Record:
    """What counts against one slot; each is a number in a row."""

    failed_starts: int = 0
    short_runs: int = 0
    fruitless: int = 0
    streak: int = 0
    last_delay: float = 0.0


@dataclass(slots=True)
class RestartLedger:
    """The crashes that still count against a :class:`RestartPolicy`.

    Args:
        policy: The rules.
        workers: How many slots there are.
    """

    policy: RestartPolicy
    workers: int
    _records: dict[int, _Record] = field(default_factory=dict)
    _window: deque[float] = field(default_factory=deque)

    def record(
        self,
        slot: int,
        *,
        now: float,
        run: float | None,
        blamed: bool,
        outcomes: int,
        roll: float,
    ) -> Verdict:
        """Enter a crash and say what to do about it.

        Args:
            slot: The slot in which it happened.
            now: Current time, on a clock that never goes backwards.
            run: Seconds from readiness to the end; ``None`` if it never was ready.
            blamed: Whether it happened in the middle of a job.
            outcomes: How many outcomes of jobs this worker had delivered.
            roll: A random number in ``[0, 1)``.
        """
        record = self._records.setdefault(slot, _Record())
        healthy = max(self.policy.healthy_after, 2 * record.last_delay)
        if run is not None and run >= healthy:
            self._records[slot] = record = _Record()
        if outcomes:
            record.fruitless = 0
        if outcomes and blamed:
            # Workers that have served are killed by jobs, too: so it is the jobs.
            for other in self._records.values():
                other.fruitless = 0
        if blamed and not self.policy.count_blamed:
            return self._after_blamed(record, outcomes, roll)
        return self._after_own(record, now, run, outcomes, roll)

    def hand_over(self, slot: int, heir: int) -> None:
        """Count what counts against *slot* against *heir*, which goes on in its place."""
        self._records[heir] = self._records.pop(slot)

    def _after_blamed(self, record: _Record, outcomes: int, roll: float) -> Verdict:
        record.fruitless += not outcomes
        record.failed_starts = 0
        delay = self.policy.delay(
            record.fruitless - self.policy.fruitless_limit + 2, roll=roll
        )
        record.last_delay = delay
        return Restart(delay)

    def _after_own(
        self,
        record: _Record,
        now: float,
        run: float | None,
        outcomes: int,
        roll: float,
    ) -> Verdict:
        policy = self.policy
        record.streak += not outcomes
        record.short_runs += 1
        record.failed_starts = record.failed_starts + 1 if run is None else 0
        limit = policy.crash_limit(self.workers)
        self._window.append(now)
        # One crash more than the limit is all that ever matters.
        while self._window[0] < now - policy.period or len(self._window) > limit + 1:
            self._window.popleft()
        if len(self._window) > limit:
            return Break(
                f"{len(self._window)} workers crashed within {policy.period:g} s"
            )
        if _reached(record.failed_starts, policy.max_failed_starts):
            return Park(f"{record.failed_starts} starts failed in a row")
        if _reached(record.short_runs, policy.max_short_runs):
            return Park(f"{record.short_runs} runs in a row were short")
        # A worker that has served was no failing start: its end counts, in the window
        # and among the short runs, but it need not be waited for.
        record.last_delay = 0.0 if outcomes else policy.delay(record.streak, roll=roll)
        return Restart(record.last_delay)


def _reached(count: int, limit: int | None) -> bool:
    return limit is not None and count >= limit
