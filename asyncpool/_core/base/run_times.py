"""How long the calls of a function take: the reason for which they may travel ahead.

A job may wait inside a worker, behind another one, only if both are known to be
short.  Known is what was measured: an exponential average of the run times of the
same function, in microseconds.  One long call among many short ones raises it at once
and is forgotten after some dozens.
"""

from __future__ import annotations

__all__ = [
    "ALONE",
    "BUDGET",
    "DEEPEST",
    "LEAST",
    "LOADING",
    "PINNED",
    "REFILL",
    "UNKNOWN",
    "Keyed",
    "Profile",
]

# How much work may be in a worker's hands at once: so much that half of it bridges a
# rest, see ``Balance.may_rest``.  A job that waits there for a slow one is revoked
# after some milliseconds.
BUDGET = 16000.0

# A worker gets more when it has this left, so that it gets several at a time.
REFILL = BUDGET / 2

# The most jobs that a worker holds: beyond it nothing is gained (128 jobs of no work
# are half a millisecond).
DEEPEST = 128
# What a call costs at the least, by this reckoning.
LEAST = BUDGET / DEEPEST

# What a job may cost of which nothing is known: more than any budget.
UNKNOWN = 1e9

_WEIGHT = 1 / 8

# How fast the least that a call takes is forgotten, when it is not met any more.
_FADING = 1 / 64


class Profile:
    """What is known of one function.

    Attributes:
        cost: What the next call is expected to take.
        least: What it takes at the least, by the shortest calls of late.
    """

    __slots__ = ("cost", "least")

    def __init__(self) -> None:
        self.cost: float = UNKNOWN
        self.least: float = LEAST

    @property
    def exclusive(self) -> bool:
        """Whether no job may be sent while it is the last one."""
        return False

    @property
    def key(self) -> int | None:
        """The hash of the key that ties a job to a worker, if it has one."""
        return None

    def note(self, duration: float) -> None:
        """Take note of a call that took *duration*."""
        if duration <= LEAST:
            if self.cost == LEAST:
                return
            duration = LEAST
        if self.cost == UNKNOWN:
            self.cost = self.least = duration
            return
        self.cost += (duration - self.cost) * _WEIGHT
        if duration < self.least:
            self.least = duration
        else:
            self.least += (duration - self.least) * _FADING


class _Exclusive(Profile):
    __slots__ = ()

    @property
    def exclusive(self) -> bool:
        return True


# Of jobs that nobody waits behind, whatever is known of them: streams, and those whose
# large arguments are on their way for a while, so that nothing can be sent meanwhile.
ALONE = Profile()
LOADING = _Exclusive()

# Of pinned jobs: jobs for one worker, which no other one may run, and that nothing begins
# beside: whoever comes later finds what they have done.
PINNED = _Exclusive()


class Bound(_Exclusive):
    """What is known of a call of a session: nothing begins beside it, or behind it.

    Args:
        session: The session.
        first: Whether it is what rebuilds it in a new worker, before all other calls.
    """

    __slots__ = ("first", "session")

    def __init__(self, session: int, *, first: bool = False) -> None:
        super().__init__()
        self.session: int = session
        self.first: bool = first


class Keyed(Profile):
    """What is known of a job that has a key: what is known of its function, and that.

    Args:
        function: What is known of its function, by now and later.
        key: The hash of the key.
    """

    __slots__ = ("_function", "_key")

    def __init__(self, function: Profile, key: int) -> None:
        self._function = function
        self._key = key

    @property
    def key(self) -> int:
        """The hash of the key."""
        return self._key

    @property
    def exclusive(self) -> bool:
        """Whether no job may be sent while it is the last one."""
        return self._function.exclusive

    # To all who read or write it, it is what it is there.
    @property
    def cost(self) -> float:
        """What the next call of the function is expected to take."""
        return self._function.cost

    @cost.setter
    def cost(self, cost: float) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._function.cost = cost

    @property
    def least(self) -> float:
        """What it takes at the least."""
        return self._function.least

    @least.setter
    def least(self, least: float) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._function.least = least
