"""What happens when: recorded histories of a pool's core.

Each line is a time, what the shell tells, and what the core wants done.  ``timer``
fires exactly at the deadline that the core has asked for, and no other line may
come later than that.  Jobs and slots are numbers; a worker is slot and generation.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asyncpool._core.base.job_traits import STREAM_TRAITS, UNKNOWN, JobTraits
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.slots.commands import (
    Abandon,
    Assign,
    Command,
    FailJobs,
    Finished,
    GiveUp,
    Kill,
    ParkSlot,
    Recover,
    Revoke,
    Spawn,
    Stop,
    TellRestart,
    Terminate,
    Unassign,
    WriteStacks,
)
from asyncpool._core.supervision.closing import Finish
from asyncpool._core.supervision.supervision import Supervision
from asyncpool._core.supervision.termination import REVOKE_GRACE, STACK_GRACE

Event = Callable[[Supervision, float], list[Command]]
History = list[tuple[float, Event, list[Command]]]

ALL, RUNNING, NONE = Finish.ALL, Finish.RUNNING, Finish.NONE


def start(core: Supervision, now: float) -> list[Command]:
    return core.workers.start(now)


def timer(core: Supervision, now: float) -> list[Command]:
    assert core.next_deadline() == now
    return core.on_timer(now)


def submit(*jobs: int, cost: float = UNKNOWN) -> Event:
    def event(core: Supervision, now: float) -> list[Command]:
        sent: list[Command] = []
        for job in jobs:
            traits = JobTraits()
            traits.cost = cost
            slot = core.jobs.submit(job, traits)
            sent += [] if slot is None else [Assign(slot, (job,))]
        return sent

    return event


def submit_large(job: int) -> Event:
    """A job comes whose arguments take a while to get to any worker."""

    def event(core: Supervision, now: float) -> list[Command]:
        slot = core.jobs.submit(job, STREAM_TRAITS)
        return [] if slot is None else [Assign(slot, (job,))]

    return event


def outcome_to_load(slot: int) -> Event:
    """A worker has finished a job whose outcome takes a while to load."""

    def event(core: Supervision, now: float) -> list[Command]:
        job = core.slots[slot].in_flight.head
        assert job is not None
        land(core, slot)
        core.closing.begin_unpacking(job)
        return core.jobs.refill(slot, now)

    return event


def landed(job: int) -> Event:
    return lambda core, now: core.jobs.outcome_unpacked(job, now)


def announce(*jobs: int) -> Event:
    def event(core: Supervision, now: float) -> list[Command]:
        for job in jobs:
            core.jobs.prepare(job)
        return []

    return event


def arrive(job: int) -> Event:
    return lambda core, now: core.jobs.submit_prepared(job, STREAM_TRAITS, now)


def ready(slot: int) -> Event:
    return lambda core, now: core.workers.ready(slot, now)


def land(core: Supervision, slot: int, count: int = 1) -> None:
    for _ in range(count):
        job = core.slots[slot].in_flight.head
        assert job is not None
        core.jobs.outcome(slot, job)


def hang(slot: int) -> Event:
    def event(core: Supervision, now: float) -> list[Command]:
        return core.termination.hang(slot, now)

    return event


def written(slot: int) -> Event:
    def event(core: Supervision, now: float) -> list[Command]:
        return core.termination.stacks_written(slot, now)

    return event


def outcome(slot: int, count: int = 1) -> Event:
    def event(core: Supervision, now: float) -> list[Command]:
        land(core, slot, count)
        return core.jobs.refill(slot, now)

    return event


def retry(slot: int, job: int) -> Event:
    """The job has raised what it is to be tried again after."""

    def event(core: Supervision, now: float) -> list[Command]:
        land(core, slot)
        again = {job: JobTraits()}
        return [*core.jobs.refill(slot, now), *core.jobs.requeue(again, now)]

    return event


def died(slot: int, *, started: bool = False, requeue: bool = False) -> Event:
    def event(core: Supervision, now: float) -> list[Command]:
        first, *others = [*core.slots[slot].in_flight.jobs] or [0]
        back = ([first] if requeue else []) + others
        return core.workers.ended(slot, now, started=started, requeue=back, jitter=0.0)

    return event


def fault(slot: int) -> Event:
    return lambda core, now: core.workers.replace_faulty(slot, now)


def cancel(job: int, *, begun: bool = True) -> Event:
    def event(core: Supervision, now: float) -> list[Command]:
        slots = [slot.index for slot in core.slots if job in slot.in_flight.jobs]
        if not slots:
            return core.jobs.drop(job, now)
        return core.jobs.cancel(job, now, index=slots[0], begun=begun)

    return event


def drop(job: int) -> Event:
    return lambda core, now: core.jobs.drop(job, now)


def withdraw(slot: int, job: int) -> Event:
    return lambda core, now: core.jobs.withdraw(slot, job, now)


def look(core: Supervision, now: float) -> list[Command]:
    """Look for a stall."""
    return core.termination.check_for_stalls()


def revoked(slot: int, *places: int) -> Event:
    return lambda core, now: core.jobs.revoked(slot, places, now)


def close(finish: Finish, timeout: float) -> Event:
    return lambda core, now: core.close(finish, now + timeout, now)


# Delays of 1, 2, 4 s; the second failed start in a row breaks a pool without workers.
POLICY = RestartPolicy(initial_delay=1.0, max_delay=4.0, max_failed_starts=2)

FAILED, TWICE = "the start failed", "2 starts failed in a row"

ONE: History = [(0.0, start, [Spawn(0, 1)]), (0.1, ready(0), [])]
TWO: History = [
    (0.0, start, [Spawn(0, 1), Spawn(1, 1)]),
    (0.1, ready(0), []),
    (0.1, ready(1), []),
]

HISTORIES: dict[str, History] = {
    "jobs begin in their order, and the worker that was idle last is the first": [
        *TWO,
        (1.0, submit(1), [Assign(1, (1,))]),
        (1.0, submit(2), [Assign(0, (2,))]),
        (1.0, submit(3), []),
        (1.0, submit(4), []),
        (2.0, outcome(0), [Assign(0, (3,))]),
        (2.5, outcome(1), [Assign(1, (4,))]),
        (3.0, outcome(1), []),
        (4.0, submit(5), [Assign(1, (5,))]),
    ],
    "short jobs travel ahead, as far as the budget goes, and spread over all": [
        *TWO,
        (
            1.0,
            submit(1, 2, 3, 4, 5, 6, cost=6400.0),
            [
                Assign(1, (1,)),
                Assign(0, (2,)),
                Assign(1, (3,)),
                Assign(0, (4,)),
            ],
        ),
        (1.1, outcome(1), [Assign(1, (5,))]),
        (1.2, outcome(0), [Assign(0, (6,))]),
        (1.3, outcome(1, 2), []),
        (1.3, outcome(0), []),
        (1.4, submit(7, cost=6400.0), [Assign(1, (7,))]),
    ],
    "a worker gets several at a time, when it has half of the budget left": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.0, submit(*range(2, 15), cost=1600.0), []),
        (1.1, outcome(0), [Assign(0, tuple(range(2, 12)))]),
        (1.2, outcome(0, 4), []),
        (1.3, outcome(0), [Assign(0, (12, 13, 14))]),
    ],
    "nobody travels behind a job that is long, or that nothing is known of": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.0, submit(2, cost=10.0), []),
        (1.0, submit(3), []),
        (1.0, submit(4, cost=10.0), []),
        (1.1, outcome(0), [Assign(0, (2,))]),
        (1.2, outcome(0), [Assign(0, (3,))]),
        (1.3, outcome(0), [Assign(0, (4,))]),
    ],
    "what waits behind a job that turns out to be long goes to another worker": [
        *TWO,
        (1.0, submit(1), [Assign(1, (1,))]),
        (
            1.0,
            submit(2, 3, 4, cost=100.0),
            [Assign(0, (2,)), Assign(0, (3,)), Assign(0, (4,))],
        ),
        (1.005, look, []),
        (1.010, look, [Revoke(0, (2, 3))]),
        (1.010, submit(5, cost=100.0), []),  # nor does another one go there now
        (1.011, revoked(0, 2, 3), [Unassign((3, 4))]),
        (1.015, look, []),
        (1.1, outcome(1), [Assign(1, (3, 4, 5))]),
        (2.0, outcome(0), []),
        (2.1, submit(6), [Assign(0, (6,))]),
    ],
    "a job that began before it could be revoked stays, and what comes back may too": [
        *TWO[:2],
        (0.2, submit(1, 2, 3, cost=10.0), [Assign(0, (n,)) for n in (1, 2, 3)]),
        (0.3, look, []),
        (0.4, look, [Revoke(0, (2, 3))]),
        (0.4, outcome(0), []),
        (0.5, revoked(0, 3), [Unassign((3,)), Assign(0, (3,))]),
        (0.6, outcome(0, 2), []),
    ],
    "a death costs the job that was running, and not those behind it": [
        *ONE,
        (1.0, submit(1, 2, 3, cost=10.0), [Assign(0, (n,)) for n in (1, 2, 3)]),
        (1.1, died(0, started=True), [TellRestart(0, 0.0), Spawn(0, 2)]),
        (1.2, ready(0), [Assign(0, (2, 3))]),
    ],
    "cancelling a job that waits in a worker costs nothing": [
        *ONE,
        (1.0, submit(1, 2, 3, cost=10.0), [Assign(0, (n,)) for n in (1, 2, 3)]),
        (1.1, cancel(2, begun=False), [Revoke(0, (2,))]),
        (1.1, outcome(0), []),
        (1.2, revoked(0, 2), [Unassign((2,))]),
        (1.3, outcome(0), []),
        (1.4, submit(4, cost=10.0), [Assign(0, (4,))]),
    ],
    "others are taken back before a worker is killed for one job": [
        *ONE,
        (1.0, submit(1, 2, 3, cost=10.0), [Assign(0, (n,)) for n in (1, 2, 3)]),
        (1.1, cancel(1), [Revoke(0, (2, 3))]),
        (1.1, submit(4, cost=10.0), []),
        (1.2, revoked(0, 2, 3), [Unassign((2, 3)), Kill(0)]),
        (1.3, died(0), [Spawn(0, 2)]),
        (1.4, ready(0), [Assign(0, (2, 3, 4))]),
    ],
    "a worker that does not give back the others is killed all the same": [
        *ONE,
        (1.0, submit(1, 2, cost=10.0), [Assign(0, (1,)), Assign(0, (2,))]),
        (1.1, cancel(1), [Revoke(0, (2,))]),
        (1.1 + REVOKE_GRACE, timer, [Kill(0)]),
        (1.3, died(0), [Spawn(0, 2)]),
        (1.4, ready(0), [Assign(0, (2,))]),
    ],
    "a job that ends before it is killed costs no worker": [
        *ONE,
        (1.0, submit(1, 2, cost=10.0), [Assign(0, (1,)), Assign(0, (2,))]),
        (1.1, cancel(1), [Revoke(0, (2,))]),
        (1.1, outcome(0), []),
        (1.2, revoked(0), []),
        (1.3, submit(3, cost=10.0), [Assign(0, (3,))]),
    ],
    "a silent worker says where it is, and its job has crashed with it": [
        *ONE,
        (1.0, submit(1, 2, cost=10.0), [Assign(0, (1,)), Assign(0, (2,))]),
        (1.1, hang(0), [WriteStacks(0, 1), Revoke(0, (2,))]),
        (1.1, hang(0), []),
        (1.11, revoked(0, 2), [Unassign((2,))]),
        (1.12, written(0), [Kill(0)]),
        (1.2, died(0, started=True), [TellRestart(0, 0.0), Spawn(0, 2)]),
        (1.3, ready(0), [Assign(0, (2,))]),
    ],
    "a silent worker that cannot say where it is, nor give anything back, dies": [
        *ONE,
        (1.0, submit(1, 2, cost=10.0), [Assign(0, (1,)), Assign(0, (2,))]),
        (1.1, hang(0), [WriteStacks(0, 1), Revoke(0, (2,))]),
        (1.1 + STACK_GRACE, timer, []),
        (1.1 + STACK_GRACE + REVOKE_GRACE, timer, [Kill(0)]),
        (2.0, died(0, started=True), [TellRestart(0, 0.0), Spawn(0, 2)]),
    ],
    "a silent worker without a job gets none any more": [
        *ONE,
        (1.0, hang(0), [WriteStacks(0)]),
        (1.01, submit(1), []),
        (1.0 + STACK_GRACE, timer, [Kill(0)]),
        (1.1, died(0), [TellRestart(0, 0.0), Spawn(0, 2)]),
        (1.2, ready(0), [Assign(0, (1,))]),
    ],
    "a worker whose job ends after all is not silent": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.1, hang(0), [WriteStacks(0, 1)]),
        (1.11, outcome(0), []),
        (1.2, submit(2), [Assign(0, (2,))]),
    ],
    "what is revoked while the pool closes is not begun any more": [
        *ONE,
        (1.0, submit(1, 2, cost=10.0), [Assign(0, (1,)), Assign(0, (2,))]),
        (1.1, look, []),
        (1.2, look, [Revoke(0, (2,))]),
        (1.2, close(RUNNING, 30.0), []),
        (1.3, revoked(0, 2), [Unassign((2,)), FailJobs((2,), "closed")]),
        (1.4, outcome(0), [Stop(0)]),
    ],
    "a worker dies in mid-job: blamed on the job, replaced at once": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.0, submit(2), []),
        (1.5, died(0, started=True), [TellRestart(0, 0.0), Spawn(0, 2)]),
        (1.6, ready(0), [Assign(0, (2,))]),
    ],
    "a takeover goes to the head of the queue, or to an idle worker": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.0, submit(2), []),
        (
            1.5,
            died(0, started=True, requeue=True),
            [TellRestart(0, 0.0), Spawn(0, 2)],
        ),
        (1.6, ready(0), [Assign(0, (1,))]),
        (2.0, outcome(0), [Assign(0, (2,))]),
        (3.0, retry(0, 2), [Assign(0, (2,))]),
    ],
    "workers that die while idle come back at once": [
        *ONE,
        (1.0, died(0), [TellRestart(0, 0.0), Spawn(0, 2)]),
        (1.1, ready(0), []),
        (2.0, died(0), [TellRestart(0, 0.0), Spawn(0, 3)]),
        (2.1, ready(0), []),
        (3.0, died(0), [TellRestart(0, 0.0), Spawn(0, 4)]),
    ],
    "starts that fail park their slot, later and later; the others work on": [
        *TWO[:2],
        (0.25, died(1), [ParkSlot(1, FAILED, 1.0)]),
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.0, submit(2), []),
        (1.25, timer, [Spawn(1, 2)]),
        (1.5, died(1), [ParkSlot(1, TWICE, 2.0)]),
        (3.5, timer, [Spawn(1, 3)]),
        (3.75, died(1), [ParkSlot(1, "3 starts failed in a row", 4.0)]),
        (7.75, timer, [Spawn(1, 4)]),
        (8.0, ready(1), [Recover(1), Assign(1, (2,))]),
    ],
    "one slot tries for all, and the first worker that is ready brings them back": [
        (0.0, start, [Spawn(0, 1), Spawn(1, 1)]),
        (0.1, died(0), [ParkSlot(0, FAILED, 1.0)]),
        (0.1, died(1), [ParkSlot(1, FAILED, 1.0)]),
        (0.2, submit(1), []),
        (1.1, timer, [Spawn(0, 2)]),
        (1.2, ready(0), [Recover(0), Spawn(1, 2), Assign(0, (1,))]),
    ],
    "a start that takes too long is ended by force": [
        (0.0, start, [Spawn(0, 1)]),
        (20.0, timer, [Kill(0)]),
        (20.1, ready(0), []),  # too late
        (20.2, died(0), [ParkSlot(0, FAILED, 1.0)]),
        (21.2, timer, [Spawn(0, 2)]),
    ],
    "a pool whose starts fail is broken when its last worker is gone": [
        *TWO,
        (1.0, submit(1), [Assign(1, (1,))]),
        (1.0, died(0), [TellRestart(0, 0.0), Spawn(0, 2)]),
        (1.5, died(0), [ParkSlot(0, FAILED, 1.0)]),
        (2.5, timer, [Spawn(0, 3)]),
        (2.75, died(0), [ParkSlot(0, TWICE, 2.0)]),
        (3.0, submit(2), []),
        (3.5, died(1, started=True), [TellRestart(1, 0.0), Spawn(1, 2)]),
        (
            4.0,
            died(1),
            [
                ParkSlot(1, "3 starts failed in a row", 0.75),
                GiveUp("3 starts failed in a row"),
                FailJobs((2,), "broken"),
            ],
        ),
        (4.75, timer, [Spawn(0, 4)]),
        (5.0, died(0), [ParkSlot(0, "4 starts failed in a row", 4.0)]),
        (9.0, timer, [Spawn(0, 5)]),
        (9.0, ready(0), [Recover(0), Spawn(1, 3)]),
        (9.0, ready(1), []),
        (9.0, submit(4), [Assign(1, (4,))]),
    ],
    "cancelling a queued job costs nothing, a running one its worker": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.0, submit(2), []),
        (1.0, submit(3), []),
        (2.0, cancel(2), []),
        (3.0, cancel(1), [Kill(0)]),
        (3.1, died(0), [Spawn(0, 2)]),  # planned: no crash, no delay
        (3.2, ready(0), [Assign(0, (3,))]),
        (3.3, cancel(1), []),
    ],
    "a thread's exception ends its worker when the job is done": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.5, fault(0), []),
        (2.0, outcome(0), [Kill(0)]),
        (2.0, submit(2), []),
        (2.1, died(0), [TellRestart(0, 0.0), Spawn(0, 2)]),
        (2.2, ready(0), [Assign(0, (2,))]),
    ],
    "a close finishes the queue, with as many workers as it needs": [
        *TWO,
        (1.0, submit(1), [Assign(1, (1,))]),
        (1.0, submit(2), [Assign(0, (2,))]),
        (1.0, submit(3), []),
        (2.0, close(ALL, 30.0), []),
        (3.0, outcome(1), [Assign(1, (3,))]),
        (3.5, outcome(0), [Stop(0)]),
        (3.6, died(0), []),
        (
            4.0,
            died(1, started=True, requeue=True),
            [TellRestart(1, 0.0), Spawn(1, 2)],
        ),
        (4.1, ready(1), [Assign(1, (3,))]),
        (5.0, outcome(1), [Stop(1)]),
        (5.1, died(1), [Finished()]),
    ],
    "a stricter close tightens the first one": [
        *TWO,
        (1.0, submit(1), [Assign(1, (1,))]),
        (1.0, submit(2), [Assign(0, (2,))]),
        (1.0, submit(3), []),
        (2.0, close(ALL, 30.0), []),
        (3.0, close(RUNNING, 30.0), [FailJobs((3,), "closed")]),
        (3.5, outcome(0), [Stop(0)]),
        (4.0, close(NONE, 1.0), [FailJobs((1,), "closed"), Terminate(1)]),
        (4.1, died(0), []),
        (5.0, timer, [Kill(1)]),
        (5.1, died(1), [Finished()]),
    ],
    "when the time is over every job ends and every worker is killed": [
        *TWO,
        (1.0, submit(1), [Assign(1, (1,))]),
        (2.0, close(ALL, 3.0), [Stop(0)]),
        (2.1, died(0), []),
        (5.0, timer, [FailJobs((1,), "closed"), Kill(1)]),
        (10.0, timer, [Abandon(1)]),
        (10.0, died(1), [Finished()]),
    ],
    "a worker that is told to stop and does not is pressed step by step": [
        *ONE,
        (1.0, close(ALL, 30.0), [Stop(0)]),
        (3.0, timer, [Terminate(0)]),
        (5.0, timer, [Kill(0)]),
        (10.0, timer, [Abandon(0)]),
        (10.0, died(0), [Finished()]),
    ],
    "a job that is being pickled holds up nobody": [
        *ONE,
        (1.0, announce(1), []),
        (1.0, submit(2), [Assign(0, (2,))]),
        (1.0, submit(3), []),
        (1.1, arrive(1), []),
        (2.0, outcome(0), [Assign(0, (3,))]),
        (3.0, outcome(0), [Assign(0, (1,))]),
        (4.0, announce(4), []),
        (4.1, outcome(0), []),
        (4.2, arrive(4), [Assign(0, (4,))]),
    ],
    "a close waits for what is being pickled": [
        *ONE,
        (1.0, announce(1), []),
        (1.1, close(ALL, 30.0), []),
        (1.2, died(0), [TellRestart(0, 0.0), Spawn(0, 2)]),
        (1.3, ready(0), []),
        (2.0, arrive(1), [Assign(0, (1,))]),
        (3.0, outcome(0), [Stop(0)]),
        (3.1, died(0), [Finished()]),
    ],
    "a close waits no longer when the last of them is given up": [
        *ONE,
        (1.0, announce(1, 2), []),
        (1.1, close(ALL, 30.0), []),
        (1.2, drop(1), []),
        (1.3, drop(2), [Stop(0)]),
        (1.4, died(0), [Finished()]),
    ],
    "a stricter close does not wait for what is being pickled": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.0, announce(2), []),
        (1.0, submit(3), []),
        (1.1, close(RUNNING, 30.0), [FailJobs((3, 2), "closed")]),
        (2.0, outcome(0), [Stop(0)]),
    ],
    "nor does one whose time is over": [
        *ONE,
        (1.0, submit_large(1), [Assign(0, (1,))]),
        (1.0, announce(2), []),
        (1.0, submit(3), []),
        (1.1, close(ALL, 1.0), []),
        (2.1, timer, [FailJobs((1, 3, 2), "closed"), Kill(0)]),
        (2.2, died(0), [Finished()]),
    ],
    "a pool that breaks has no hope for what is being pickled": [
        (0.0, start, [Spawn(0, 1)]),
        (0.1, died(0), [ParkSlot(0, FAILED, 1.0)]),
        (0.2, announce(1), []),
        (0.2, submit(2), []),
        (1.1, timer, [Spawn(0, 2)]),
        (
            1.2,
            died(0),
            [
                ParkSlot(0, TWICE, 2.0),
                GiveUp(TWICE),
                FailJobs((2, 1), "broken"),
            ],
        ),
    ],
    "a job with large arguments has its worker for itself": [
        *ONE,
        (1.0, submit(1, cost=10.0), [Assign(0, (1,))]),
        (1.0, submit_large(2), []),
        (1.1, outcome(0), [Assign(0, (2,))]),
        (1.2, submit(3, cost=10.0), []),
        (1.3, look, []),
        (1.4, look, []),
        (2.0, outcome(0), [Assign(0, (3,))]),
    ],
    "a job that is given up before it was sent costs nothing, and its place is free": [
        *ONE,
        (1.0, submit(1, cost=10.0), [Assign(0, (1,))]),
        (1.1, outcome(0), []),
        (1.2, submit_large(2), [Assign(0, (2,))]),
        (1.3, submit(3, 4, cost=10.0), []),
        (1.4, withdraw(0, 2), [Unassign((2,)), Assign(0, (3, 4))]),
        (1.5, cancel(4, begun=False), [Revoke(0, (3,))]),
        (1.6, revoked(0, 3), [Unassign((4,))]),
        (1.7, outcome(0), []),
        (2.0, submit_large(5), [Assign(0, (5,))]),
        (2.1, withdraw(0, 5), [Unassign((5,))]),
        (2.2, submit(6), [Assign(0, (6,))]),
    ],
    "a worker whose only job was not sent is let go by a closing pool": [
        *ONE,
        (1.0, submit_large(1), [Assign(0, (1,))]),
        (1.1, close(RUNNING, 30.0), []),
        (1.2, withdraw(0, 1), [Unassign((1,)), Stop(0)]),
        (1.3, died(0), [Finished()]),
    ],
    "and a faulty one is replaced": [
        *ONE,
        (1.0, submit_large(1), [Assign(0, (1,))]),
        (1.1, fault(0), []),
        (1.1, submit(2), []),
        (1.2, withdraw(0, 1), [Unassign((1,)), Kill(0)]),
        (1.3, died(0), [TellRestart(0, 0.0), Spawn(0, 2)]),
        (1.4, ready(0), [Assign(0, (2,))]),
    ],
    "a job whose worker dies before it was sent is the next to be sent": [
        *ONE,
        (1.0, submit_large(1), [Assign(0, (1,))]),
        (1.0, submit(2, cost=10.0), []),
        (1.1, died(0, requeue=True), [TellRestart(0, 0.0), Spawn(0, 2)]),
        (1.2, ready(0), [Assign(0, (1,))]),
        (1.3, outcome(0), [Assign(0, (2,))]),
    ],
    "a worker goes on while its outcome is loaded": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.0, submit(2), []),
        (1.1, outcome_to_load(0), [Assign(0, (2,))]),
        (1.2, outcome(0), []),
        (1.3, landed(1), []),
    ],
    "a close waits for an outcome that is being loaded": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.1, close(RUNNING, 30.0), []),
        (1.2, outcome_to_load(0), []),
        (1.3, landed(1), [Stop(0)]),
        (1.4, died(0), [Finished()]),
    ],
    "a close that waits for nothing fails what is being loaded": [
        *TWO,
        (1.0, submit(1), [Assign(1, (1,))]),
        (1.0, submit(2), [Assign(0, (2,))]),
        (1.1, outcome_to_load(1), []),
        (1.2, close(NONE, 30.0), [FailJobs((2, 1), "closed"), Terminate(0), Stop(1)]),
        (1.3, landed(1), []),
        (1.4, died(0), []),
        (1.5, died(1), [Finished()]),
    ],
    "and so does one whose time is over": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.1, outcome_to_load(0), []),
        (1.1, announce(2), []),
        (1.2, close(ALL, 1.0), []),
        (2.2, timer, [FailJobs((1, 2), "closed"), Kill(0)]),
        (2.3, landed(1), []),
        (2.4, died(0), [Finished()]),
    ],
    "to cancel what a worker has finished costs nothing": [
        *ONE,
        (1.0, submit(1), [Assign(0, (1,))]),
        (1.1, outcome(0), []),
        (1.2, lambda core, now: core.jobs.cancel(1, now, index=0, begun=True), []),
        (1.3, submit(2), [Assign(0, (2,))]),
    ],
    # Regressions.
    "no worker is started when the time to close is over too": [
        *TWO,
        (1.0, died(0), [TellRestart(0, 0.0), Spawn(0, 2)]),
        (1.1, submit(1), [Assign(1, (1,))]),
        (1.1, submit(2), []),
        (1.5, died(0), [ParkSlot(0, FAILED, 1.0)]),
        (1.5, close(ALL, 1.0), []),
        (2.5, timer, [FailJobs((1, 2), "closed"), Kill(1)]),
        (2.6, died(1), [Finished()]),
    ],
    "the last slot of a closing pool cannot be filled: its queue hears it": [
        *TWO,
        (1.0, submit(1), [Assign(1, (1,))]),
        (2.0, close(ALL, 30.0), [Stop(0)]),
        (2.1, died(0), []),
        (
            3.0,
            died(1, started=True, requeue=True),
            [TellRestart(1, 0.0), Spawn(1, 2)],
        ),
        (3.5, died(1), [ParkSlot(1, FAILED, 1.0)]),
        (4.5, timer, [Spawn(1, 3)]),
        (
            5.0,
            died(1),
            [
                ParkSlot(1, TWICE, 2.0),
                GiveUp(TWICE),
                FailJobs((1,), "broken"),
                Finished(),
            ],
        ),
    ],
}


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name: str) -> None:
    history = HISTORIES[name]
    workers = len(history[0][2])
    core = Supervision(workers=(workers, workers), policy=POLICY, start_timeout=20.0)
    for step, (now, event, commands) in enumerate(history):
        deadline = core.next_deadline()
        assert deadline is None or now <= deadline, f"step {step} comes too late"
        assert event(core, now) == commands, f"in step {step}"
