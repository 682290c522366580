"""The end of a pool, one close after the other; every order is in ``test_supervision.py``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.pool_core import (
    GROW_EVERY,
    STREAM_TRAITS,
    Core,
    Finish,
    JobTraits,
    RestartPolicy,
    SlotState,
    WorkerLimits,
    cmd,
    pool,
)


def pool_with(jobs: int, *, ready: bool = True) -> Core:
    """Return a pool of one worker, which has the first of so many jobs, if it is ready."""
    policy = RestartPolicy(initial_delay=10.0)
    core = Core(1, policy=policy)
    core.start(0.0)
    if ready:
        core.ready(0, 0.0)
    slots = [core.submit(job, JobTraits()) for job in range(jobs)]
    assert slots[:1] in ([], [0])
    return core


def test_a_stricter_close_gives_up_what_the_first_one_waits_for() -> None:
    core = pool_with(2)
    assert core.close(Finish.ALL, 50.0, 1.0) == []
    commands = core.close(Finish.NONE, 50.0, 2.0)
    assert [c.jobs for c in commands if isinstance(c, cmd.FailJobs)] == [(1,), (0,)]
    assert core.finish is Finish.NONE


def test_it_drains_while_it_finishes_all_and_is_not_over() -> None:
    core = pool_with(1)
    seen = [core.draining]
    core.close(Finish.ALL, None, 1.0)
    seen.append(core.draining)
    core.outcome(0, 0)
    assert cmd.Stop(0) in core.refill(0, 2.0)
    seen.append(core.draining)
    commands = core.ended(0, 3.0, started=False, requeue=(), jitter=0.0)
    assert cmd.Finished() in commands
    assert [*seen, core.draining] == [False, True, True, False]


@pytest.mark.parametrize(
    ("worker", "finish", "told"),
    [
        ("starting", Finish.ALL, cmd.Terminate(0)),
        ("idle", Finish.ALL, cmd.Stop(0)),
        ("busy", Finish.NONE, cmd.Terminate(0)),
    ],
)
def test_a_worker_that_is_let_go_does_not_crash(
    worker: str, finish: Finish, told: cmd.Command
) -> None:
    core = pool_with(1 if worker == "busy" else 0, ready=worker != "starting")
    assert core.close(finish, None, 1.0)[-1] == told
    assert core.slots[0].exit_planned is True


def test_when_its_time_is_over_it_kills_and_is_not_asked_again() -> None:
    core = pool_with(1)
    assert core.close(Finish.ALL, 5.0, 1.0) == []
    assert core.on_timer(4.9) == []
    assert core.on_timer(5.0) == [cmd.FailJobs((0,), "closed"), cmd.Kill(0, "")]
    assert core.slots[0].exit_planned is True
    assert core.finish is Finish.NONE
    assert core.on_timer(5.1) == []


@pytest.mark.parametrize("held", [False, True])
def test_what_is_not_there_is_not_started_when_its_time_is_over(held: bool) -> None:  # noqa: FBT001
    core = pool_with(0, ready=False)
    core.ended(0, 1.0, started=False, requeue=(), jitter=0.0)
    assert core.next_deadline() is not None
    if held:  # it goes on trying, as long as it has the time
        core.hold()
        assert core.close(Finish.ALL, 5.0, 1.0) == []
        assert core.on_timer(5.0) == [cmd.Finished()]
    else:
        assert core.close(Finish.ALL, 5.0, 1.0) == [cmd.Finished()]
    assert core.next_deadline() is None


@pytest.mark.parametrize(("second", "due"), [(30.0, 30.0), (70.0, 50.0)])
def test_the_earlier_end_of_two_closes_counts(second: float, due: float) -> None:
    core = pool_with(1)
    core.close(Finish.ALL, 50.0, 1.0)
    core.close(Finish.ALL, second, 2.0)
    assert core.next_deadline() == due
    assert not any(isinstance(c, cmd.Kill) for c in core.on_timer(due - 0.1))
    assert cmd.Kill(0, "") in core.on_timer(due)


@pytest.mark.parametrize("finish", list(Finish))
def test_a_close_without_any_time_kills_and_asks_nobody_before(finish: Finish) -> None:
    core = pool_with(2)
    commands = core.close(finish, 1.0, 1.0)
    assert commands == [cmd.FailJobs((0, 1), "closed"), cmd.Kill(0, "")]


def test_a_result_that_is_being_loaded_holds_up_the_end() -> None:
    core = pool_with(1)
    core.outcome(0, 0)
    core.begin_unpacking(0)
    assert core.refill(0, 1.0) == []
    assert core.close(Finish.ALL, 50.0, 2.0) == []
    assert cmd.Stop(0) in core.outcome_unpacked(0, 3.0)
    commands = core.ended(0, 4.0, started=False, requeue=(), jitter=0.5)
    assert commands[-1] == cmd.Finished()
    assert core.over
    assert core.next_deadline() is None


def test_when_nobody_decides_any_more_it_is_over() -> None:
    core = pool_with(1)
    core.abandon()
    assert (core.over, core.finish) == (True, Finish.NONE)


def draining(jobs: int, *, workers: tuple[int, int] = (1, 1), **options: Any) -> Core:
    """Return a pool with so many jobs, which closes and finishes all of them."""
    core = pool(*workers, **options)
    for job in range(jobs):
        core.submit(job, STREAM_TRAITS)
    assert core.close(Finish.ALL, None, 1.0) == []
    return core


def done(core: Core, index: int, job: int, now: float) -> list[cmd.Command]:
    core.outcome(index, job)
    return core.refill(index, now)


class TestDraining:
    def test_it_has_all_the_time(self) -> None:
        core = draining(2)
        assert core.next_deadline() is None
        assert core.on_timer(1e9) == []

    def test_a_worn_worker_is_replaced_as_long_as_jobs_wait(self) -> None:
        core = draining(3, limits=WorkerLimits(max_jobs=1, jitter=0))
        assert done(core, 0, 0, 2.0) == [cmd.Assign(0, (1,)), cmd.Spawn(1, 1)]
        assert core.ready(1, 3.0) == [cmd.Retiring(0, "max_jobs"), cmd.Assign(1, (2,))]
        # Nothing waits any more: both go when they are through, and nobody comes.
        assert done(core, 0, 1, 4.0) == [cmd.Stop(0)]
        assert done(core, 1, 2, 4.0) == [cmd.Stop(1)]

    def test_nobody_comes_for_a_worker_that_has_got_the_last_job(self) -> None:
        core = draining(2, limits=WorkerLimits(max_jobs=1, jitter=0))
        assert done(core, 0, 0, 2.0) == [cmd.Assign(0, (1,))]

    def test_it_ages(self) -> None:
        core = draining(2, limits=WorkerLimits(max_age=10.0, jitter=0))
        assert core.next_deadline() == 10.0
        assert core.on_timer(10.0) == [cmd.Spawn(1, 1)]

    def test_it_grows(self) -> None:
        core = draining(5, workers=(1, 3))
        core.job_waits(1.0)
        assert core.on_timer(1.0 + GROW_EVERY) == [cmd.Resized(2), cmd.Spawn(1, 1)]

    def test_a_roll_goes_on_and_ends_with_the_last_job_that_waits(self) -> None:
        core = pool_with(3)
        assert core.roll(0.5) == [cmd.Spawn(1, 1)]
        assert core.close(Finish.ALL, None, 1.0) == []
        assert core.rolling
        assert core.ready(1, 2.0) == [cmd.Retiring(0, "roll"), cmd.Assign(1, (1,))]
        assert done(core, 1, 1, 3.0) == [
            cmd.Assign(1, (2,)),
            cmd.RollEnded(0, "the pool was closed"),
        ]

    def test_a_pool_that_breaks_ends(self) -> None:
        core = draining(2)
        core.hold()
        commands: list[cmd.Command] = []
        now = 2.0
        for _ in range(100):
            commands += core.ended(0, now, started=False, requeue=(), jitter=0.0)
            if core.broken is not None:
                break
            if core.slots[0].state is SlotState.PARKED:
                now = core.next_deadline() or now
                commands += core.on_timer(now)
        # The first job has died with the first worker; the other one had none to go to.
        assert cmd.FailJobs((1,), "broken") in commands
        assert commands[-1] == cmd.Finished()

    def test_who_waits_behind_another_finds_an_idle_worker(self) -> None:
        core = Core(2)
        core.start(0.0)
        core.ready(0, 0.0)
        short = JobTraits()
        short.note(10)
        assert [core.submit(job, short) for job in (0, 1)] == [0, 0]
        core.ready(1, 0.0)
        assert core.close(Finish.ALL, None, 1.0) == []
        core.check_for_stalls()
        assert core.check_for_stalls() == [cmd.Revoke(0, (2,))]
        assert core.revoked(0, [2], 2.0) == [cmd.Unassign((1,)), cmd.Assign(1, (1,))]

    def test_who_has_more_to_come_holds_it_open(self) -> None:
        core = pool_with(1)
        core.hold()
        core.close(Finish.ALL, None, 1.0)
        assert done(core, 0, 0, 2.0) == []
        assert core.submit(1, STREAM_TRAITS) == 0
        assert done(core, 0, 1, 3.0) == []
        assert core.release(4.0) == [cmd.Stop(0)]

    @pytest.mark.parametrize("finish", [Finish.RUNNING, Finish.NONE])
    def test_who_has_more_to_come_does_not_if_not_all_is_finished(
        self, finish: Finish
    ) -> None:
        core = pool_with(1)
        core.hold()
        assert done(core, 0, 0, 1.0) == []
        assert core.close(finish, None, 2.0) == [cmd.Stop(0)]
        assert core.release(3.0) == []

    def test_a_close_before_the_start_waits_for_the_jobs_that_are_there(self) -> None:
        core = Core(1)
        core.submit(0, STREAM_TRAITS)
        core.close(Finish.ALL, None, 0.0)
        assert core.start(0.0) == [cmd.Spawn(0, 1)]
        assert core.ready(0, 1.0) == [cmd.Assign(0, (0,))]
