"""What a supervisor is told about the pool that it is to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.lifecycle import STOP_GRACE
from asyncpool._core.wire.messages import WorkerConfig
from asyncpool._runtime.base.callbacks import CrashCallback
from asyncpool._runtime.base.propagation import Propagation
from asyncpool._runtime.worker.handover import Handover
from asyncpool._runtime.worker.output import OutputMode
from asyncpool._runtime.worker.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncpool._core.slots.commands import Command
    from asyncpool._runtime.state.pool_state import PoolState

__all__ = ["MakesServing", "SupervisorConfig"]


class MakesServing(Protocol):
    """What makes what workers do instead of jobs, once there is a supervisor."""

    def __call__(
        self,
        state: PoolState,
        worker: WorkerConfig,
        perform: Callable[[list[Command]], None],
    ) -> Serving:
        """Return what the workers of this supervisor do.

        Args:
            state: The supervisor's.
            worker: How its workers begin.
            perform: What carries out the core's commands.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    """What a pool is made of; see :class:`asyncpool.Pool` for the meaning."""

    workers: tuple[int, int]
    name: str
    restart: RestartPolicy
    on_crash: CrashCallback | None
    fork: bool
    preload: tuple[str, ...]
    max_pending: int | None
    start_timeout: float
    health_timeout: float | None
    output: OutputMode
    max_shared_memory: int
    limits: WorkerLimits
    idle_timeout: float
    surge: int
    unavailable: int
    propagation: Propagation | None
    worker: WorkerConfig
    wait_for_all: bool = False
    stop_grace: float = STOP_GRACE
    end_grace: float | None = None
    serving: MakesServing | None = None
    handover: Handover | None = None

    @property
    def title(self) -> str:
        """What logs and errors call it."""
        return f"{'pool' if self.serving is None else 'cluster'} {self.name}"
