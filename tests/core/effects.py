"""What the core wants done, by name: each effect of ``core.todo`` as a tuple with named fields."""

# ruff: noqa: PYI024 - a line for each is enough

from __future__ import annotations

from collections import namedtuple
from typing import Any, TypeAlias

Spawn = namedtuple("Spawn", "slot generation")
Assign = namedtuple("Assign", "slot jobs")
Unassign = namedtuple("Unassign", "jobs")
DropPinnedJobs = namedtuple("DropPinnedJobs", "jobs")
Offer = namedtuple("Offer", "slot session")
EndSession = namedtuple("EndSession", "session calls")
RefuseSessions = namedtuple("RefuseSessions", "")
Revoke = namedtuple("Revoke", "slot sequences")
Interrupt = namedtuple("Interrupt", "slot sequence")
WriteStacks = namedtuple("WriteStacks", "slot job", defaults=(None,))
Stop = namedtuple("Stop", "slot")
Terminate = namedtuple("Terminate", "slot")
Kill = namedtuple("Kill", "slot reason", defaults=("",))
Abandon = namedtuple("Abandon", "slot")
FailJobs = namedtuple("FailJobs", "jobs why")
TellRestart = namedtuple("TellRestart", "slot delay")
ParkSlot = namedtuple("ParkSlot", "slot reason probe_in")
LeaveEmpty = namedtuple("LeaveEmpty", "slot")
KeepWorker = namedtuple(
    "KeepWorker", "slot again_in"
)  # no effect, but what ended() returns
Draining = namedtuple("Draining", "slot reason")
Resized = namedtuple("Resized", "workers")
RollEnded = namedtuple("RollEnded", "replaced reason filled", defaults=(0,))
GiveUp = namedtuple("GiveUp", "reason")
Recover = namedtuple("Recover", "slot")
Finished = namedtuple("Finished", "")

Command: TypeAlias = Any

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
    "draining": Draining,
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
