"""The end of a pool, one close after the other; every order is in ``test_supervision.py``."""

from __future__ import annotations

import pytest

from asyncpool._core.closing import Finish
from asyncpool._core.commands import FailJobs, Finished, Kill, Stop
from asyncpool._core.profiles import Profile
from asyncpool._core.restart import RestartPolicy
from asyncpool._core.supervision import Supervision


def pool_with(jobs: int) -> Supervision:
    """Return a pool of one worker, which has the first of so many jobs."""
    core = Supervision(workers=(1, 1), policy=RestartPolicy(), start_timeout=20.0)
    core.start(0.0)
    core.ready(0, 0.0)
    assert [core.submit(job, Profile()) for job in range(jobs)][:1] == [0]
    return core


@pytest.mark.parametrize("later", [Finish.ALL, Finish.RUNNING])
def test_a_laxer_close_takes_nothing_back(later: Finish) -> None:
    core = pool_with(2)
    assert FailJobs((1,), "closed") in core.close(Finish.RUNNING, 50.0, 1.0)
    core.close(later, 50.0, 2.0)
    assert core.closing.finish is Finish.RUNNING


def test_a_stricter_close_gives_up_what_the_first_one_waits_for() -> None:
    core = pool_with(2)
    assert core.close(Finish.ALL, 50.0, 1.0) == []
    commands = core.close(Finish.NONE, 50.0, 2.0)
    assert [c.jobs for c in commands if isinstance(c, FailJobs)] == [(1,), (0,)]
    assert core.closing.finish is Finish.NONE


@pytest.mark.parametrize(("second", "due"), [(30.0, 30.0), (70.0, 50.0)])
def test_the_earlier_end_of_two_closes_counts(second: float, due: float) -> None:
    core = pool_with(1)
    core.close(Finish.ALL, 50.0, 1.0)
    core.close(Finish.ALL, second, 2.0)
    assert core.next_deadline() == due
    assert not any(isinstance(c, Kill) for c in core.on_timer(due - 0.1))
    assert Kill(0, "") in core.on_timer(due)


@pytest.mark.parametrize("finish", list(Finish))
def test_a_close_without_any_time_kills_and_asks_nobody_before(finish: Finish) -> None:
    core = pool_with(2)
    commands = core.close(finish, 1.0, 1.0)
    assert commands == [FailJobs((0, 1), "closed"), Kill(0, "")]


def test_a_result_that_is_being_loaded_holds_up_the_end() -> None:
    core = pool_with(1)
    core.outcome(0, 0)
    core.landing(0)
    assert core.refill(0, 1.0) == []
    assert core.close(Finish.ALL, 50.0, 2.0) == []
    assert Stop(0) in core.landed(0, 3.0)
    commands = core.ended(0, 4.0, started=False, requeue=(), roll=0.5)
    assert commands[-1] == Finished()
    assert core.closing.over
    assert core.next_deadline() is None


def test_when_nobody_decides_any_more_it_is_over() -> None:
    core = pool_with(1)
    core.closing.abandon()
    assert (core.closing.over, core.closing.finish) == (True, Finish.NONE)
