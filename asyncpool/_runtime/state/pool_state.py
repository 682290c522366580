"""What the parts of a supervisor have in common."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from asyncpool._core.figures import Durations
from asyncpool._core.supervision.core import Core
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.options import SupervisorConfig
from asyncpool._runtime.state.life_log import LifeLog
from asyncpool._runtime.state.registry import JobRegistry, JobWatch
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.events import Crash

if TYPE_CHECKING:
    from asyncpool._runtime.pool.supervisor import Supervisor

# How late the event loop of the service runs what is due.

PERIOD = 1.0
"""Seconds from one measurement to the next."""


class LoopLag:
    """Measures once a second, as long as there is something to measure for.

    An idle pool has no timer, so that the service may sleep.

    Args:
        loop: The event loop.
        is_needed: Tells whether to go on.

    Attributes:
        durations: What was measured, in seconds.
        active: Whether there is a next measurement.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, is_needed: Callable[[], bool]
    ) -> None:
        self.durations = Durations()
        self.active = False
        self._loop = loop
        self._is_needed = is_needed
        self._timer: asyncio.TimerHandle | None = None

    def go(self) -> None:
        """Begin to measure."""
        self.active = True
        due = self._loop.time() + PERIOD
        self._timer = self._loop.call_at(due, self._look, due)

    def stop(self) -> None:
        """Measure no more."""
        self.active = False
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, due: float) -> None:
        self.durations.note(self._loop.time() - due)
        if self._is_needed():
            self.go()
        else:
            self.active = False


_CRASHES_KEPT = 10


@dataclass(slots=True, kw_only=True)
class PoolState:
    """One pool, as long as it lives.

    Attributes:
        loop: The pool's event loop.
        thread: The thread that made the pool; its loop runs there.
        config: Its options.
        core: The pure part, which decides what happens.
        hub: Publishes events to the listeners.
        registry: The open jobs.
        loop_lag: Measures how late the loop runs what is due.
        log: Logs the steps of its life.
        handles: The worker handles, by slot.
        crashes: The last crashes, oldest first.
        deciding: Whether a method that is a :func:`decision` runs just now.
        performer: Carries out what the core decides; the supervisor sets it before the first
            decision.
    """

    loop: asyncio.AbstractEventLoop
    config: SupervisorConfig
    core: Core
    hub: PoolHub
    registry: JobRegistry = field(init=False)
    handles: dict[int, WorkerHandle] = field(default_factory=dict)
    crashes: deque[Crash] = field(default_factory=lambda: deque(maxlen=_CRASHES_KEPT))
    deciding: bool = False
    performer: Supervisor = field(init=False, repr=False)
    thread: int = field(init=False, repr=False, default_factory=get_ident)
    loop_lag: LoopLag = field(init=False, repr=False)
    log: LifeLog = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.log = LifeLog(self.loop, self.config)
        self.registry = JobRegistry(JobWatch(self.hub))
        serves = self.config.serving is not None
        self.loop_lag = LoopLag(self.loop, lambda: serves or bool(self.registry.jobs))


class _Part(Protocol):
    _state: PoolState


S = TypeVar("S", bound=_Part)
P = ParamSpec("P")
R = TypeVar("R")


def decision(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], R]:
    """Have cancellations of jobs wait until *method* has returned.

    On Ctrl-C, asyncio's handler cancels tasks, and with them jobs, between any two
    bytecodes.  Without this, it could cancel a job while the core decides about that job.
    """

    @functools.wraps(method)
    def decide(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        state = self._state
        before, state.deciding = state.deciding, True  # decisions may be nested
        try:
            return method(self, *args, **kwargs)
        finally:
            state.deciding = before

    return decide  # type: ignore[return-value] # only the name of self differs
