"""When workers that do not end in time are asked where they are."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.policies.job_options import CancelMode
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.commands import Kill, Terminate
from asyncpool._core.slots.lifecycle import STOP_GRACE, TERM_GRACE
from asyncpool._core.supervision.closing import Finish
from asyncpool._core.supervision.supervision import Supervision
from asyncpool._core.supervision.termination import STACK_GRACE


def pool(
    *jobs: int, drain_timeout: float | None = None, concurrency: int = 1
) -> Supervision:
    """Return a pool of one worker that has *jobs* in hand."""
    core = Supervision(
        concurrency=concurrency,
        workers=(1, 1),
        policy=RestartPolicy(),
        start_timeout=20.0,
        limits=WorkerLimits(drain_timeout=drain_timeout),
    )
    core.workers.start(0.0)
    core.workers.ready(0, 0.0)
    for job in jobs:
        assert core.jobs.submit(job, JobTraits()) == 0
    return core


@pytest.mark.parametrize("jobs", [(), (1,)])
def test_nobody_who_need_not_end_is_asked(jobs: tuple[int, ...]) -> None:
    core = pool(*jobs)
    assert core.overdue_workers.next_deadline() is None
    core.close(Finish.ALL, None, 1.0)
    core.workers.ended(0, 1.5, started=False, requeue=(), jitter=0.0)
    assert core.overdue_workers.next_deadline() is None
    assert core.overdue_workers.take(1e9) == []


def test_who_was_stopped_is_asked_once_before_it_gets_a_signal() -> None:
    core = pool()
    core.close(Finish.ALL, None, 1.0)
    due = 1.0 + STOP_GRACE
    look_at = core.overdue_workers.next_deadline()
    assert look_at == due - STACK_GRACE
    assert core.overdue_workers.take(look_at - 0.01) == []
    assert core.overdue_workers.take(look_at) == [(0, due)]
    assert core.overdue_workers.next_deadline() is None
    assert core.overdue_workers.take(look_at) == []
    assert core.on_timer(due) == [Terminate(0)]
    assert core.overdue_workers.next_deadline() is None
    assert core.on_timer(due + TERM_GRACE) == [Kill(0)]


def test_who_was_sent_sigterm_is_asked_before_sigkill() -> None:
    core = pool(1)
    core.close(Finish.NONE, None, 1.0)
    assert core.overdue_workers.take(1.0 + TERM_GRACE) == [(0, 1.0 + TERM_GRACE)]


def test_whose_job_is_long_is_asked_before_the_time_of_the_close_is_over() -> None:
    core = pool(1)
    core.close(Finish.ALL, 50.0, 1.0)
    assert core.overdue_workers.next_deadline() == 50.0 - STACK_GRACE
    assert core.overdue_workers.take(50.0 - STACK_GRACE) == [(0, 50.0)]
    assert Kill(0) in core.on_timer(50.0)
    assert core.overdue_workers.next_deadline() is None


def test_the_close_may_leave_less_time_than_a_stop_does() -> None:
    core = pool()
    core.close(Finish.ALL, 1.5, 1.0)
    assert core.overdue_workers.take(1.25) == [(0, 1.5)]


def test_who_leaves_is_asked_before_its_time_is_over() -> None:
    core = pool(1, drain_timeout=10.0)
    core.replacements.roll(1.0)
    assert core.overdue_workers.next_deadline() == 21.0 - STACK_GRACE  # the new one
    core.workers.ready(1, 2.0)
    assert core.overdue_workers.take(12.0) == [(0, 12.0)]


def test_who_comes_next_is_asked_again() -> None:
    core = pool(1)
    core.slots[0].is_overdue = True
    core.workers.ended(0, 1.0, started=False, requeue=(1,), jitter=0.0)
    assert not core.slots[0].is_overdue


def test_who_works_for_somebody_beside_a_cancelled_job_is_asked() -> None:
    core, mode = pool(1, 2, concurrency=2), CancelMode("interrupt", 3600.0)
    core.jobs.cancel(1, 1.0, index=0, begun=True, mode=mode)
    core.close(Finish.ALL, 60.0, 2.0)
    assert core.overdue_workers.next_deadline() == 60.0 - STACK_GRACE
    core.jobs.cancel(2, 3.0, index=0, begun=True, mode=mode)
    assert core.overdue_workers.next_deadline() is None
