"""What a closing pool waits for: its jobs, and maps and sessions that will submit more jobs."""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

from asyncpool._core.logs import pool_messages as say
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.state.pool_state import PoolState, decision

# Say in words what a closing pool waits for.

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
        parts.append(f"{_count(jobs)}{in_queue} ({oldest}{list_functions(names)})")
    parts += holds[:_MOST]
    if len(holds) > _MOST:
        parts.append(f"{len(holds) - _MOST} more maps and sessions")
    return "; ".join(parts) or "its workers to end"


def list_functions(names: Counter[str]) -> str:
    """Return the names of functions, the most frequent first, with how many jobs call each."""
    parts = [f"{count} x {name}" for name, count in names.most_common(_MOST)]
    others = names.total() - sum(count for _, count in names.most_common(_MOST))
    return ", ".join([*parts, f"{others} of others"] if others else parts) or "none"


def _count(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs} jobs"


_LOGGER = logging.getLogger("asyncpool")

# How many jobs of a queue the message looks at: with a million, 1,000 of them take 0.3 ms.
_LOOKED_AT = 1000


class Hold(ABC):
    """What holds a pool open until it is released; its text says in logs what that is."""

    def __init__(self) -> None:
        self._let_go: Callable[[Hold], None] | None = None

    @abstractmethod
    def __str__(self) -> str: ...

    @property
    def held(self) -> bool:
        """Whether this holds the pool open."""
        return self._let_go is not None

    def take(self, let_go: Callable[[Hold], None]) -> None:
        """Hold the pool open; :meth:`release` calls *let_go*."""
        self._let_go = let_go

    def release(self) -> None:
        """Let the pool close, whatever is left."""
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go(self)


class MapHold(Hold):
    """The hold of a map, which ends when all its items are drawn and done.

    It does not matter whether the caller has taken the results.

    Args:
        name: What logs call the function of the map.

    Attributes:
        under_way: How many items are drawn and not yielded.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.under_way = 0
        self._name = name
        self._open_batches = 0
        self._drawn = False

    def __str__(self) -> str:
        return f"a map of {self._name}, {self.under_way} items under way"

    def begin(self) -> None:
        """Note that a batch of items has begun."""
        self._open_batches += 1

    def done(self) -> None:
        """Note that all items of a batch are done."""
        self._open_batches -= 1
        self._release_if_done()

    def drawn(self) -> None:
        """Note that all items are drawn."""
        self._drawn = True
        self._release_if_done()

    def _release_if_done(self) -> None:
        if self._drawn and not self._open_batches:
            self.release()


class SessionHold(Hold):
    """The hold of a session, or of a caller that waits for one.

    Attributes:
        what: What logs call it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.what = "a session that waits for a worker"

    def __str__(self) -> str:
        return self.what


class Draining:
    """Lets maps and sessions hold a pool open, and logs what a closing pool waits for.

    Args:
        state: The pool's state.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._holds: dict[Hold, None] = {}
        self._began: float | None = None
        self._alarm = Alarm(state.loop, self._say)

    def hold(self, hold: Hold) -> None:
        """Let *hold* keep the pool open from now on, unless it closes already."""
        core = self._state.core
        if core.closing.finish is None:
            self._holds[hold] = None
            core.closing.holds += 1
            hold.take(self._let_go)

    def begin(self) -> None:
        """Note that the pool closes."""
        if self._began is None:
            self._began = self._state.loop.time()
            self._alarm.set_in(REPORT_EVERY)

    def stop(self) -> None:
        """Stop, and log which jobs failed that nobody waited for."""
        self._alarm.cancel()
        unheard = self._state.registry.unheard
        if unheard:
            say.JOBS_UNHEARD.log(
                _LOGGER,
                {"pool": self._state.config.name, "jobs": unheard.total()},
                title=self._state.config.title,
                names=list_functions(unheard),
            )

    @decision
    def _let_go(self, hold: Hold) -> None:
        del self._holds[hold]
        self._state.core.release(self._state.loop.time())
        self._state.performer.act()

    def _say(self, _: float) -> None:
        assert self._began is not None
        state, jobs = self._state, self._state.registry.jobs
        names = (job._title for job in itertools.islice(jobs.values(), _LOOKED_AT))
        queued = state.core.waiting
        what = describe_waiting(
            jobs=len(jobs),
            queued=queued,
            names=Counter(names),
            holds=[str(hold) for hold in self._holds],
        )
        seconds = round(state.loop.time() - self._began)
        extra = {
            "pool": state.config.name,
            "seconds": seconds,
            "jobs": len(jobs),
            "queued": queued,
        }
        say.CLOSE_IS_SLOW.log(_LOGGER, extra, title=state.config.title, what=what)
        self._alarm.set_in(REPORT_EVERY)
