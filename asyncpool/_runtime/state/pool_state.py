"""What the parts of a supervisor have in common."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from asyncpool._core.slots.commands import Command
from asyncpool._core.supervision.supervision import Supervision
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.monitoring.job_watch import JobWatch
from asyncpool._runtime.monitoring.loop_lag import LoopLag
from asyncpool._runtime.state.config import SupervisorConfig
from asyncpool._runtime.state.life_log import LifeLog
from asyncpool._runtime.state.registry import JobRegistry
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.events import Crash

_CRASHES_KEPT = 10


class Performer(Protocol):
    """Carries out the core's commands.

    There is one: ``CommandPerformer`` in ``_runtime/pool/performer.py``.
    """

    def perform(self, commands: list[Command]) -> None:
        """Carry out *commands*, which the core has just given, in their order."""
        ...

    def rearm(self) -> None:
        """Set the pool's timer to the core's next deadline, which may be an earlier one now."""
        ...


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
    core: Supervision
    hub: PoolHub
    registry: JobRegistry = field(init=False)
    handles: dict[int, WorkerHandle] = field(default_factory=dict)
    crashes: deque[Crash] = field(default_factory=lambda: deque(maxlen=_CRASHES_KEPT))
    deciding: bool = False
    performer: Performer = field(init=False, repr=False)
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
