"""Draw how a pool is set up, and what is done to it from outside.

What is done decides what the jobs may end with although they have done nothing: the
calmer the climate, the more exact is what the oracle demands.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from asyncpool import RestartPolicy, WorkerLimits
from tests.soak import work

__all__ = ["Climate", "draw_climate"]

# Starts fail here where the launcher is killed: never too many of them.
_FORGIVING = RestartPolicy(max_delay=0.1, max_failed_starts=None)
_FRAIL = (
    RestartPolicy.limited(3, 1.0),
    RestartPolicy(initial_delay=0.02, max_delay=0.1, max_failed_starts=1),
)
_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Climate:
    """A pool's configuration, and what it has to stand.

    Attributes:
        options: The arguments of the pool.
        kills: Whether workers are killed from outside.
        stops: Whether workers are stopped from outside.
        launcher: Whether the launcher is killed; where workers are stopped, it is too.
        orphans: Whether what has left its worker's group may be out of reach, since a
            launcher is killed; it may be one that another pool shares.
        frail: Whether the pool may break.
        seconds: After how many seconds the pool is closed.
        rest: Whether its clients go before that, and it is to recover.
        finish: What the close finishes.
        closes_in: How many seconds the close has.
        ending: How it is closed: by one close, by one whose caller is cancelled, by
            another one soon after that finishes nothing, or by an error that leaves the
            pool's context.
    """

    options: dict[str, Any]
    kills: bool
    stops: bool
    launcher: bool
    orphans: bool
    frail: bool
    seconds: float
    rest: bool
    finish: Any
    closes_in: float
    ending: Literal["one", "cancelled", "second", "error"]

    @property
    def health(self) -> bool:
        """Whether silent workers are found soon."""
        timeout: float | None = self.options["ping_timeout"]
        return timeout is not None and timeout < 5

    @property
    def several(self) -> bool:
        """Whether each worker runs several jobs at once."""
        return int(self.options["concurrency"]) > 1

    @property
    def limits(self) -> WorkerLimits:
        """What its workers have to bear."""
        limits: WorkerLimits = self.options["worker_limits"]
        return limits

    @property
    def most(self) -> int:
        """How many workers it is set up for at the most."""
        workers = self.options["workers"]
        return int(workers[1] if isinstance(workers, tuple) else workers)

    @property
    def stumbles(self) -> bool:
        """Whether some workers do not come up."""
        return self.options["initializer"] is work.stumble

    @property
    def ambient(self) -> frozenset[str]:
        """What any of its jobs may end with."""
        ends = set()
        drained = self.limits.drain_timeout is not None
        if self.kills or (drained and self.limits.drain_timeout != DRAIN_LONG):
            ends.add("crash")
        if self.stops:
            ends |= {"hung", "crash"}
        if self.frail:
            ends.add("broken")
        if self.limits.kill_memory is not None:
            ends.add("out of memory")
        if self.several:  # what one of them does to its worker, it does to all others
            ends |= {"crash", "hung"}
        hasty = self.finish != "all" or self.closes_in < PATIENT_CLOSE
        if hasty or self.ending in {"second", "error"}:
            ends.add("closed")
        return frozenset(ends)


DRAIN_LONG = 600.0
PATIENT_CLOSE = 60.0


def draw_climate(rng: Random) -> Climate:
    """Draw all of it."""
    calm = rng.random() < 0.35
    kills = not calm and rng.random() < 0.6
    stops = not calm and rng.random() < 0.4
    launcher = not calm and rng.random() < 0.3
    health = 2.0 if stops else rng.choice((None, 2.0, 2.0, 30.0))
    frail = not calm and rng.random() < 0.2
    initializer, initargs = rng.choice(
        ((None, ()), (work.prepare, ()), (work.stumble, (7,)))
    )
    if calm and initializer is work.stumble:
        initializer, initargs = None, ()
    finish = rng.choice(("all", "all", "all", "running", "none"))
    launcher_kind = rng.choice(("forkserver", "forkserver", "forkserver", "spawn"))
    return Climate(
        ending=rng.choice(("one", "one", "one", "cancelled", "second", "error")),
        kills=kills,
        stops=stops,
        launcher=launcher,
        orphans=launcher,
        frail=frail,
        seconds=rng.uniform(0.05, 5.0) if rng.random() < 0.9 else 0.0,
        rest=rng.random() < 0.4,
        finish=finish,
        closes_in=PATIENT_CLOSE if rng.random() < 0.7 else rng.choice((0.0, 0.3, 2.0)),
        options={
            "workers": rng.choice((1, 2, 3, 4, (1, 3), (2, 4))),
            "idle_timeout": rng.choice((0.2, 1.0, 60.0)),
            "max_surge": (surge := rng.choice((0, 1, 1, 2))),
            "max_unavailable": rng.choice((0, 1, 2)) if surge else 1,
            "launcher": launcher_kind,
            "preload": rng.choice(((), ("json",))),
            "restart_policy": rng.choice(_FRAIL) if frail else _FORGIVING,
            "worker_limits": _draw_limits(
                rng, calm=calm, slow=launcher_kind == "spawn"
            ),
            "ping_timeout": health,
            # Who is stopped while it starts is found by that alone.
            "start_timeout": 5.0 if stops else 30.0,
            "initializer": initializer,
            "initargs": initargs,
            "max_queued": rng.choice((None, None, 40)),
            "max_shared_memory": rng.choice((1 << 30, 1 << 30, 4 * _MB, 0)),
            "on_cancel": rng.choice(("interrupt", "interrupt", "kill", "wait")),
            "cancel_grace": rng.choice((0.0, 0.3, 2.0)),
            "concurrency": rng.choice((1, 1, 2, 8)),
        },
    )


def _draw_limits(rng: Random, *, calm: bool, slow: bool) -> WorkerLimits:
    # Where starts take half a second, on a busy machine, somebody would always be starting.
    ages = (None, None, 5.0) if slow else (None, None, 0.5, 2.0)
    memory = rng.choice((None, None, 80 * _MB))
    return WorkerLimits(
        max_jobs=rng.choice((None, None, 5, 100)),
        max_age=rng.choice(ages),
        max_memory=memory,
        kill_memory=140 * _MB if not calm and rng.random() < 0.3 else None,
        drain_timeout=DRAIN_LONG if calm else rng.choice((DRAIN_LONG, 0.5, 0.02)),
        jitter=rng.choice((0.0, 0.1)),
    )
