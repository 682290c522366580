"""What a pool writes of why a worker ended, and what reads it again.

The reason of an end may name a job, or be a text of the user's.  So may its detail.  The cause
of an end names neither: there are only a few, by which ends are counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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

# What stands between the cause and the number of a job.
_OF_JOB = " of job "

_NOT_ENDED = re.compile(r"(killed since )?job (\d+)(, which it ran too,)? did not end")


def reason_for_job(cause: str, job: int) -> str:
    """Return the reason of an end that a job was the cause of: ``"timeout of job 12"``."""
    return f"{cause}{_OF_JOB}{job}"


def exit_cause(reason: str) -> str:
    """Return the cause in the reason of a planned exit; of the one above, ``"timeout"``."""
    call, _, _ = reason.partition(":")
    cause, _, _ = call.partition(_OF_JOB)
    cause = cause.removesuffix("()")
    return cause if cause in CAUSES else OTHER


def job_not_ended(job: int, *, beside: bool) -> str:
    """Return the detail of the end of a worker whose job did not end when it had to.

    Args:
        job: The job.
        beside: Whether it was not the only job of the worker.
    """
    return f"job {job}{', which it ran too,' if beside else ''} did not end"


def killed_since(detail: str) -> str:
    """Return the detail of an end that the pool brought about."""
    return f"killed since {detail}"


def reason_for_client(reason: str, numbers: Mapping[int, int]) -> str:
    """Return a reason with the client's number of its job, and none of another's.

    Args:
        reason: What the pool of an agent says.
        numbers: The client's numbers of its jobs, by those of the agent.
    """
    cause, of_job, text = reason.rpartition(_OF_JOB)
    if not of_job or not text.isdecimal():
        return reason
    job = numbers.get(int(text))
    return cause if job is None else reason_for_job(cause, job)


def detail_for_client(detail: str, numbers: Mapping[int, int]) -> str:
    """Return the detail of an end with the client's number of its job, and none of another's.

    Args:
        detail: What the pool of an agent says.
        numbers: See :func:`reason_for_client`.
    """
    found = _NOT_ENDED.fullmatch(detail)
    if found is None:
        return detail
    killed, number, beside = found[1] or "", int(found[2]), bool(found[3])
    if number in numbers:
        return killed + job_not_ended(numbers[number], beside=beside)
    return f"{killed}{'another' if beside else 'a'} job did not end"
