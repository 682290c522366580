"""The life of a cluster as log records: who came, who went, and why."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from asyncpool.events import Crashed, Event, Exited, Ready, Retiring

_LOGGER = logging.getLogger("asyncpool")

# Why workers retire, for those who do not know the names of the limits.
_REASONS = {
    "roll": "a reload replaces it",
    "resize": "there are more workers than wanted",
    "max_jobs": "it has had as many connections as it may (max_jobs)",
    "max_age": "it is as old as it may be (max_age)",
    "max_memory": "it has more memory than it may (max_memory)",
    "retire": "somebody has asked for another one",
    "retire()": "its code has called retire()",
    "request_replacement()": "it has asked for a successor",
}


class LifeLog:
    """Logs the planned part of the workers' lives; crashes are logged anyway.

    Nor does it tell of workers that never were ready: they go when the others are too many,
    or when none can be started; the code that asked for the workers tells that.

    Args:
        title: What begins each record, such as ``cluster app``.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._pids: dict[tuple[int, int], int] = {}

    async def follow(self, events: AsyncIterator[Event]) -> None:
        """Log what happens until the events end."""
        async for event in events:
            self.tell(event)

    def tell(self, event: Event) -> None:
        """Log an event that an operator wants to know of."""
        match event:
            case Ready(slot, generation, pid, seconds):
                self._pids[slot, generation] = pid
                self._say(slot, generation, f"is ready after {seconds:.2f} s")
            case Retiring(slot, generation, reason):
                call, colon, given = reason.partition(": ")
                why = f"{_REASONS.get(call, call)}{colon}{given}"
                self._say(slot, generation, f"takes no more connections: {why}")
            case Exited(slot=slot, generation=generation, detail=detail):
                self._say(slot, generation, f"has ended{detail and f': {detail}'}")
                self._pids.pop((slot, generation), None)
            case Crashed(crash):
                self._pids.pop((crash.slot, crash.generation), None)
            case _:
                pass

    def _say(self, slot: int, generation: int, text: str) -> None:
        pid = self._pids.get((slot, generation))
        if pid is not None:
            _LOGGER.info("%s: worker %d in slot %d %s", self._title, pid, slot, text)
