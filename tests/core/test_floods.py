"""Floods of jobs that kill their workers, and what they must not do to the others."""

from __future__ import annotations

from asyncpool._core.commands import ScheduleRestart, Spawn
from asyncpool._core.profiles import Profile
from asyncpool._core.restart import RestartPolicy
from asyncpool._core.supervision import Supervision

POLICY = RestartPolicy(base=1.0, cap=4.0, jitter=False, max_crashes=3)


def test_hostile_jobs_are_served_for_ever_without_delay_as_long_as_others_succeed() -> (
    None
):
    core = Supervision(workers=(1, 1), policy=POLICY, start_timeout=20.0)
    now, generation, job = 0.0, 1, 0
    assert core.start(now) == [Spawn(0, 1)]
    for _ in range(2_000):
        core.ready(0, now)
        for again in range(2):
            job += 1
            now += 0.001
            assert core.submit(job, Profile()) == 0
            if not again:
                core.outcome(0, job)
                assert core.refill(0, now) == []
        generation += 1
        commands = core.ended(0, now, started=True, requeue=(), roll=0.0)
        assert commands == [ScheduleRestart(0, 0.0), Spawn(0, generation)]


def test_jobs_that_all_kill_their_workers_are_served_ever_more_slowly() -> None:
    core = Supervision(workers=(1, 1), policy=POLICY, start_timeout=20.0)
    core.start(0.0)
    delays, now = [], 0.0
    for job in range(12):
        core.ready(0, now)
        assert core.submit(job, Profile()) == 0
        restart = core.ended(0, now, started=True, requeue=(), roll=0.0)[0]
        assert isinstance(restart, ScheduleRestart)
        delays.append(restart.delay)
        if restart.delay:
            now = core.next_deadline() or 0.0
            core.on_timer(now)
    assert delays == [0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 4, 4]
