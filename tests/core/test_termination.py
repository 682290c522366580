"""How jobs, workers and pools are made to end; every order is in ``test_supervision.py``."""

from __future__ import annotations

import pytest

from tests.core.pool_core import (
    KILL,
    KILL_GRACE,
    LEAST_GRACE,
    REVOKE_GRACE,
    STACK_GRACE,
    STOP_GRACE,
    STREAM_TRAITS,
    TERM_GRACE,
    CancelMode,
    Core,
    Finish,
    JobTraits,
    RestartPolicy,
    SlotState,
    WorkerLimits,
    cmd,
    pool,
    short,
)

INTERRUPT = CancelMode("interrupt", 2.0)


def busy(*jobs: int, drain_timeout: float | None = None, width: int = 1) -> Core:
    """Return a pool of one worker that has *jobs* in hand, and runs so many at once."""
    core = pool(1, limits=WorkerLimits(drain_timeout=drain_timeout), concurrency=width)
    for job in jobs:
        assert core.submit(job, short()) == 0
    return core


@pytest.mark.parametrize(
    ("mode", "commands"),
    [
        (KILL, [cmd.Kill(0)]),
        (INTERRUPT, [cmd.Interrupt(0, 1)]),
        (CancelMode("interrupt", 0.0), [cmd.Kill(0)]),
        (CancelMode("wait", 2.0), []),
    ],
)
def test_a_job_that_is_cancelled_ends_as_its_caller_wants(
    mode: CancelMode, commands: list[object]
) -> None:
    core = busy(1)
    assert core.cancel(1, 1.0, index=0, begun=True, mode=mode) == commands


@pytest.mark.parametrize(
    ("mode", "commands", "due"),
    [
        (KILL, [cmd.WriteStacks(0, 1)], 1.0 + STACK_GRACE),
        (CancelMode("interrupt", 0.0), [cmd.WriteStacks(0, 1)], 1.0 + STACK_GRACE),
        (INTERRUPT, [cmd.WriteStacks(0, 1), cmd.Interrupt(0, 1)], 3.0),
        (
            CancelMode("interrupt", LEAST_GRACE),
            [cmd.WriteStacks(0, 1), cmd.Interrupt(0, 1)],
            1.0 + LEAST_GRACE,
        ),
        # With less time the job is not asked: its worker only writes the stacks.
        (
            CancelMode("interrupt", LEAST_GRACE / 2),
            [cmd.WriteStacks(0, 1)],
            1.0 + STACK_GRACE,
        ),
        # It cannot be waited for: its caller does.
        (CancelMode("wait", 2.0), [cmd.WriteStacks(0, 1), cmd.Interrupt(0, 1)], 3.0),
    ],
)
def test_a_job_whose_time_is_over_says_where_it_is_first(
    mode: CancelMode, commands: list[object], due: float
) -> None:
    core = busy(1)
    assert core.expire(1, 1.0, index=0, mode=mode) == commands
    assert core.next_deadline() == due
    assert core.on_timer(due) == [cmd.Kill(0)]


def test_a_late_job_fails_when_it_is_given_back_and_is_in_time_if_it_has_begun() -> (
    None
):
    core = busy(1, 2, 3)
    assert core.revoke(2, 0) == [cmd.Revoke(0, (2,))]
    core.revoke(3, 0)
    assert core.revoked(0, (2,), 1.0) == [
        cmd.Unassign((2,)),
        cmd.FailJobs((2,), "expired"),
    ]
    assert core.is_revoked(3, 0)
    assert core.revoked(0, (), 1.1) == []
    assert not core.is_revoked(3, 0)
    assert not core.slots[0].job_endings, "it goes on like any other job"


def test_what_comes_back_to_a_pool_that_no_longer_runs_it_fails() -> None:
    core = busy(1, 2)
    assert cmd.Revoke(0, (2,)) in core.retire(0, "retire", 1.0, unsent=1)
    core.close(Finish.RUNNING, None, 1.0)
    assert core.revoked(0, (2,), 1.1)[:2] == [
        cmd.Unassign((2,)),
        cmd.FailJobs((2,), "closed"),
    ]


def test_a_worker_dies_when_all_that_are_to_have_said_where_they_are() -> None:
    core = busy(1, 2, width=3)
    core.hang(0, 1.0, 2)
    assert core.slots[0].job_endings.silent == 2
    assert core.expire(1, 1.0, index=0, mode=KILL) == [cmd.WriteStacks(0, 1)]
    assert core.stacks_written(0, 1.01, 1) == []
    assert core.stacks_written(0, 1.02, 2) == [cmd.Kill(0)]


def test_a_silent_job_that_is_cancelled_is_no_crash() -> None:
    core = busy(1, 2)
    assert core.hang(0, 1.0, 1) == [cmd.WriteStacks(0, 1), cmd.Revoke(0, (2,))]
    assert core.stacks_written(0, 1.01, 1) == []
    assert core.cancel(1, 1.02, index=0, begun=True) == []
    assert core.revoked(0, (2,), 1.03) == [cmd.Unassign((2,)), cmd.Kill(0)]
    assert core.slots[0].exit_planned


def test_a_worker_is_asked_for_what_waits_there_at_the_second_look() -> None:
    core = busy(1, 2)
    assert core.check_for_stalls() == []
    assert core.check_for_stalls() == [cmd.Revoke(0, (2,))]
    assert core.check_for_stalls() == []


def test_a_cancelled_job_is_unanswered_until_its_worker_gives_it_back_or_goes() -> None:
    core = busy(1, 2, 3)
    assert core.cancel(2, 1.0, index=0, begun=False) == [cmd.Revoke(0, (2,))]
    assert [core.unanswered(job, 0) for job in (1, 2, 3)] == [False, True, False]
    core.revoked(0, (2,), 1.1)
    assert not core.unanswered(2, 0)
    core.cancel(3, 1.2, index=0, begun=False)
    assert core.unanswered(3, 0)
    assert core.cancel(1, 1.2, index=0, begun=True) == []  # 3 may begin first
    assert core.next_deadline() == 1.2 + REVOKE_GRACE
    assert core.on_timer(1.2 + REVOKE_GRACE) == [cmd.Kill(0)]
    assert not core.unanswered(3, 0)


@pytest.mark.parametrize("mode", [KILL, INTERRUPT, None])
def test_a_worker_that_is_asked_late_for_its_stacks_has_time_to_write_them(
    mode: CancelMode | None,
) -> None:
    core = busy(1) if mode else busy()
    if mode:
        core.expire(1, 1.0, index=0, mode=mode)
    else:
        core.hang(0, 1.0)
    core.stacks_signalled(0, 9.5)
    assert core.next_deadline() == 9.5
    assert core.on_timer(9.4) == []
    assert core.on_timer(9.5) == [cmd.Kill(0)]


def test_no_other_job_of_the_worker_cuts_that_time_short() -> None:
    core = busy(1, 2, 3, width=3)
    core.cancel(1, 1.0, index=0, begun=True, mode=CancelMode("interrupt", 0.2))
    for job in (2, 3):
        core.expire(job, 1.0, index=0, mode=KILL)
    core.stacks_signalled(0, 9.5)
    assert core.next_deadline() == 9.5
    assert core.on_timer(9.4) == []
    assert core.on_timer(9.5) == [cmd.Kill(0)]


def test_a_worker_that_is_asked_in_time_has_no_less() -> None:
    core = busy(1)
    core.expire(1, 1.0, index=0, mode=KILL)
    core.stacks_signalled(0, 1.1)
    assert core.next_deadline() == 1.0 + STACK_GRACE
    idle = busy()
    idle.hang(0, 1.0)
    idle.stacks_signalled(0, 1.1)
    assert idle.next_deadline() == 1.0 + STACK_GRACE


def test_a_worker_that_ends_already_has_the_time_of_its_end() -> None:
    core = busy(1)
    core.expire(1, 1.0, index=0, mode=INTERRUPT)
    core.close(Finish.NOTHING, 5.0, 1.01)
    due = core.next_deadline()
    assert core.slots[0].state is SlotState.STOPPING
    core.stacks_signalled(0, 9.5)
    assert core.next_deadline() == due == 3.01


def test_a_job_that_nobody_ends_gets_no_deadline_by_that() -> None:
    core = busy(1)
    core.stacks_signalled(0, 9.5)
    assert core.next_deadline() is None
    core = busy()
    core.stacks_signalled(0, 9.5)
    assert core.next_deadline() is None


def test_the_longest_time_of_the_jobs_that_are_interrupted_counts() -> None:
    core = busy(1, 2, 3, width=3)
    assert core.longest_grace == 0.0
    for job, mode in ((1, INTERRUPT), (2, CancelMode("interrupt", 1.0)), (3, KILL)):
        core.cancel(job, 1.0, index=0, begun=True, mode=mode)
    assert core.longest_grace == INTERRUPT.grace
    core.close(Finish.NOTHING, 5.0, 1.01)
    assert core.longest_grace == INTERRUPT.grace, "it is known when the pool has closed"


# When workers that do not end in time are asked where they are.


@pytest.mark.parametrize("jobs", [(), (1,)])
def test_nobody_who_need_not_end_is_asked(jobs: tuple[int, ...]) -> None:
    core = busy(*jobs)
    assert core.next_stack_request() is None
    core.close(Finish.ALL, None, 1.0)
    core.ended(0, 1.5, had_begun=False, requeue=(), jitter=0.0)
    assert core.next_stack_request() is None
    assert core.overdue(1e9) == []


def test_who_was_stopped_is_asked_once_before_it_gets_a_signal() -> None:
    core = busy()
    core.close(Finish.ALL, None, 1.0)
    due = 1.0 + STOP_GRACE
    look_at = core.next_stack_request()
    assert look_at == due - STACK_GRACE
    assert core.overdue(look_at - 0.01) == []
    assert core.overdue(look_at) == [(0, due)]
    assert core.next_stack_request() is None
    assert core.overdue(look_at) == []
    assert core.on_timer(due) == [cmd.Terminate(0)]
    assert core.next_stack_request() is None
    assert core.on_timer(due + TERM_GRACE) == [cmd.Kill(0)]


def test_who_was_sent_sigterm_is_asked_before_sigkill() -> None:
    core = busy(1)
    core.close(Finish.NOTHING, None, 1.0)
    assert core.overdue(1.0 + TERM_GRACE) == [(0, 1.0 + TERM_GRACE)]


def test_whose_job_is_long_is_asked_before_the_time_of_the_close_is_over() -> None:
    core = busy(1)
    core.close(Finish.ALL, 50.0, 1.0)
    assert core.next_stack_request() == 50.0 - STACK_GRACE
    assert core.overdue(50.0 - STACK_GRACE) == [(0, 50.0)]
    assert cmd.Kill(0) in core.on_timer(50.0)
    assert core.next_stack_request() is None


def test_who_leaves_is_asked_before_its_time_is_over() -> None:
    core = busy(1, drain_timeout=10.0)
    core.roll(1.0)
    assert core.next_stack_request() == 21.0 - STACK_GRACE  # the new one
    core.ready(1, 2.0)
    assert core.overdue(12.0) == [(0, 12.0)]


def test_who_works_for_somebody_beside_a_cancelled_job_is_asked() -> None:
    core, mode = busy(1, 2, width=2), CancelMode("interrupt", 3600.0)
    core.cancel(1, 1.0, index=0, begun=True, mode=mode)
    core.close(Finish.ALL, 60.0, 2.0)
    assert core.next_stack_request() == 60.0 - STACK_GRACE
    core.cancel(2, 3.0, index=0, begun=True, mode=mode)
    assert core.next_stack_request() is None


# The end of a pool.


def pool_with(jobs: int, *, ready: bool = True) -> Core:
    """Return a pool of one worker, which has the first of so many jobs, if it is ready."""
    core = pool(1, ready=int(ready), policy=RestartPolicy(initial_delay=10.0))
    slots = [core.submit(job, JobTraits()) for job in range(jobs)]
    assert slots[:1] in ([], [0])
    return core


def test_it_drains_while_it_finishes_all_and_is_not_over() -> None:
    core = pool_with(1)
    seen = [core.closing.draining]
    core.close(Finish.ALL, None, 1.0)
    seen.append(core.closing.draining)
    core.outcome(0, 0)
    assert cmd.Stop(0) in core.refill(0, 2.0)
    seen.append(core.closing.draining)
    commands = core.ended(0, 3.0, had_begun=False, requeue=(), jitter=0.0)
    assert cmd.Finished() in commands
    assert [*seen, core.closing.draining] == [False, True, True, False]


@pytest.mark.parametrize("held", [False, True])
def test_what_is_not_there_is_not_started_when_its_time_is_over(*, held: bool) -> None:
    core = pool_with(0, ready=False)
    core.ended(0, 1.0, had_begun=False, requeue=(), jitter=0.0)
    assert core.next_deadline() is not None
    if held:  # it goes on trying, as long as it has the time
        core.hold()
        assert core.close(Finish.ALL, 5.0, 1.0) == []
        assert core.on_timer(5.0) == [cmd.Finished()]
    else:
        assert core.close(Finish.ALL, 5.0, 1.0) == [cmd.Finished()]
    assert core.next_deadline() is None


def test_no_worker_is_started_when_the_time_to_close_is_over_too() -> None:
    core = pool(2, policy=RestartPolicy(initial_delay=1.0))
    for now in (1.0, 1.5):  # the first one dies, and the next one never gets ready
        core.ended(0, now, had_begun=False, requeue=(), jitter=0.0)
    assert [core.submit(job, JobTraits()) for job in (1, 2)] == [1, None]
    assert core.close(Finish.ALL, 2.5, 1.5) == []
    assert core.on_timer(2.5) == [cmd.FailJobs((1, 2), "closed"), cmd.Kill(1)]
    assert core.next_deadline() == 2.5 + KILL_GRACE


def test_when_nobody_decides_any_more_it_is_over() -> None:
    core = pool_with(1)
    core.abandon()
    assert (core.over, core.finish) == (True, Finish.NOTHING)


def done(core: Core, index: int, job: int, now: float) -> list[cmd.Command]:
    core.outcome(index, job)
    return core.refill(index, now)


def test_a_worn_worker_of_a_pool_that_drains_is_replaced_as_long_as_jobs_wait() -> None:
    core = pool(1, limits=WorkerLimits(max_jobs=2, jitter=0))
    for job in range(3):
        core.submit(job, STREAM_TRAITS)
    assert core.close(Finish.ALL, None, 1.0) == []
    assert done(core, 0, 0, 2.0) == [cmd.Assign(0, (1,)), cmd.Spawn(1, 1)]
    assert core.ready(1, 3.0) == [cmd.Draining(0, "max_jobs"), cmd.Assign(1, (2,))]
    # Nothing waits any more: both go when they are through, and nobody comes.
    assert done(core, 0, 1, 4.0) == [cmd.Stop(0)]
    assert done(core, 1, 2, 4.0) == [cmd.Stop(1)]


def test_a_roll_goes_on_and_ends_with_the_last_job_that_waits() -> None:
    core = pool_with(3)
    assert core.roll(0.5) == [cmd.Spawn(1, 1)]
    assert core.close(Finish.ALL, None, 1.0) == []
    assert core.lifecycle.rolling
    assert core.ready(1, 2.0) == [cmd.Draining(0, "roll"), cmd.Assign(1, (1,))]
    assert done(core, 1, 1, 3.0) == [
        cmd.Assign(1, (2,)),
        cmd.RollEnded(0, "the pool was closed"),
    ]
