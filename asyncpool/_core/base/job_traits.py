"""What the pool knows of a job when it places it: how long it takes, its key, its session.

The run times of a function decide whether its jobs may travel ahead.  A job may wait inside a worker, behind another one, only if both are known to be short.
The pool knows what it has measured: an exponential average of the run times of the same
function, in microseconds.  One long call among many short ones raises the average at
once, and the average forgets it after some dozens of calls.
"""

from __future__ import annotations

__all__ = [
    "BUDGET",
    "DEEPEST",
    "LEAST",
    "LOADING_TRAITS",
    "PINNED",
    "REFILL",
    "STREAM_TRAITS",
    "UNKNOWN",
    "JobTraits",
    "KeyedTraits",
]

# How much work a worker may have in flight at once.  If a job waits there for a slow one,
# the pool revokes it after some milliseconds.
BUDGET = 16000.0

# A worker gets more jobs when it has this much left, so that it gets several at a time.
REFILL = BUDGET / 2

# The most jobs that a worker has in flight.  More jobs gain nothing: 128 jobs without
# any work are half a millisecond.
DEEPEST = 128
# The least cost that a call counts with.
LEAST = BUDGET / DEEPEST

# The cost of a job of which nothing is known: more than any budget.
UNKNOWN = 1e9

_WEIGHT = 1 / 8


class JobTraits:
    """What the jobs of one function have in common: their run times.

    Attributes:
        cost: How long the next call is expected to take.
    """

    __slots__ = ("cost",)

    def __init__(self) -> None:
        self.cost: float = UNKNOWN

    @property
    def exclusive(self) -> bool:
        """Whether no other job may be sent while such a job is the last one."""
        return False

    @property
    def key(self) -> int | None:
        """The hash of the key of such a job, if it has one."""
        return None

    @property
    def function(self) -> JobTraits:
        """Those of the function, which all its jobs have."""
        return self

    def note(self, duration: float) -> None:
        """Record a call that took *duration*."""
        if duration <= LEAST:
            if self.cost == LEAST:
                return
            duration = LEAST
        if self.cost == UNKNOWN:
            self.cost = duration
            return
        self.cost += (duration - self.cost) * _WEIGHT
        if self.cost < LEAST + 1:
            self.cost = LEAST  # which it would only come near, and be noted for ever


class _Exclusive(JobTraits):
    __slots__ = ()

    @property
    def exclusive(self) -> bool:
        return True


# The traits of jobs behind which no other job waits, whatever is known of them:
# streams, and jobs whose large arguments take a while to send, so that nothing else can
# be sent meanwhile.
STREAM_TRAITS = JobTraits()
LOADING_TRAITS = _Exclusive()

# The traits of pinned jobs.  No other worker may run them, and no job begins beside
# them: each later job finds what they have done.
PINNED = _Exclusive()


class SessionTraits(_Exclusive):
    """The traits of a call of a session: nothing begins beside it, or behind it.

    Args:
        session: The session.
    """

    __slots__ = ("session",)

    def __init__(self, session: int) -> None:
        super().__init__()
        self.session: int = session


class KeyedTraits(JobTraits):
    """The traits of a job that has a key: that of its function, and the key.

    Args:
        function: The traits of its function, whose run times change later, too.
        key: The hash of the key.
    """

    __slots__ = ("_function", "_key")

    def __init__(self, function: JobTraits, key: int) -> None:
        self._function = function
        self._key = key

    @property
    def key(self) -> int:
        """The hash of the key."""
        return self._key

    @property
    def exclusive(self) -> bool:
        """Whether no other job may be sent while such a job is the last one."""
        return self._function.exclusive

    @property
    def function(self) -> JobTraits:
        """Those of the function, which all its jobs have."""
        return self._function

    # Reads and writes go to the traits of the function.
    @property
    def cost(self) -> float:
        """How long the next call of the function is expected to take."""
        return self._function.cost

    @cost.setter
    def cost(self, cost: float) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._function.cost = cost
