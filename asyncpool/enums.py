"""The words that crashes, jobs, workers and pools are described with.

Each member is a string too: ``CrashKind.HUNG == "hung"``, and that is what logs, ``str()`` and
JSON show.
"""

from __future__ import annotations

# Workers import this module, through the errors: nothing but the enums may be here.
from enum import StrEnum

__all__ = [
    "CrashKind",
    "Delivery",
    "JobOutcome",
    "JobState",
    "NextStep",
    "RunState",
    "SlotState",
    "TimeLimit",
]


class CrashKind(StrEnum):
    """What happened to a worker, as far as its pool can tell.

    ``pool.options(retry_on=[...])`` takes members, and the plain strings too.
    """

    CRASH = "crash"
    """The process ended, and none of the other kinds is known to be the cause."""

    FAILED_START = "failed start"
    """The worker ended before it was ready."""

    OUT_OF_MEMORY = "out of memory"
    """The kernel killed the worker since memory ran out, or the pool did for its ``kill_memory``."""

    HUNG = "hung"
    """The pool killed the worker: it, or a job of it, gave no sign of life for too long."""

    PROTOCOL = "protocol"
    """The pool killed the worker: it sent what the protocol does not allow."""


class Delivery(StrEnum):
    """How far a job had got when its worker died, or when its pool closed."""

    NEVER_SENT = "never sent"
    """No worker had it."""

    SENT = "sent"
    """A worker had it but had not begun."""

    STARTED = "started"
    """A worker had begun it, in this attempt or an earlier one: it may have had effects."""

    UNKNOWN = "unknown"
    """The agent that had it is lost, and had not said yet whether it began: it may have had effects."""


class NextStep(StrEnum):
    """What the supervisor does about the end of a worker."""

    RESTART = "restart"
    """It starts another worker in the slot."""

    PARK = "park"
    """It leaves the slot empty until a probe succeeds: starts fail, or workers die too often."""

    GIVE_UP = "give up"
    """It leaves the slot empty for good."""

    LEAVE_EMPTY = "leave empty"
    """It starts none: there are enough other workers."""

    KEEP_WORKER = "keep worker"
    """The dead worker was to replace another one, and that one stays."""

    CLOSE = "close"
    """It starts none: the pool is closing."""


class JobOutcome(StrEnum):
    """How a job has ended."""

    OK = "ok"
    """It has returned."""

    RAISED = "raised"
    """It has raised an exception, or its result could not be pickled."""

    CRASHED = "crashed"
    """Its worker has died of it, or was hung."""

    TIMEOUT = "timeout"
    """Its time was over: its ``timeout``, ``queue_timeout`` or ``deadline``."""

    CANCELLED = "cancelled"
    """Its caller has cancelled it."""

    REFUSED = "refused"
    """The pool did not take it: it was full, broken or closed, or the call could not be pickled."""

    ABORTED = "aborted"
    """The pool, or the job's session, ended before the job was done."""


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    """No worker has begun it."""

    RUNNING = "running"
    """A worker runs it."""

    DONE = "done"
    """It has a result or an exception."""

    CANCELLED = "cancelled"
    """Its caller has cancelled it."""


class SlotState(StrEnum):
    """Where a slot, or the worker in it, is in its life."""

    VACANT = "vacant"
    """It has no worker, and gets one."""

    STARTING = "starting"
    """Its worker is not ready yet."""

    IDLE = "idle"
    """Its worker waits for a job.  The workers of clusters, which have no jobs, are idle too."""

    BUSY = "busy"
    """Its worker runs a job, or belongs to a session."""

    STOPPING = "stopping"
    """Its worker was told to end."""

    PARKED = "parked"
    """It is left empty until a probe succeeds: starts fail, or workers die too often."""

    UNUSED = "unused"
    """It has no worker, and needs none now."""

    REMOVED = "removed"
    """It has no worker, and never gets one again."""


class RunState(StrEnum):
    """Where a pool or a cluster is in its life."""

    NEW = "new"
    """It has not been started."""

    RUNNING = "running"
    """It works, or has begun to start."""

    BROKEN = "broken"
    """It has no worker, and none can be started."""

    CLOSING = "closing"
    """It takes no more jobs, and ends when its workers have ended."""

    CLOSED = "closed"
    """It is over."""


class TimeLimit(StrEnum):
    """Which limit of time a job has reached; the options of jobs have these names."""

    TIMEOUT = "timeout"
    QUEUE_TIMEOUT = "queue_timeout"
    DEADLINE = "deadline"
