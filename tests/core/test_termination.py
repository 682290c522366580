"""How jobs are made to end, and their workers with them."""

from __future__ import annotations

import pytest

from tests.core.pool_core import (
    KILL,
    LEAST_GRACE,
    REVOKE_GRACE,
    STACK_GRACE,
    STOP_GRACE,
    TERM_GRACE,
    CancelMode,
    Core,
    EndingStage,
    Finish,
    JobTraits,
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


def test_a_job_is_asked_once() -> None:
    core = busy(1)
    assert core.expire(1, 1.0, index=0, mode=INTERRUPT) != []
    assert core.cancel(1, 2.0, index=0, begun=True, mode=INTERRUPT) == []
    assert core.next_deadline() == 3.0


def test_a_job_that_is_late_fails_when_it_is_given_back() -> None:
    core = busy(1, 2, 3)
    assert core.revoke(2, 0) == [cmd.Revoke(0, (2,))]
    assert core.is_revoked(2, 0)
    assert core.revoke(2, 0) == [], "it is asked once"
    assert core.revoked(0, (2,), 1.0) == [
        cmd.Unassign((2,)),
        cmd.FailJobs((2,), "expired"),
    ]
    assert not core.is_revoked(2, 0)
    core.outcome(0, 1)
    core.outcome(0, 3)
    assert core.slots[0].in_flight.jobs == {}


def test_a_late_job_that_has_begun_is_in_time_though_others_are_still_asked_for() -> (
    None
):
    core = busy(1, 2, 3)
    core.revoke(2, 0)
    core.revoke(3, 0)
    assert core.revoked(0, (), 1.0) == []
    assert not core.is_revoked(2, 0)
    assert core.is_revoked(3, 0)


def test_a_job_that_is_asked_back_for_another_reason_fails_if_it_is_late() -> None:
    core = busy(1, 2, 3)
    core.check_for_stalls()
    assert core.check_for_stalls() == [cmd.Revoke(0, (2, 3))]
    assert core.revoke(3, 0) == []
    assert core.revoked(0, (2, 3), 1.0) == [
        cmd.Unassign((2, 3)),
        cmd.FailJobs((3,), "expired"),
    ]


def test_who_is_not_there_any_more_is_not_asked_for_what_is_late() -> None:
    core = busy(1, 2)
    core.outcome(0, 1)
    assert core.revoke(1, 0) == []
    core.close(Finish.NONE, 5.0, 1.0)
    assert core.revoke(2, 0) == []
    assert not core.is_revoked(2, 0)


def test_a_cancelled_job_is_unanswered_until_its_worker_gives_it_back_or_goes() -> None:
    core = busy(1, 2, 3)
    assert core.cancel(2, 1.0, index=0, begun=False) == [cmd.Revoke(0, (2,))]
    assert [core.unanswered(job, 0) for job in (1, 2, 3)] == [
        False,
        True,
        False,
    ]
    core.revoked(0, (2,), 1.1)
    assert not core.unanswered(2, 0)
    core.cancel(3, 1.2, index=0, begun=False)
    assert core.unanswered(3, 0)
    assert core.cancel(1, 1.2, index=0, begun=True) == []  # 3 may begin first
    assert core.next_deadline() == 1.2 + REVOKE_GRACE
    assert core.on_timer(1.2 + REVOKE_GRACE) == [cmd.Kill(0)]
    assert not core.unanswered(3, 0)


def test_a_silent_worker_is_killed_as_one_that_crashed() -> None:
    core = busy(1)
    assert core.hang(0, 1.0) == [cmd.WriteStacks(0, 1)]
    assert core.slots[0].hung
    assert core.stacks_written(0, 1.01) == [cmd.Kill(0)]
    assert not core.slots[0].exit_planned


def test_a_cancelled_job_is_no_crash_though_its_worker_was_silent_before() -> None:
    core = busy(1, 2)
    core.hang(0, 1.0)
    # The second one has begun after all, so that the worker was not silent.
    core.cancel(2, 1.01, index=0, begun=False)
    core.outcome(0, 1)
    assert core.revoked(0, (), 1.02) == [cmd.Kill(0)]
    assert core.slots[0].exit_planned


def several(*jobs: int) -> Core:
    """Return a pool whose only worker runs *jobs* at once, as far as there are three lanes."""
    return busy(*jobs, width=3)


def test_a_worker_is_not_silent_because_a_neighbour_has_ended() -> None:
    core = several(1, 2)
    core.cancel(1, 1.0, index=0, begun=True, mode=INTERRUPT)
    assert core.hang(0, 1.0, 2) == [cmd.WriteStacks(0, 2)]
    core.outcome(0, 1)
    assert core.slots[0].hung
    assert core.stacks_written(0, 1.01, 2) == [cmd.Kill(0)]
    core = several(1, 2)
    core.hang(0, 1.0, 2)
    core.outcome(0, 2)
    assert not core.slots[0].hung


def test_a_worker_dies_when_all_that_are_to_have_said_where_they_are() -> None:
    core = several(1, 2)
    for job in (1, 2):
        commands = core.expire(job, 1.0, index=0, mode=KILL)
        assert commands == [cmd.WriteStacks(0, job)]
    assert core.stacks_written(0, 1.01, 1) == []
    assert core.stacks_written(0, 1.01, 2) == [cmd.Kill(0)]


def test_a_stall_is_one_of_all_lanes() -> None:
    core = several(1, 2, 3, 4)
    assert core.check_for_stalls() == []
    core.outcome(0, 2)
    assert core.check_for_stalls() == []
    core.submit(5, core.slots[0].in_flight.jobs[4][2])
    assert core.check_for_stalls() == [cmd.Revoke(0, (5,))]


def test_a_caller_may_give_a_job_time_as_long_as_its_worker_lives() -> None:
    core = busy(1, 2)
    assert core.cancel(1, 1.0, index=0, begun=True) == [cmd.Revoke(0, (2,))]
    commands = core.cancel(1, 1.05, index=0, begun=True, mode=INTERRUPT)
    assert commands == [cmd.Interrupt(0, 1)]
    assert core.revoked(0, (2,), 1.06) == [cmd.Unassign((2,))]
    assert core.next_deadline() == 3.05
    assert core.on_timer(3.05) == [cmd.Kill(0)]


def test_a_worker_that_was_to_write_its_stacks_dies_when_they_are_there() -> None:
    core = busy(1, 2)
    core.expire(1, 1.0, index=0, mode=KILL)
    assert core.on_timer(1.0 + STACK_GRACE) == []  # the second one may begin
    commands = core.cancel(1, 1.3, index=0, begun=True, mode=INTERRUPT)
    assert commands == [cmd.Interrupt(0, 1)]
    assert core.revoked(0, (2,), 1.31) == [cmd.Unassign((2,))]
    assert core.stacks_written(0, 1.32, 1) == [cmd.Kill(0)]


def test_a_worker_that_is_killed_for_a_job_is_not_saved_by_its_outcome() -> None:
    core = busy(1)
    core.cancel(1, 1.0, index=0, begun=True)
    core.outcome(0, 1)
    assert core.refill(0, 1.01) == []
    assert core.slots[0].job_endings.killing == 1
    assert core.slots[0].job_endings.is_wanted(1), "there is nothing to give up"


def test_a_worker_dies_of_no_job_if_the_pool_ends_it_anyway() -> None:
    core = busy(1, 2)
    core.cancel(1, 1.0, index=0, begun=True)
    assert core.slots[0].job_endings.killing == 1
    core.close(Finish.NONE, 5.0, 1.01)
    assert core.slots[0].job_endings.killing is None


def test_how_long_a_cancelled_job_may_run_is_known_when_the_pool_has_closed() -> None:
    core = busy(1)
    core.cancel(1, 1.0, index=0, begun=True, mode=INTERRUPT)
    core.close(Finish.NONE, 5.0, 1.01)
    assert core.longest_grace == INTERRUPT.grace


def test_stacks_that_come_when_the_worker_ends_anyway_change_nothing() -> None:
    core = busy(1)
    core.expire(1, 1.0, index=0, mode=KILL)
    core.kill(0, 1.1)
    due = core.next_deadline()
    assert core.stacks_written(0, 1.2, 1) == []
    assert core.slots[0].job_endings.killing is None
    assert core.next_deadline() == due


def test_a_silent_job_that_is_cancelled_is_no_crash() -> None:
    core = busy(1, 2)
    assert core.hang(0, 1.0, 1) == [cmd.WriteStacks(0, 1), cmd.Revoke(0, (2,))]
    assert core.stacks_written(0, 1.01, 1) == []
    assert core.slots[0].hung
    assert core.cancel(1, 1.02, index=0, begun=True) == []
    assert [core.slots[0].job_endings.silent] == [None]
    assert core.revoked(0, (2,), 1.03) == [cmd.Unassign((2,)), cmd.Kill(0)]
    assert core.slots[0].exit_planned


def test_no_job_is_ended_in_a_worker_that_ends_anyway() -> None:
    core = busy(1, 2)
    assert core.cancel(2, 1.0, index=0, begun=False) == [cmd.Revoke(0, (2,))]
    assert [core.slots[0].job_endings[2].stage] == [EndingStage.REVOKING]
    core.kill(0, 1.1)
    assert core.cancel(1, 1.2, index=0, begun=True) == []
    assert core.expire(1, 1.3, index=0, mode=KILL) == []
    assert core.hang(0, 1.4, 1) == []
    assert core.revoked(0, (), 1.5) == [], "2 has begun, and ends with its worker"
    assert [core.slots[0].job_endings[2].stage] == [EndingStage.NONE]


def busy_second(*jobs: int) -> Core:
    """Return a pool of two workers: the first is idle, the second has *jobs* in hand."""
    core = pool(2, ready=0)
    core.ready(1, 0.0)
    for job in jobs:
        assert core.submit(job, short()) == 1
    core.ready(0, 0.0)
    return core


def test_a_stall_is_noticed_although_the_worker_before_has_none() -> None:
    core = busy_second(1, 2)
    assert core.check_for_stalls() == []
    assert core.check_for_stalls() == [cmd.Revoke(1, (2,))]


def test_a_worker_with_a_stall_is_asked_once_and_gets_nothing_more() -> None:
    core = busy(1, 2)
    core.check_for_stalls()
    assert core.check_for_stalls() == [cmd.Revoke(0, (2,))]
    assert core.check_for_stalls() == []
    short = JobTraits()
    short.cost = 10.0
    assert core.submit(3, short) is None


def test_an_idle_worker_that_is_silent_gets_nothing_more_and_is_killed() -> None:
    core = busy()
    assert core.hang(0, 1.0) == [cmd.WriteStacks(0, None)]
    assert core.hang(0, 1.1) == [], "it is killed once"
    assert core.submit(1, JobTraits()) is None
    assert core.next_deadline() == 1.0 + STACK_GRACE
    assert core.on_timer(1.0 + STACK_GRACE) == [cmd.Kill(0)]
    assert not core.slots[0].exit_planned


def test_an_idle_worker_that_has_written_its_stacks_is_killed_at_once() -> None:
    core = busy()
    core.hang(0, 1.0)
    assert core.stacks_written(0, 1.01) == [cmd.Kill(0)]
    assert not core.slots[0].exit_planned


@pytest.mark.parametrize("mode", [KILL, INTERRUPT])
def test_a_worker_that_is_asked_late_for_its_stacks_has_time_to_write_them(
    mode: CancelMode,
) -> None:
    core = busy(1)
    core.expire(1, 1.0, index=0, mode=mode)
    core.stacks_demanded(0, 9.5)
    assert core.next_deadline() == 9.5
    assert core.on_timer(9.4) == []
    assert core.on_timer(9.5) == [cmd.Kill(0)]


def test_no_other_job_of_the_worker_cuts_that_time_short() -> None:
    core = several(1, 2, 3)
    core.cancel(1, 1.0, index=0, begun=True, mode=CancelMode("interrupt", 0.2))
    for job in (2, 3):
        core.expire(job, 1.0, index=0, mode=KILL)
    core.stacks_demanded(0, 9.5)
    assert core.next_deadline() == 9.5
    assert core.on_timer(9.4) == []
    assert core.on_timer(9.5) == [cmd.Kill(0)]


def test_so_does_an_idle_worker_that_is_silent() -> None:
    core = busy()
    core.hang(0, 1.0)
    core.stacks_demanded(0, 9.5)
    assert core.on_timer(9.4) == []
    assert core.on_timer(9.5) == [cmd.Kill(0)]


def test_a_worker_that_is_asked_in_time_has_no_less() -> None:
    core = busy(1)
    core.expire(1, 1.0, index=0, mode=KILL)
    core.stacks_demanded(0, 1.1)
    assert core.next_deadline() == 1.0 + STACK_GRACE
    idle = busy()
    idle.hang(0, 1.0)
    idle.stacks_demanded(0, 1.1)
    assert idle.next_deadline() == 1.0 + STACK_GRACE


def test_a_worker_that_ends_already_has_the_time_of_its_end() -> None:
    core = busy(1)
    core.expire(1, 1.0, index=0, mode=INTERRUPT)
    core.close(Finish.NONE, 5.0, 1.01)
    due = core.next_deadline()
    assert core.slots[0].state is SlotState.STOPPING
    core.stacks_demanded(0, 9.5)
    assert core.next_deadline() == due == 3.01


def test_a_job_that_nobody_ends_gets_no_deadline_by_that() -> None:
    core = busy(1)
    core.stacks_demanded(0, 9.5)
    assert core.next_deadline() is None
    core = busy()
    core.stacks_demanded(0, 9.5)
    assert core.next_deadline() is None


def test_a_silent_job_gets_no_more_time_than_its_stacks_take() -> None:
    core = busy(1)
    core.cancel(1, 1.0, index=0, begun=True, mode=INTERRUPT)
    assert core.hang(0, 1.1, 1) == [cmd.WriteStacks(0, 1)]
    assert core.next_deadline() == 1.1 + STACK_GRACE
    assert core.stacks_written(0, 1.2, 1) == [cmd.Kill(0)]


def test_the_stacks_of_a_silent_job_are_waited_for_too() -> None:
    core = several(1, 2)
    core.hang(0, 1.0, 1)
    core.expire(2, 1.0, index=0, mode=KILL)
    assert core.stacks_written(0, 1.01, 2) == []
    assert core.stacks_written(0, 1.02, 1) == [cmd.Kill(0)]


def test_the_longest_time_of_the_jobs_that_are_interrupted_counts() -> None:
    core = several(1, 2, 3)
    assert core.longest_grace == 0.0
    for job, mode in ((1, INTERRUPT), (2, CancelMode("interrupt", 1.0)), (3, KILL)):
        core.cancel(job, 1.0, index=0, begun=True, mode=mode)
    assert core.longest_grace == INTERRUPT.grace


def test_the_time_of_a_job_ends_although_the_worker_before_has_no_such_job() -> None:
    core = busy_second(1, 2)
    core.cancel(1, 1.0, index=1, begun=True, mode=INTERRUPT)
    assert core.on_timer(3.0) == [], "the worker may still give back 2"
    assert core.next_deadline() == 3.0 + REVOKE_GRACE
    assert core.on_timer(3.0 + REVOKE_GRACE) == [cmd.Kill(1)]


# When workers that do not end in time are asked where they are.


@pytest.mark.parametrize("jobs", [(), (1,)])
def test_nobody_who_need_not_end_is_asked(jobs: tuple[int, ...]) -> None:
    core = busy(*jobs)
    assert core.next_overdue() is None
    core.close(Finish.ALL, None, 1.0)
    core.ended(0, 1.5, started=False, requeue=(), jitter=0.0)
    assert core.next_overdue() is None
    assert core.overdue(1e9) == []


def test_who_was_stopped_is_asked_once_before_it_gets_a_signal() -> None:
    core = busy()
    core.close(Finish.ALL, None, 1.0)
    due = 1.0 + STOP_GRACE
    look_at = core.next_overdue()
    assert look_at == due - STACK_GRACE
    assert core.overdue(look_at - 0.01) == []
    assert core.overdue(look_at) == [(0, due)]
    assert core.next_overdue() is None
    assert core.overdue(look_at) == []
    assert core.on_timer(due) == [cmd.Terminate(0)]
    assert core.next_overdue() is None
    assert core.on_timer(due + TERM_GRACE) == [cmd.Kill(0)]


def test_who_was_sent_sigterm_is_asked_before_sigkill() -> None:
    core = busy(1)
    core.close(Finish.NONE, None, 1.0)
    assert core.overdue(1.0 + TERM_GRACE) == [(0, 1.0 + TERM_GRACE)]


def test_whose_job_is_long_is_asked_before_the_time_of_the_close_is_over() -> None:
    core = busy(1)
    core.close(Finish.ALL, 50.0, 1.0)
    assert core.next_overdue() == 50.0 - STACK_GRACE
    assert core.overdue(50.0 - STACK_GRACE) == [(0, 50.0)]
    assert cmd.Kill(0) in core.on_timer(50.0)
    assert core.next_overdue() is None


def test_who_leaves_is_asked_before_its_time_is_over() -> None:
    core = busy(1, drain_timeout=10.0)
    core.roll(1.0)
    assert core.next_overdue() == 21.0 - STACK_GRACE  # the new one
    core.ready(1, 2.0)
    assert core.overdue(12.0) == [(0, 12.0)]


def test_who_works_for_somebody_beside_a_cancelled_job_is_asked() -> None:
    core, mode = busy(1, 2, width=2), CancelMode("interrupt", 3600.0)
    core.cancel(1, 1.0, index=0, begun=True, mode=mode)
    core.close(Finish.ALL, 60.0, 2.0)
    assert core.next_overdue() == 60.0 - STACK_GRACE
    core.cancel(2, 3.0, index=0, begun=True, mode=mode)
    assert core.next_overdue() is None
