"""What an agent calls by numbers of its own, as its client tells it: slots, and jobs in crashes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from asyncpool.events import Crash

# The slots of the first agent have the numbers of its pool, and those of each further one so
# many more than those of the one before.
SLOTS = 10_000

# What a pool says of a worker that it has killed for a job; see ``CrashReporter``.
_KILLED_FOR = re.compile(r"killed since job (\d+)(, which it ran too,)? did not end")


def first_slot(agent: int) -> int:
    """Return what is added to the slots of an agent, by its number at the client."""
    return (agent - 1) * SLOTS


def crash_at_client(crash: Crash, first_slot: int) -> Crash:
    """Return a crash that came with an error of an agent, with the client's number of the slot.

    It names no job: the agent's numbers are those of other jobs at the client.
    """
    return replace(
        crash,
        slot=first_slot + crash.slot,
        job_id=None,
        attempt=0,
        concurrent_jobs=(),
        detail=detail_for_client(crash.detail, {}),
    )


def detail_for_client(detail: str, numbers: Mapping[int, int]) -> str:
    """Return the detail of a crash with the client's numbers of its jobs, and none of others.

    Args:
        detail: What the agent's pool says.
        numbers: These numbers, by those of the agent.
    """
    found = _KILLED_FOR.fullmatch(detail)
    if found is None:
        return detail
    number, beside = int(found[1]), found[2] or ""
    if number in numbers:
        return f"killed since job {numbers[number]}{beside} did not end"
    return f"killed since {'another' if beside else 'a'} job did not end"
