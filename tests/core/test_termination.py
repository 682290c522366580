"""How jobs are made to end; what follows for the pool is in ``test_histories.py``."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import LOADING_TRAITS, JobTraits
from asyncpool._core.policies.job_options import KILL, CancelMode
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.slots.commands import (
    Assign,
    FailJobs,
    Interrupt,
    Kill,
    Revoke,
    Stop,
    Unassign,
    WriteStacks,
)
from asyncpool._core.slots.job_ending import EndingStage
from asyncpool._core.supervision.closing import Finish
from asyncpool._core.supervision.supervision import Supervision
from asyncpool._core.supervision.termination import (
    LEAST_GRACE,
    REVOKE_GRACE,
    STACK_GRACE,
)
from asyncpool.enums import SlotState

INTERRUPT = CancelMode("interrupt", 2.0)


def busy(*jobs: int) -> Supervision:
    """Return a pool of one worker that has *jobs* in hand."""
    core = Supervision(workers=(1, 1), policy=RestartPolicy(), start_timeout=20.0)
    core.workers.start(0.0)
    core.workers.ready(0, 0.0)
    traits = JobTraits()
    traits.cost = 10.0
    for job in jobs:
        assert core.jobs.submit(job, traits) == 0
    return core


@pytest.mark.parametrize(
    ("mode", "commands"),
    [
        (KILL, [Kill(0)]),
        (INTERRUPT, [Interrupt(0, 1)]),
        (CancelMode("interrupt", 0.0), [Kill(0)]),
        (CancelMode("wait", 2.0), []),
    ],
)
def test_a_job_that_is_cancelled_ends_as_its_caller_wants(
    mode: CancelMode, commands: list[object]
) -> None:
    core = busy(1)
    assert core.jobs.cancel(1, 1.0, index=0, begun=True, mode=mode) == commands


@pytest.mark.parametrize(
    ("mode", "commands", "due"),
    [
        (KILL, [WriteStacks(0, 1)], 1.0 + STACK_GRACE),
        (CancelMode("interrupt", 0.0), [WriteStacks(0, 1)], 1.0 + STACK_GRACE),
        (INTERRUPT, [WriteStacks(0, 1), Interrupt(0, 1)], 3.0),
        (
            CancelMode("interrupt", LEAST_GRACE),
            [WriteStacks(0, 1), Interrupt(0, 1)],
            1.0 + LEAST_GRACE,
        ),
        # With less time the job is not asked: its worker only writes the stacks.
        (
            CancelMode("interrupt", LEAST_GRACE / 2),
            [WriteStacks(0, 1)],
            1.0 + STACK_GRACE,
        ),
        # It cannot be waited for: its caller does.
        (CancelMode("wait", 2.0), [WriteStacks(0, 1), Interrupt(0, 1)], 3.0),
    ],
)
def test_a_job_whose_time_is_over_says_where_it_is_first(
    mode: CancelMode, commands: list[object], due: float
) -> None:
    core = busy(1)
    assert core.termination.expire(1, 1.0, index=0, mode=mode) == commands
    assert core.next_deadline() == due
    assert core.on_timer(due) == [Kill(0)]


def test_a_job_is_asked_once() -> None:
    core = busy(1)
    assert core.termination.expire(1, 1.0, index=0, mode=INTERRUPT) != []
    assert core.jobs.cancel(1, 2.0, index=0, begun=True, mode=INTERRUPT) == []
    assert core.next_deadline() == 3.0


def test_a_job_that_ends_in_time_is_forgiven() -> None:
    core = busy(1)
    core.jobs.cancel(1, 1.0, index=0, begun=True, mode=INTERRUPT)
    core.jobs.outcome(0, 1)
    assert core.jobs.refill(0, 1.5) == []
    assert core.next_deadline() is None
    assert core.jobs.submit(2, JobTraits()) == 0


def test_nobody_waits_behind_a_job_that_is_to_end() -> None:
    core = busy(1, 2, 3)
    commands = core.jobs.cancel(1, 1.0, index=0, begun=True, mode=INTERRUPT)
    assert commands == [Interrupt(0, 1), Revoke(0, (2, 3))]
    traits = JobTraits()
    traits.cost = 10.0
    assert core.jobs.submit(4, traits) is None
    core.jobs.revoked(0, (2, 3), 1.1)
    core.jobs.outcome(0, 1)
    assert core.jobs.refill(0, 1.2) == [Assign(0, (2, 3, 4))]


def test_a_job_that_is_late_fails_when_it_is_given_back() -> None:
    core = busy(1, 2, 3)
    assert core.termination.revoke(2, 0) == [Revoke(0, (2,))]
    assert core.termination.is_revoked(2, 0)
    assert core.termination.revoke(2, 0) == [], "it is asked once"
    assert core.jobs.revoked(0, (2,), 1.0) == [
        Unassign((2,)),
        FailJobs((2,), "expired"),
    ]
    assert not core.termination.is_revoked(2, 0)
    core.jobs.outcome(0, 1)
    core.jobs.outcome(0, 3)
    assert core.slots[0].in_flight.jobs == {}


def test_a_job_that_was_late_and_has_begun_goes_on() -> None:
    core = busy(1, 2)
    core.termination.revoke(2, 0)
    assert core.jobs.revoked(0, (), 1.0) == []
    assert not core.termination.is_revoked(2, 0)
    core.jobs.outcome(0, 1)
    core.jobs.outcome(0, 2)


def test_a_late_job_that_has_begun_is_in_time_though_others_are_still_asked_for() -> (
    None
):
    core = busy(1, 2, 3)
    core.termination.revoke(2, 0)
    core.termination.revoke(3, 0)
    assert core.jobs.revoked(0, (), 1.0) == []
    assert not core.termination.is_revoked(2, 0)
    assert core.termination.is_revoked(3, 0)


def test_a_job_that_is_asked_back_for_another_reason_fails_if_it_is_late() -> None:
    core = busy(1, 2, 3)
    core.termination.check_for_stalls()
    assert core.termination.check_for_stalls() == [Revoke(0, (2, 3))]
    assert core.termination.revoke(3, 0) == []
    assert core.jobs.revoked(0, (2, 3), 1.0) == [
        Unassign((2, 3)),
        FailJobs((3,), "expired"),
    ]


def test_who_is_not_there_any_more_is_not_asked_for_what_is_late() -> None:
    core = busy(1, 2)
    core.jobs.outcome(0, 1)
    assert core.termination.revoke(1, 0) == []
    core.close(Finish.NONE, 5.0, 1.0)
    assert core.termination.revoke(2, 0) == []
    assert not core.termination.is_revoked(2, 0)


def test_a_cancelled_job_is_unanswered_until_its_worker_gives_it_back_or_goes() -> None:
    core = busy(1, 2, 3)
    assert core.jobs.cancel(2, 1.0, index=0, begun=False) == [Revoke(0, (2,))]
    assert [core.termination.unanswered(job, 0) for job in (1, 2, 3)] == [
        False,
        True,
        False,
    ]
    core.jobs.revoked(0, (2,), 1.1)
    assert not core.termination.unanswered(2, 0)
    core.jobs.cancel(3, 1.2, index=0, begun=False)
    assert core.termination.unanswered(3, 0)
    assert core.jobs.cancel(1, 1.2, index=0, begun=True) == []  # 3 may begin first
    assert core.next_deadline() == 1.2 + REVOKE_GRACE
    assert core.on_timer(1.2 + REVOKE_GRACE) == [Kill(0)]
    assert not core.termination.unanswered(3, 0)


def test_who_does_not_give_back_the_others_is_not_waited_for() -> None:
    core = busy(1, 2)
    assert core.jobs.cancel(1, 1.0, index=0, begun=True) == [Revoke(0, (2,))]
    assert core.next_deadline() == 1.0 + REVOKE_GRACE
    assert core.on_timer(1.0 + REVOKE_GRACE) == [Kill(0)]


def test_a_silent_worker_is_killed_as_one_that_crashed() -> None:
    core = busy(1)
    assert core.termination.hang(0, 1.0) == [WriteStacks(0, 1)]
    assert core.slots[0].hung
    assert core.termination.stacks_written(0, 1.01) == [Kill(0)]
    assert not core.slots[0].exit_planned


def test_a_cancelled_job_is_no_crash_though_its_worker_was_silent_before() -> None:
    core = busy(1, 2)
    core.termination.hang(0, 1.0)
    # The second one has begun after all, so that the worker was not silent.
    core.jobs.cancel(2, 1.01, index=0, begun=False)
    core.jobs.outcome(0, 1)
    assert core.jobs.revoked(0, (), 1.02) == [Kill(0)]
    assert core.slots[0].exit_planned


def several(*jobs: int, width: int = 3) -> Supervision:
    """Return a core whose only worker runs *jobs* at once, as far as there are lanes."""
    core = Supervision(
        workers=(1, 1), policy=RestartPolicy(), start_timeout=20.0, concurrency=width
    )
    core.workers.start(0.0)
    core.workers.ready(0, 0.0)
    for job in jobs:
        traits = JobTraits()
        traits.note(10)
        assert core.jobs.submit(job, traits) == 0
    return core


def test_one_of_several_is_asked_to_end_and_nothing_begins_beside_it() -> None:
    core = several(1, 2)
    assert core.jobs.cancel(2, 1.0, index=0, begun=True, mode=INTERRUPT) == [
        Interrupt(0, 2)
    ]
    assert core.jobs.submit(3, JobTraits()) is None
    core.jobs.outcome(0, 1)
    assert core.jobs.refill(0, 1.1) == []
    core.jobs.outcome(0, 2)
    assert core.jobs.refill(0, 1.2) == [Assign(0, (3,))]
    assert core.next_deadline() is None


def test_each_of_several_has_its_own_time_to_end() -> None:
    core = several(1, 2, 3)
    for job in (1, 2):
        mode = CancelMode("interrupt", float(job))
        core.jobs.cancel(job, 1.0, index=0, begun=True, mode=mode)
    assert core.next_deadline() == 2.0
    core.jobs.outcome(0, 1)
    assert core.next_deadline() == 3.0
    assert core.on_timer(3.0) == [Kill(0)]


def test_those_beside_a_job_are_not_waited_for_but_those_behind_are_given_back() -> (
    None
):
    core = several(1, 2, 3)
    assert core.jobs.cancel(1, 1.0, index=0, begun=True) == [Kill(0)]
    core = several(1, 2, 3, 4, 5)
    assert core.jobs.cancel(1, 1.0, index=0, begun=True) == [Revoke(0, (4, 5))]
    assert core.jobs.revoked(0, [4, 5], 1.01) == [Unassign((4, 5)), Kill(0)]


def test_a_worker_is_not_silent_because_a_neighbour_has_ended() -> None:
    core = several(1, 2)
    core.jobs.cancel(1, 1.0, index=0, begun=True, mode=INTERRUPT)
    assert core.termination.hang(0, 1.0, 2) == [WriteStacks(0, 2)]
    core.jobs.outcome(0, 1)
    assert core.slots[0].hung
    assert core.termination.stacks_written(0, 1.01, 2) == [Kill(0)]
    core = several(1, 2)
    core.termination.hang(0, 1.0, 2)
    core.jobs.outcome(0, 2)
    assert not core.slots[0].hung


def test_a_worker_dies_when_all_that_are_to_have_said_where_they_are() -> None:
    core = several(1, 2)
    for job in (1, 2):
        commands = core.termination.expire(job, 1.0, index=0, mode=KILL)
        assert commands == [WriteStacks(0, job)]
    assert core.termination.stacks_written(0, 1.01, 1) == []
    assert core.termination.stacks_written(0, 1.01, 2) == [Kill(0)]


def test_a_stall_is_one_of_all_lanes() -> None:
    core = several(1, 2, 3, 4)
    assert core.termination.check_for_stalls() == []
    core.jobs.outcome(0, 2)
    assert core.termination.check_for_stalls() == []
    core.jobs.submit(5, core.slots[0].in_flight.jobs[4][2])
    assert core.termination.check_for_stalls() == [Revoke(0, (5,))]


def test_nothing_is_sent_while_a_job_is_loading_and_more_when_it_is_sent() -> None:
    core = several(1)
    assert core.jobs.submit(2, LOADING_TRAITS) == 0
    assert core.jobs.submit(3, JobTraits()) is None
    assert core.jobs.arguments_loaded(0, 1.0) == [Assign(0, (3,))]
    assert core.jobs.arguments_loaded(0, 1.0) == []


def test_a_caller_may_give_a_job_time_as_long_as_its_worker_lives() -> None:
    core = busy(1, 2)
    assert core.jobs.cancel(1, 1.0, index=0, begun=True) == [Revoke(0, (2,))]
    commands = core.jobs.cancel(1, 1.05, index=0, begun=True, mode=INTERRUPT)
    assert commands == [Interrupt(0, 1)]
    assert core.jobs.revoked(0, (2,), 1.06) == [Unassign((2,))]
    assert core.next_deadline() == 3.05
    assert core.on_timer(3.05) == [Kill(0)]


def test_a_worker_that_was_to_write_its_stacks_dies_when_they_are_there() -> None:
    core = busy(1, 2)
    core.termination.expire(1, 1.0, index=0, mode=KILL)
    assert core.on_timer(1.0 + STACK_GRACE) == []  # the second one may begin
    commands = core.jobs.cancel(1, 1.3, index=0, begun=True, mode=INTERRUPT)
    assert commands == [Interrupt(0, 1)]
    assert core.jobs.revoked(0, (2,), 1.31) == [Unassign((2,))]
    assert core.termination.stacks_written(0, 1.32, 1) == [Kill(0)]


def test_a_worker_that_is_killed_for_a_job_is_not_saved_by_its_outcome() -> None:
    core = busy(1)
    core.jobs.cancel(1, 1.0, index=0, begun=True)
    core.jobs.outcome(0, 1)
    assert core.jobs.refill(0, 1.01) == []
    assert core.slots[0].job_endings.killing == 1
    assert core.slots[0].job_endings.is_wanted(1), "there is nothing to give up"


def test_a_worker_dies_of_no_job_if_the_pool_ends_it_anyway() -> None:
    core = busy(1, 2)
    core.jobs.cancel(1, 1.0, index=0, begun=True)
    assert core.slots[0].job_endings.killing == 1
    core.close(Finish.NONE, 5.0, 1.01)
    assert core.slots[0].job_endings.killing is None


def test_how_long_a_cancelled_job_may_run_is_known_when_the_pool_has_closed() -> None:
    core = busy(1)
    core.jobs.cancel(1, 1.0, index=0, begun=True, mode=INTERRUPT)
    core.close(Finish.NONE, 5.0, 1.01)
    assert core.termination.grace == INTERRUPT.grace


def test_no_deadline_of_a_job_counts_when_its_worker_ends() -> None:
    core = busy(1)
    core.jobs.cancel(1, 1.0, index=0, begun=True, mode=INTERRUPT)
    assert core.workers.kill(0, 1.1) == [Kill(0, "kill() was called")]
    assert core.on_timer(3.0) == []
    assert core.slots[0].job_endings.killing is None


def test_stacks_that_come_when_the_worker_ends_anyway_change_nothing() -> None:
    core = busy(1)
    core.termination.expire(1, 1.0, index=0, mode=KILL)
    core.workers.kill(0, 1.1)
    due = core.next_deadline()
    assert core.termination.stacks_written(0, 1.2, 1) == []
    assert core.slots[0].job_endings.killing is None
    assert core.next_deadline() == due


def test_a_silent_job_that_is_cancelled_is_no_crash() -> None:
    core = busy(1, 2)
    assert core.termination.hang(0, 1.0, 1) == [WriteStacks(0, 1), Revoke(0, (2,))]
    assert core.termination.stacks_written(0, 1.01, 1) == []
    assert core.slots[0].hung
    assert core.jobs.cancel(1, 1.02, index=0, begun=True) == []
    assert [core.slots[0].job_endings.silent] == [None]
    assert core.jobs.revoked(0, (2,), 1.03) == [Unassign((2,)), Kill(0)]
    assert core.slots[0].exit_planned


def test_no_job_is_ended_in_a_worker_that_ends_anyway() -> None:
    core = busy(1, 2)
    assert core.jobs.cancel(2, 1.0, index=0, begun=False) == [Revoke(0, (2,))]
    assert [core.slots[0].job_endings[2].stage] == [EndingStage.REVOKING]
    core.workers.kill(0, 1.1)
    assert core.jobs.cancel(1, 1.2, index=0, begun=True) == []
    assert core.termination.expire(1, 1.3, index=0, mode=KILL) == []
    assert core.termination.hang(0, 1.4, 1) == []
    assert core.jobs.revoked(0, (), 1.5) == [], "2 has begun, and ends with its worker"
    assert [core.slots[0].job_endings[2].stage] == [EndingStage.NONE]


def busy_second(*jobs: int) -> Supervision:
    """Return a core of two workers: the first is idle, the second has *jobs* in hand."""
    core = Supervision(workers=(2, 2), policy=RestartPolicy(), start_timeout=20.0)
    core.workers.start(0.0)
    core.workers.ready(1, 0.0)
    traits = JobTraits()
    traits.cost = 10.0
    for job in jobs:
        assert core.jobs.submit(job, traits) == 1
    core.workers.ready(0, 0.0)
    return core


def test_a_stall_is_noticed_although_the_worker_before_has_none() -> None:
    core = busy_second(1, 2)
    assert core.termination.check_for_stalls() == []
    assert core.termination.check_for_stalls() == [Revoke(1, (2,))]


def test_a_job_with_nobody_behind_it_is_no_stall() -> None:
    core = busy(1)
    core.termination.check_for_stalls()
    assert core.termination.check_for_stalls() == []


def test_a_worker_with_a_stall_is_asked_once_and_gets_nothing_more() -> None:
    core = busy(1, 2)
    core.termination.check_for_stalls()
    assert core.termination.check_for_stalls() == [Revoke(0, (2,))]
    assert core.termination.check_for_stalls() == []
    short = JobTraits()
    short.cost = 10.0
    assert core.jobs.submit(3, short) is None


def test_an_idle_worker_that_is_silent_gets_nothing_more_and_is_killed() -> None:
    core = busy()
    assert core.termination.hang(0, 1.0) == [WriteStacks(0, None)]
    assert core.termination.hang(0, 1.1) == [], "it is killed once"
    assert core.jobs.submit(1, JobTraits()) is None
    assert core.next_deadline() == 1.0 + STACK_GRACE
    assert core.on_timer(1.0 + STACK_GRACE) == [Kill(0)]
    assert not core.slots[0].exit_planned


def test_an_idle_worker_that_has_written_its_stacks_is_killed_at_once() -> None:
    core = busy()
    core.termination.hang(0, 1.0)
    assert core.termination.stacks_written(0, 1.01) == [Kill(0)]
    assert not core.slots[0].exit_planned


@pytest.mark.parametrize("mode", [KILL, INTERRUPT])
def test_a_worker_that_is_asked_late_for_its_stacks_has_time_to_write_them(
    mode: CancelMode,
) -> None:
    core = busy(1)
    core.termination.expire(1, 1.0, index=0, mode=mode)
    core.termination.stacks_demanded(0, 9.5)
    assert core.next_deadline() == 9.5
    assert core.on_timer(9.4) == []
    assert core.on_timer(9.5) == [Kill(0)]


def test_no_other_job_of_the_worker_cuts_that_time_short() -> None:
    core = several(1, 2, 3)
    core.jobs.cancel(1, 1.0, index=0, begun=True, mode=CancelMode("interrupt", 0.2))
    for job in (2, 3):
        core.termination.expire(job, 1.0, index=0, mode=KILL)
    core.termination.stacks_demanded(0, 9.5)
    assert core.next_deadline() == 9.5
    assert core.on_timer(9.4) == []
    assert core.on_timer(9.5) == [Kill(0)]


def test_so_does_an_idle_worker_that_is_silent() -> None:
    core = busy()
    core.termination.hang(0, 1.0)
    core.termination.stacks_demanded(0, 9.5)
    assert core.on_timer(9.4) == []
    assert core.on_timer(9.5) == [Kill(0)]


def test_a_worker_that_is_asked_in_time_has_no_less() -> None:
    core = busy(1)
    core.termination.expire(1, 1.0, index=0, mode=KILL)
    core.termination.stacks_demanded(0, 1.1)
    assert core.next_deadline() == 1.0 + STACK_GRACE
    idle = busy()
    idle.termination.hang(0, 1.0)
    idle.termination.stacks_demanded(0, 1.1)
    assert idle.next_deadline() == 1.0 + STACK_GRACE


def test_a_worker_that_ends_already_has_the_time_of_its_end() -> None:
    core = busy(1)
    core.termination.expire(1, 1.0, index=0, mode=INTERRUPT)
    core.close(Finish.NONE, 5.0, 1.01)
    due = core.next_deadline()
    assert core.slots[0].state is SlotState.STOPPING
    core.termination.stacks_demanded(0, 9.5)
    assert core.next_deadline() == due == 3.01


def test_a_job_that_nobody_ends_gets_no_deadline_by_that() -> None:
    core = busy(1)
    core.termination.stacks_demanded(0, 9.5)
    assert core.next_deadline() is None
    core = busy()
    core.termination.stacks_demanded(0, 9.5)
    assert core.next_deadline() is None


def test_a_silent_job_gets_no_more_time_than_its_stacks_take() -> None:
    core = busy(1)
    core.jobs.cancel(1, 1.0, index=0, begun=True, mode=INTERRUPT)
    assert core.termination.hang(0, 1.1, 1) == [WriteStacks(0, 1)]
    assert core.next_deadline() == 1.1 + STACK_GRACE
    assert core.termination.stacks_written(0, 1.2, 1) == [Kill(0)]


def test_the_stacks_of_a_silent_job_are_waited_for_too() -> None:
    core = several(1, 2)
    core.termination.hang(0, 1.0, 1)
    core.termination.expire(2, 1.0, index=0, mode=KILL)
    assert core.termination.stacks_written(0, 1.01, 2) == []
    assert core.termination.stacks_written(0, 1.02, 1) == [Kill(0)]


def test_a_faulty_worker_finishes_what_it_has_and_is_killed() -> None:
    core = busy(1, 2)
    assert core.workers.replace_faulty(0, 1.0) == []
    core.jobs.outcome(0, 1)
    assert core.jobs.refill(0, 1.1) == []
    core.jobs.outcome(0, 2)
    assert core.jobs.refill(0, 1.2) == [Kill(0)]
    assert not core.slots[0].exit_planned


def test_a_worker_that_drains_is_stopped_when_it_has_nothing_in_flight() -> None:
    core = busy(1)
    core.slots[0].draining = True
    core.jobs.outcome(0, 1)
    assert core.jobs.refill(0, 1.1) == [Stop(0)]
    assert core.slots[0].exit_planned


def test_the_longest_time_of_the_jobs_that_are_interrupted_counts() -> None:
    core = several(1, 2, 3)
    assert core.termination.grace == 0.0
    for job, mode in ((1, INTERRUPT), (2, CancelMode("interrupt", 1.0)), (3, KILL)):
        core.jobs.cancel(job, 1.0, index=0, begun=True, mode=mode)
    assert core.termination.grace == INTERRUPT.grace


def test_the_time_of_a_job_ends_although_the_worker_before_has_no_such_job() -> None:
    core = busy_second(1, 2)
    core.jobs.cancel(1, 1.0, index=1, begun=True, mode=INTERRUPT)
    assert core.on_timer(3.0) == [], "the worker may still give back 2"
    assert core.next_deadline() == 3.0 + REVOKE_GRACE
    assert core.on_timer(3.0 + REVOKE_GRACE) == [Kill(1)]
