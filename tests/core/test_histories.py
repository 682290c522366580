"""What happens when: recorded histories of a pool.

Each line is a time, what the engine tells, and what the core wants done.  ``timer``
fires exactly at the deadline that the core has asked for, and no other line may
come later than that.  Jobs and slots are numbers; a worker is slot and generation.
What the model in ``test_supervision.py`` finds needs no history.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.pool_core import (
    UNKNOWN,
    Core,
    Finish,
    JobTraits,
    RestartPolicy,
    cmd,
)

Event = Callable[[Core, float], list[cmd.Command]]
History = list[tuple[float, Event, list[cmd.Command]]]


def start(core: Core, now: float) -> list[cmd.Command]:
    return core.start(now)


def timer(core: Core, now: float) -> list[cmd.Command]:
    assert core.next_deadline() == now
    return core.on_timer(now)


def submit(*jobs: int, cost: float = UNKNOWN) -> Event:
    def event(core: Core, now: float) -> list[cmd.Command]:
        sent: list[cmd.Command] = []
        for job in jobs:
            traits = JobTraits()
            traits.cost = cost
            slot = core.submit(job, traits)
            sent += [] if slot is None else [cmd.Assign(slot, (job,))]
        return sent

    return event


def ready(slot: int) -> Event:
    return lambda core, now: core.ready(slot, now)


def outcome(slot: int) -> Event:
    def event(core: Core, now: float) -> list[cmd.Command]:
        job = core.slots[slot].in_flight.head
        assert job is not None
        core.outcome(slot, job)
        return core.refill(slot, now)

    return event


def died(slot: int, *, started: bool = False, requeue: bool = False) -> Event:
    def event(core: Core, now: float) -> list[cmd.Command]:
        first, *others = [*core.slots[slot].in_flight.jobs] or [0]
        back = ([first] if requeue else []) + others
        return core.ended(slot, now, started=started, requeue=back, jitter=0.0)

    return event


def look(core: Core, now: float) -> list[cmd.Command]:
    """Look for a stall."""
    return core.check_for_stalls()


def revoked(slot: int, *places: int) -> Event:
    return lambda core, now: core.revoked(slot, places, now)


def close(timeout: float) -> Event:
    return lambda core, now: core.close(Finish.ALL, now + timeout, now)


# Delays of 1, 2, 4 s; the second failed start in a row breaks a pool without workers.
POLICY = RestartPolicy(initial_delay=1.0, max_delay=4.0, max_failed_starts=2)


FAILED, TWICE = "the start failed", "2 starts failed in a row"


ONE: History = [(0.0, start, [cmd.Spawn(0, 1)]), (0.1, ready(0), [])]
TWO: History = [
    (0.0, start, [cmd.Spawn(0, 1), cmd.Spawn(1, 1)]),
    (0.1, ready(0), []),
    (0.1, ready(1), []),
]


HISTORIES: dict[str, History] = {
    "jobs begin in their order, and the worker that was idle last is the first": [
        *TWO,
        (1.0, submit(1), [cmd.Assign(1, (1,))]),
        (1.0, submit(2), [cmd.Assign(0, (2,))]),
        (1.0, submit(3), []),
        (1.0, submit(4), []),
        (2.0, outcome(0), [cmd.Assign(0, (3,))]),
        (2.5, outcome(1), [cmd.Assign(1, (4,))]),
        (3.0, outcome(1), []),
        (4.0, submit(5), [cmd.Assign(1, (5,))]),
    ],
    "what waits behind a job that turns out to be long goes to another worker": [
        *TWO,
        (1.0, submit(1), [cmd.Assign(1, (1,))]),
        (
            1.0,
            submit(2, 3, 4, cost=100.0),
            [cmd.Assign(0, (2,)), cmd.Assign(0, (3,)), cmd.Assign(0, (4,))],
        ),
        (1.005, look, []),
        (1.010, look, [cmd.Revoke(0, (2, 3))]),
        (1.010, submit(5, cost=100.0), []),  # nor does another one go there now
        (1.011, revoked(0, 2, 3), [cmd.Unassign((3, 4))]),
        (1.015, look, []),
        (1.1, outcome(1), [cmd.Assign(1, (3, 4, 5))]),
        (2.0, outcome(0), []),
        (2.1, submit(6), [cmd.Assign(0, (6,))]),
    ],
    "starts that fail park their slot, later and later; the others work on": [
        *TWO[:2],
        (0.25, died(1), [cmd.ParkSlot(1, FAILED, 1.0)]),
        (1.0, submit(1), [cmd.Assign(0, (1,))]),
        (1.0, submit(2), []),
        (1.25, timer, [cmd.Spawn(1, 2)]),
        (1.5, died(1), [cmd.ParkSlot(1, TWICE, 2.0)]),
        (3.5, timer, [cmd.Spawn(1, 3)]),
        (3.75, died(1), [cmd.ParkSlot(1, "3 starts failed in a row", 4.0)]),
        (7.75, timer, [cmd.Spawn(1, 4)]),
        (8.0, ready(1), [cmd.Recover(1), cmd.Assign(1, (2,))]),
    ],
    "a pool whose starts fail is broken when its last worker is gone": [
        *TWO,
        (1.0, submit(1), [cmd.Assign(1, (1,))]),
        (1.0, died(0), [cmd.TellRestart(0, 0.0), cmd.Spawn(0, 2)]),
        (1.5, died(0), [cmd.ParkSlot(0, FAILED, 1.0)]),
        (2.5, timer, [cmd.Spawn(0, 3)]),
        (2.75, died(0), [cmd.ParkSlot(0, TWICE, 2.0)]),
        (3.0, submit(2), []),
        (3.5, died(1, started=True), [cmd.TellRestart(1, 0.0), cmd.Spawn(1, 2)]),
        (
            4.0,
            died(1),
            [
                cmd.ParkSlot(1, "3 starts failed in a row", 0.75),
                cmd.GiveUp("3 starts failed in a row"),
                cmd.FailJobs((2,), "broken"),
            ],
        ),
        (4.75, timer, [cmd.Spawn(0, 4)]),
        (5.0, died(0), [cmd.ParkSlot(0, "4 starts failed in a row", 4.0)]),
        (9.0, timer, [cmd.Spawn(0, 5)]),
        (9.0, ready(0), [cmd.Recover(0), cmd.Spawn(1, 3)]),
        (9.0, ready(1), []),
        (9.0, submit(4), [cmd.Assign(1, (4,))]),
    ],
    "a close finishes the queue, with as many workers as it needs": [
        *TWO,
        (1.0, submit(1), [cmd.Assign(1, (1,))]),
        (1.0, submit(2), [cmd.Assign(0, (2,))]),
        (1.0, submit(3), []),
        (2.0, close(30.0), []),
        (3.0, outcome(1), [cmd.Assign(1, (3,))]),
        (3.5, outcome(0), [cmd.Stop(0)]),
        (3.6, died(0), []),
        (
            4.0,
            died(1, started=True, requeue=True),
            [cmd.TellRestart(1, 0.0), cmd.Spawn(1, 2)],
        ),
        (4.1, ready(1), [cmd.Assign(1, (3,))]),
        (5.0, outcome(1), [cmd.Stop(1)]),
        (5.1, died(1), [cmd.Finished()]),
    ],
    "when the time is over every job ends and every worker is killed": [
        *TWO,
        (1.0, submit(1), [cmd.Assign(1, (1,))]),
        (2.0, close(3.0), [cmd.Stop(0)]),
        (2.1, died(0), []),
        (5.0, timer, [cmd.FailJobs((1,), "closed"), cmd.Kill(1)]),
        (10.0, timer, [cmd.Abandon(1)]),
        (10.0, died(1), [cmd.Finished()]),
    ],
    "a worker that is told to stop and does not is pressed step by step": [
        *ONE,
        (1.0, close(30.0), [cmd.Stop(0)]),
        (3.0, timer, [cmd.Terminate(0)]),
        (5.0, timer, [cmd.Kill(0)]),
        (10.0, timer, [cmd.Abandon(0)]),
        (10.0, died(0), [cmd.Finished()]),
    ],
}


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name: str) -> None:
    history = HISTORIES[name]
    workers = len(history[0][2])
    core = Core(workers, policy=POLICY)
    for step, (now, event, commands) in enumerate(history):
        deadline = core.next_deadline()
        assert deadline is None or now <= deadline, f"step {step} comes too late"
        assert event(core, now) == commands, f"in step {step}"
