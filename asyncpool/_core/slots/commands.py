"""What :class:`~asyncpool._core.supervision.supervision.Supervision` wants done.

The shell carries these out in their order and decides nothing on the way.
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
    "Rebuild",
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
    """Take note that *jobs* are with no worker any more; none of them has begun.

    Some may have been given up before.
    """

    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropPinnedJobs:
    """Forget *jobs*: they were for workers that go, and have not begun."""

    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """Give the worker in *slot* to whoever has waited longest for one to himself.

    From now on it is that of *session*.
    """

    slot: int
    session: int


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Have the new worker in *slot* rebuild the state of *session*, unless that is under way."""

    slot: int
    session: int


@dataclass(frozen=True, slots=True)
class EndSession:
    """Tell whoever has *session* that its worker is gone, and fail *calls*, unbegun."""

    session: int
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RefuseSessions:
    """Turn away all who wait for a worker: the pool is closed, or broken."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Ask the worker in *slot* not to begin what it got in these places."""

    slot: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ask the worker in *slot* to end what it got in this place, which it runs."""

    slot: int
    sequence: int


@dataclass(frozen=True, slots=True)
class WriteStacks:
    """Have the worker in *slot* write down where its threads are, and a coroutine's job."""

    slot: int
    job: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell the worker in *slot* that no job will come any more."""

    slot: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM to the worker in *slot*."""

    slot: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL to the worker in *slot* and to all that it started.

    *reason* is for its crash report.
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
    why: Literal["closed", "broken", "late"]


@dataclass(frozen=True, slots=True)
class TellRestart:
    """Tell listeners that *slot* gets its next worker in *delay* seconds."""

    slot: int
    delay: float


@dataclass(frozen=True, slots=True)
class ParkSlot:
    """Tell listeners that *slot* stays empty, until starts succeed again.

    The pool tries the next one in *probe_in* seconds; ``None`` for never.
    """

    slot: int
    reason: str
    probe_in: float | None


@dataclass(frozen=True, slots=True)
class LeaveEmpty:
    """Tell listeners that nobody comes after the worker in *slot*: it is not needed."""

    slot: int


@dataclass(frozen=True, slots=True)
class KeepWorker:
    """Tell listeners that the worker in *slot* stays, since its replacement has failed.

    There is another try in *again_in* seconds, if at all.
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
    """Tell listeners that the pool is to have *workers* now."""

    workers: int


@dataclass(frozen=True, slots=True)
class RollEnded:
    """A roll is over: *replaced* workers are gone; *reason* says what has stopped it.

    *filled* slots had no worker since starts had failed, and have one now.
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
    | Rebuild
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
