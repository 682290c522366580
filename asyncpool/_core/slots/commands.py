"""What :class:`~asyncpool._core.supervision.supervision.Supervision` wants done.

``Supervisor.perform`` in ``_runtime`` performs these commands in their order, and decides
nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Abandon",
    "Assign",
    "Command",
    "DropPinnedJobs",
    "EndSession",
    "FailJobs",
    "Finished",
    "GiveUp",
    "Interrupt",
    "KeepWorker",
    "Kill",
    "LeaveEmpty",
    "Offer",
    "ParkSlot",
    "Recover",
    "RefuseSessions",
    "Resized",
    "Retiring",
    "Revoke",
    "RollEnded",
    "Spawn",
    "Stop",
    "TellRestart",
    "Terminate",
    "Unassign",
    "WriteStacks",
]


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start worker *generation* of *slot*."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class Assign:
    """Send *jobs* to the worker in *slot*, in this order."""

    slot: int
    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unassign:
    """Record that *jobs* are with no worker any more; none of them has begun.

    The callers may have given up some of them before.
    """

    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropPinnedJobs:
    """Forget *jobs*: they were pinned to workers that go, and have not begun."""

    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """Give the worker in *slot* to the caller that has waited longest for a session.

    From now on the worker belongs to *session*.
    """

    slot: int
    session: int


@dataclass(frozen=True, slots=True)
class EndSession:
    """Tell the caller that has *session* that its worker is gone, and fail its waiting *calls*."""

    session: int
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RefuseSessions:
    """Refuse all callers that wait for a session: the pool is closed, or broken."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Ask the worker in *slot* not to begin the jobs with these sequence numbers."""

    slot: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ask the worker in *slot* to end the running job with this sequence number."""

    slot: int
    sequence: int


@dataclass(frozen=True, slots=True)
class WriteStacks:
    """Have the worker in *slot* write its stacks: of its threads, and of the coroutine of *job*."""

    slot: int
    job: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell the worker in *slot* that it gets no more jobs."""

    slot: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM to the worker in *slot*."""

    slot: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL to the worker in *slot* and to all processes that it has started.

    The crash report of the worker gives *reason*.
    """

    slot: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Stop waiting for the end of a process that not even SIGKILL has ended."""

    slot: int


@dataclass(frozen=True, slots=True)
class FailJobs:
    """Tell the callers of *jobs* that there will be no outcome, and why."""

    jobs: tuple[int, ...]
    why: Literal["closed", "broken", "expired"]


@dataclass(frozen=True, slots=True)
class TellRestart:
    """Tell listeners that the next worker starts in *slot* in *delay* seconds."""

    slot: int
    delay: float


@dataclass(frozen=True, slots=True)
class ParkSlot:
    """Tell listeners that *slot* stays empty until starts succeed again.

    The pool tries the next start in *probe_in* seconds; ``None`` for never.
    """

    slot: int
    reason: str
    probe_in: float | None


@dataclass(frozen=True, slots=True)
class LeaveEmpty:
    """Tell listeners that no worker follows the one in *slot*, since none is needed."""

    slot: int


@dataclass(frozen=True, slots=True)
class KeepWorker:
    """Tell listeners that the worker in *slot* stays, since its replacement has failed.

    The pool tries again in *again_in* seconds; ``None`` for never.
    """

    slot: int
    again_in: float | None


@dataclass(frozen=True, slots=True)
class Retiring:
    """Tell listeners that the worker in *slot* gets no more jobs, and why."""

    slot: int
    reason: str


@dataclass(frozen=True, slots=True)
class Resized:
    """Tell listeners that the pool should have *workers* workers now."""

    workers: int


@dataclass(frozen=True, slots=True)
class RollEnded:
    """A roll is over: *replaced* workers are gone; *reason* says what stopped it, if anything.

    *filled* is the number of slots that had no worker, since starts had failed, and
    have one now.
    """

    replaced: int
    reason: str
    filled: int = 0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Refuse jobs from now on, since no worker can be started."""

    reason: str


@dataclass(frozen=True, slots=True)
class Recover:
    """Tell listeners that starts succeed again, with *slot*; accept jobs."""

    slot: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing is left to do: every slot is retired, no job is open."""


Command = (
    Spawn
    | Assign
    | Unassign
    | DropPinnedJobs
    | Offer
    | EndSession
    | RefuseSessions
    | Revoke
    | Interrupt
    | WriteStacks
    | Stop
    | Terminate
    | Kill
    | Abandon
    | FailJobs
    | TellRestart
    | ParkSlot
    | LeaveEmpty
    | KeepWorker
    | Retiring
    | Resized
    | RollEnded
    | GiveUp
    | Recover
    | Finished
)
