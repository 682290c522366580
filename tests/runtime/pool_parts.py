"""The parts of a pool that was never started, for the tests of each of them.

All of them are real, the core too: what a test wants to see, it has the core come to.
"""

from __future__ import annotations

from typing import Any, cast

from asyncpool import Pool
from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.slots.commands import Command
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.pool.supervisor import Supervisor
from asyncpool._runtime.state.pool_state import PoolState
from tests.helpers.inside import config_of

__all__ = ["Notebook", "break_starts", "parts_of", "queue_jobs", "succeed"]


class Notebook:
    """What is to be carried out is noted here, and stays undone.

    Attributes:
        performed: The commands of each call.
        rearmed: How often the timer was set anew.
    """

    def __init__(self) -> None:
        self.performed: list[list[Command]] = []
        self.rearmed = 0

    def perform(self, commands: list[Command]) -> None:
        self.performed.append(commands)

    def rearm(self) -> None:
        self.rearmed += 1


def parts_of(**options: Any) -> tuple[Supervisor, Notebook]:
    """Return the parts of the pool *x* with these options, and what it was to carry out."""
    options = {"ping_timeout": None, "name": "x", **options}
    hub = PoolHub()
    parts, notebook = Supervisor(config_of(Pool(**options)), hub), Notebook()
    parts.state.performer = cast("Supervisor", notebook)
    return parts, notebook


def queue_jobs(state: PoolState, count: int) -> list[int]:
    """Have so many more jobs wait, since there is no worker, and return them."""
    first = 1_000_000 + state.core.waiting
    jobs = list(range(first, first + count))
    assert all(state.core.jobs.submit(job, JobTraits()) is None for job in jobs)
    return jobs


def break_starts(state: PoolState) -> None:
    """Have the start of the only worker fail, which is one too many (*max_failed_starts* 1)."""
    now = state.loop.time()
    state.core.workers.start(now)
    state.core.workers.ended(0, now, started=False, requeue=(), jitter=0.0)
    assert state.core.broken is not None


def succeed(state: PoolState) -> None:
    """Have the next start succeed, whatever was before."""
    now = state.loop.time() + 3600.0
    state.core.on_timer(now)
    state.core.workers.ready(0, now)
    assert state.core.broken is None
