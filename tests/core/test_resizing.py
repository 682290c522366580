"""How many workers there are, one story each; every order of them is in ``test_supervision.py``."""

from __future__ import annotations

from asyncpool._core.slots.commands import (
    LeaveEmpty,
    Offer,
    Resized,
    Retiring,
    Spawn,
    Stop,
    Terminate,
)
from asyncpool.enums import SlotState
from tests.core.supervised import gone, pool, short, taking


def test_a_pool_grows_at_once_when_it_is_resized() -> None:
    core = pool(1)
    commands = core.replacements.resize(3, 3, 1.0)
    assert commands == [Resized(3), Spawn(1, 1), Spawn(2, 1)]
    core.workers.ready(1, 1.1)
    assert [core.replacements.budget.settled, bool(core.workers.ready(2, 1.1))] == [
        False,
        False,
    ]
    assert core.replacements.budget.settled
    core.replacements.resize(9, 9, 2.0)
    assert len(core.slots) == 10, "there is a spare seat"


def test_when_it_shrinks_the_idle_go_first_and_all_at_once() -> None:
    core = pool(4)
    for job in (1, 2):
        core.jobs.submit(job, short(1e9))  # in slots 3 and 2
    commands = core.replacements.resize(1, 1, 1.0)
    stopped = [Retiring(0, "resize"), Stop(0), Retiring(1, "resize"), Stop(1)]
    assert commands == [Resized(1), *stopped, Retiring(2, "resize")]
    assert taking(core) == [3]
    assert gone(core, 0, 1.1) == [LeaveEmpty(0)]
    assert gone(core, 1, 1.2) == [LeaveEmpty(1)]
    core.jobs.outcome(2, 2)
    assert core.jobs.refill(2, 1.3) == [Stop(2)]
    settled = [core.replacements.budget.settled]
    assert gone(core, 2, 1.4) == [LeaveEmpty(2)]
    assert [*settled, core.replacements.budget.settled] == [False, True]


def test_one_that_is_being_killed_is_one_of_those_that_go() -> None:
    core = pool(3)
    core.workers.kill(2, 1.0)
    commands = core.replacements.resize(1, 1, 1.1)
    assert commands == [Resized(1), Retiring(0, "resize"), Stop(0)]
    assert gone(core, 2, 1.2) == [LeaveEmpty(2)]
    assert gone(core, 0, 1.3) == [LeaveEmpty(0)]
    assert taking(core) == [1]
    assert core.replacements.budget.settled


def test_with_one_that_is_to_be_replaced_its_replacement_goes() -> None:
    core = pool(2)
    core.jobs.submit(1, short(1e9))  # in slot 1
    core.replacements.replace(core.slots[0], "max_age", 1.0)
    assert core.slots[2].replaces == 0
    commands = core.replacements.resize(1, 1, 1.1)
    first = [Retiring(0, "resize"), Stop(0)]
    assert commands == [Resized(1), *first, Retiring(2, "resize"), Terminate(2)]
    assert gone(core, 0, 1.2) == [LeaveEmpty(0)]
    assert gone(core, 2, 1.3) == [LeaveEmpty(2)]
    assert taking(core) == [1]


def test_who_was_to_go_and_stays_is_not_one_more() -> None:
    core = pool(3)
    sessions = [core.sessions.want_worker()[0] for _ in range(3)]
    core.replacements.resize(1, 1, 1.0)
    core.replacements.resize(3, 3, 1.1)
    assert core.replacements.budget.settled
    for offer in sessions:
        assert isinstance(offer, Offer)
        core.sessions.end(offer.session, 1.2, fresh=False)
    core.replacements.retire(core.slots[0], "retire()", 1.3, unsent=None)
    assert core.restarts == 1


def test_whoever_has_not_started_is_not_needed_most_of_all() -> None:
    core = pool(1)
    core.replacements.resize(2, 2, 1.0)
    commands = core.replacements.resize(1, 1, 1.1)
    assert commands == [Resized(1), Retiring(1, "resize"), Terminate(1)]
    assert taking(core) == [0]


def test_an_elastic_pool_grows_while_jobs_wait_and_shrinks_when_workers_idle() -> None:
    core = pool(1, 3)
    for job in range(1, 6):
        if (
            core.jobs.submit(job, short(1e9)) is None
            and core.replacements.sizing.watching
        ):
            core.replacements.sizing.job_waits(1.0)
    first = core.next_deadline()
    assert first is not None
    assert core.on_timer(first) == [Resized(2), Spawn(1, 1)]
    second = core.next_deadline()
    assert second is not None
    assert core.on_timer(second) == [Resized(3), Spawn(2, 1)]
    core.workers.ready(1, 2.0)
    core.workers.ready(2, 2.0)
    for slot, job in ((0, 1), (1, 2), (2, 3), (0, 4), (1, 5)):
        core.jobs.outcome(slot, job)
        core.jobs.refill(slot, 10.0 + slot)
    went: list[int] = []
    while (now := core.next_deadline()) is not None:
        for command in core.on_timer(now):
            if isinstance(command, Retiring):
                assert now == 70.0 + command.slot
                went.append(command.slot)
                assert gone(core, command.slot, now) == [LeaveEmpty(command.slot)]
    assert went == [0, 1], "whoever has been idle for longest"
    assert taking(core) == [2]


def test_what_cannot_start_goes_before_an_idle_worker_when_the_pool_shrinks() -> None:
    core = pool(1, 3)
    core.replacements.resize(3, 3, 0.0)
    for slot in (1, 2):
        core.workers.ready(slot, 0.0)
    core.replacements.resize(1, 3, 0.0)
    for _ in range(2):  # its own death, and that of the next one, which is never ready
        gone(core, 0, 59.9)
    assert core.slots[0].state is SlotState.PARKED
    assert core.on_timer(60.0)[:2] == [Resized(2), LeaveEmpty(0)]
    assert taking(core) == [1, 2]
    assert core.on_timer(60.0)[0] == Resized(1)
    assert len(taking(core)) == 1, "one of them was idle for as long"
