"""By which causes the ends of workers are counted.

The reason of an end may name a job, or be a text of the user's.  A cause does not, so there are
only a few.
"""

from __future__ import annotations

CRASH = "crash"

# What cannot be counted by itself.
OTHER = "other"

CAUSES = (
    CRASH,
    "cancellation",
    "close",
    "idle",
    "kill",
    "max_age",
    "max_jobs",
    "max_memory",
    "request_replacement",
    "resize",
    "retire",
    "retire_worker",
    "roll",
    "session",
    "timeout",
    "uncaught exception",
    OTHER,
)


def exit_cause(reason: str) -> str:
    """Return the cause in the reason of a planned exit, such as ``"timeout of job 12"``."""
    call, _, _ = reason.partition(":")
    cause, _, _ = call.partition(" of job ")
    cause = cause.removesuffix("()")
    return cause if cause in CAUSES else OTHER
