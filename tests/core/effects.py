"""What the core wants done, by name: each effect of ``core.todo`` as a tuple with named fields."""

from __future__ import annotations

from typing import Any, NamedTuple


class Spawn(NamedTuple):
    slot: int
    generation: int


class Assign(NamedTuple):
    slot: int
    jobs: tuple[int, ...]


class Unassign(NamedTuple):
    jobs: tuple[int, ...]


class DropPinnedJobs(NamedTuple):
    jobs: tuple[int, ...]


class Offer(NamedTuple):
    slot: int
    session: int


class EndSession(NamedTuple):
    session: int
    calls: tuple[int, ...]


class RefuseSessions(NamedTuple):
    pass


class Revoke(NamedTuple):
    slot: int
    sequences: tuple[int, ...]


class Interrupt(NamedTuple):
    slot: int
    sequence: int


class WriteStacks(NamedTuple):
    slot: int
    job: int | None = None


class Stop(NamedTuple):
    slot: int


class Terminate(NamedTuple):
    slot: int


class Kill(NamedTuple):
    slot: int
    reason: str = ""


class Abandon(NamedTuple):
    slot: int


class FailJobs(NamedTuple):
    jobs: tuple[int, ...]
    why: str


class TellRestart(NamedTuple):
    slot: int
    delay: float


class ParkSlot(NamedTuple):
    slot: int
    reason: str
    probe_in: float | None


class LeaveEmpty(NamedTuple):
    slot: int


class KeepWorker(NamedTuple):  # no effect, but what ended() returns
    slot: int
    again_in: float | None


class Retiring(NamedTuple):
    slot: int
    reason: str


class Resized(NamedTuple):
    workers: int


class RollEnded(NamedTuple):
    replaced: int
    reason: str
    filled: int = 0


class GiveUp(NamedTuple):
    reason: str


class Recover(NamedTuple):
    slot: int


class Finished(NamedTuple):
    pass


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

_BY_NAME: dict[str, Any] = {
    "spawn": Spawn,
    "assign": lambda slot, jobs: Assign(slot, tuple(jobs)),
    "unassign": Unassign,
    "drop_pinned": DropPinnedJobs,
    "offer": Offer,
    "end_session": EndSession,
    "refuse_sessions": RefuseSessions,
    "revoke": Revoke,
    "interrupt": Interrupt,
    "write_stacks": WriteStacks,
    "stop": Stop,
    "terminate": Terminate,
    "kill": Kill,
    "abandon": Abandon,
    "fail_jobs": FailJobs,
    "restarting": TellRestart,
    "parked": ParkSlot,
    "left_empty": LeaveEmpty,
    "retiring": Retiring,
    "resized": Resized,
    "roll_ended": RollEnded,
    "broken": GiveUp,
    "recovered": Recover,
    "finished": Finished,
}


def named(effect: tuple[Any, ...]) -> Command:
    """Return an effect of the core with names."""
    made: Command = _BY_NAME[effect[0]](*effect[1:])
    return made
