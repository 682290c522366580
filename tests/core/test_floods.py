"""Floods of deaths, and what they must not do to honest jobs."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.slots.commands import Spawn, TellRestart
from asyncpool._core.supervision.supervision import Supervision


def pool(workers: int) -> Supervision:
    core = Supervision(
        workers=(workers, workers), policy=RestartPolicy(), start_timeout=20.0
    )
    core.workers.start(0.0)
    for index in range(workers):
        core.workers.ready(index, 0.0)
    return core


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("succeed", [False, True], ids=["none", "every other"])
def test_jobs_that_kill_their_workers_keep_nobody_waiting_for_a_timer(
    workers: int, *, succeed: bool
) -> None:
    core = pool(workers)
    now, job, generations = 0.0, 0, [1] * workers
    for number in range(2_000):
        index = number % workers
        now += 0.001
        if succeed:
            job += 1
            assert core.jobs.submit(job, JobTraits()) is not None
            [busy] = [it.index for it in core.slots if it.in_flight.jobs]
            core.jobs.outcome(busy, job)
            assert core.jobs.refill(busy, now) == []
        job += 1
        index = core.jobs.submit(job, JobTraits()) or 0
        generations[index] += 1
        commands = core.workers.ended(index, now, started=True, requeue=(), jitter=0.0)
        assert commands == [
            TellRestart(index, 0.0),
            Spawn(index, generations[index]),
        ]
        core.workers.ready(index, now)
    assert core.broken is None


def test_idle_workers_that_are_killed_for_an_hour_break_nothing() -> None:
    core = pool(2)
    now, longest = 0.0, 0.0
    for _ in range(18_000):
        now += 0.2
        for index in (0, 1):
            if core.slots[index].ready_at is None:
                continue
            [restart, *_] = core.workers.ended(
                index, now, started=False, requeue=(), jitter=0.0
            )
            assert isinstance(restart, TellRestart)
            longest = max(longest, restart.delay)
        while (due := core.next_deadline()) is not None and due < now + 0.2:
            for command in core.on_timer(due):
                assert isinstance(command, Spawn)
        for slot in core.slots[:2]:
            if slot.ready_at is None:
                core.workers.ready(slot.index, slot.began_at + 0.004)
    assert core.broken is None
    assert longest <= 0.5
