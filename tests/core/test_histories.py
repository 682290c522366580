"""What happens when: recorded histories of a pool's core.

Each line is a time, what the shell tells, and what the core wants done.  ``timer``
fires exactly at the deadline that the core has asked for, and no other line may
come later than that.  Jobs and slots are numbers; a worker is slot and generation.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asyncpool._core.commands import (
    Abandon,
    Assign,
    Command,
    FailJobs,
    Finished,
    GiveUp,
    Kill,
    ParkSlot,
    Recover,
    ScheduleRestart,
    Spawn,
    Stop,
    Terminate,
)
from asyncpool._core.restart import RestartPolicy
from asyncpool._core.supervision import Finish, Supervision

Event = Callable[[Supervision, float], list[Command]]
History = list[tuple[float, Event, list[Command]]]

ALL, RUNNING, NONE = Finish.ALL, Finish.RUNNING, Finish.NONE


def start(core: Supervision, now: float) -> list[Command]:
    return core.start(now)


def timer(core: Supervision, now: float) -> list[Command]:
    assert core.next_deadline() == now
    return core.on_timer(now)


def submit(job: int) -> Event:
    def event(core: Supervision, now: float) -> list[Command]:
        slot = core.submit(job)
        return [] if slot is None else [Assign(slot, job)]

    return event


def ready(slot: int) -> Event:
    return lambda core, now: core.ready(slot, now)


def outcome(slot: int) -> Event:
    return lambda core, now: core.outcome(slot, now)


def retry(slot: int, job: int) -> Event:
    """The job has raised what it is to be tried again after."""
    return lambda core, now: [*core.outcome(slot, now), *core.give_back(job)]


def died(slot: int, *, started: bool = False, requeue: bool = False) -> Event:
    return lambda core, now: core.ended(
        slot, now, started=started, requeue=requeue, roll=0.0
    )


def fault(slot: int) -> Event:
    return lambda core, now: core.faulty(slot, now)


def cancel(job: int) -> Event:
    return lambda core, now: core.cancel(job, now)


def close(finish: Finish, timeout: float) -> Event:
    return lambda core, now: core.close(finish, now + timeout, now)


# Delays of 1, 2, 4 s; the second failed start in a row parks.
POLICY = RestartPolicy(
    base=1.0, cap=4.0, jitter=False, max_failed_starts=2, max_crashes=3, probe_after=10
)

ONE: History = [(0.0, start, [Spawn(0, 1)]), (0.1, ready(0), [])]
TWO: History = [
    (0.0, start, [Spawn(0, 1), Spawn(1, 1)]),
    (0.1, ready(0), []),
    (0.1, ready(1), []),
]

HISTORIES: dict[str, History] = {
    "jobs begin in their order, and the worker that was idle last is the first": [
        *TWO,
        (1.0, submit(1), [Assign(1, 1)]),
        (1.0, submit(2), [Assign(0, 2)]),
        (1.0, submit(3), []),
        (1.0, submit(4), []),
        (2.0, outcome(0), [Assign(0, 3)]),
        (2.5, outcome(1), [Assign(1, 4)]),
        (3.0, outcome(1), []),
        (4.0, submit(5), [Assign(1, 5)]),
    ],
    "a worker dies in mid-job: blamed on the job, replaced at once": [
        *ONE,
        (1.0, submit(1), [Assign(0, 1)]),
        (1.0, submit(2), []),
        (1.5, died(0, started=True), [ScheduleRestart(0, 0.0), Spawn(0, 2)]),
        (1.6, ready(0), [Assign(0, 2)]),
    ],
    "a takeover goes to the head of the queue, or to an idle worker": [
        *ONE,
        (1.0, submit(1), [Assign(0, 1)]),
        (1.0, submit(2), []),
        (
            1.5,
            died(0, started=True, requeue=True),
            [ScheduleRestart(0, 0.0), Spawn(0, 2)],
        ),
        (1.6, ready(0), [Assign(0, 1)]),
        (2.0, outcome(0), [Assign(0, 2)]),
        (3.0, retry(0, 2), [Assign(0, 2)]),
    ],
    "workers that die while idle come back at longer and longer intervals": [
        *ONE,
        (1.0, died(0), [ScheduleRestart(0, 0.0), Spawn(0, 2)]),
        (1.1, ready(0), []),
        (2.0, died(0), [ScheduleRestart(0, 1.0)]),
        (3.0, timer, [Spawn(0, 3)]),
        (3.1, ready(0), []),
        (40.0, died(0), [ScheduleRestart(0, 0.0), Spawn(0, 4)]),  # it was healthy
    ],
    "a start that fails again and again parks the slot; the others work on": [
        *TWO[:2],
        (0.2, died(1), [ScheduleRestart(1, 0.0), Spawn(1, 2)]),
        (
            0.4,
            died(1),
            [ParkSlot(1, "2 starts failed in a row", 10)],
        ),
        (1.0, submit(1), [Assign(0, 1)]),
        (1.0, submit(2), []),
        (10.4, timer, [Spawn(1, 3)]),
        (10.5, ready(1), [Recover(1), Assign(1, 2)]),
    ],
    "a start that takes too long is ended by force": [
        (0.0, start, [Spawn(0, 1)]),
        (20.0, timer, [Kill(0)]),
        (20.1, ready(0), []),  # too late
        (20.2, died(0), [ScheduleRestart(0, 0.0), Spawn(0, 2)]),
    ],
    "too many crashes in the window break the pool; a probe brings it back": [
        *TWO,
        (1.0, submit(1), [Assign(1, 1)]),
        (1.0, died(0), [ScheduleRestart(0, 0.0), Spawn(0, 2)]),
        (1.1, ready(0), []),
        (2.0, died(0), [ScheduleRestart(0, 1.0)]),
        (3.0, timer, [Spawn(0, 3)]),
        (3.1, ready(0), []),
        (4.0, submit(2), [Assign(0, 2)]),
        (4.0, submit(3), []),
        (4.5, died(0), [ScheduleRestart(0, 2.0)]),
        (
            5.0,
            died(1),
            [
                ParkSlot(1, "4 workers crashed within 60 s", 10),
                GiveUp("4 workers crashed within 60 s"),
                FailJobs((3,), "broken"),
            ],
        ),
        (15.0, timer, [Spawn(0, 4)]),
        (
            15.1,
            died(0),
            [ParkSlot(0, "4 workers crashed within 60 s", 10)],
        ),
        (25.1, timer, [Spawn(0, 5)]),
        (25.2, ready(0), [Recover(0), Spawn(1, 2)]),
        (25.3, ready(1), []),
        (26.0, submit(4), [Assign(1, 4)]),
    ],
    "a pool that breaks lets its last jobs finish": [
        *TWO,
        (1.0, submit(1), [Assign(1, 1)]),
        (1.0, died(0), [ScheduleRestart(0, 0.0), Spawn(0, 2)]),
        (1.1, died(0), [ScheduleRestart(0, 1.0)]),
        (2.1, timer, [Spawn(0, 3)]),
        (2.2, ready(0), []),
        (3.0, died(0), [ScheduleRestart(0, 2.0)]),
        (5.0, timer, [Spawn(0, 4)]),
        (
            5.1,
            died(0),
            [
                ParkSlot(0, "4 workers crashed within 60 s", 10),
                GiveUp("4 workers crashed within 60 s"),
            ],
        ),
        (6.0, outcome(1), [Stop(1)]),
        (6.1, died(1), []),
        (15.1, timer, [Spawn(0, 5)]),
    ],
    "cancelling a queued job costs nothing, a running one its worker": [
        *ONE,
        (1.0, submit(1), [Assign(0, 1)]),
        (1.0, submit(2), []),
        (1.0, submit(3), []),
        (2.0, cancel(2), []),
        (3.0, cancel(1), [Kill(0)]),
        (3.1, died(0), [Spawn(0, 2)]),  # planned: no crash, no delay
        (3.2, ready(0), [Assign(0, 3)]),
        (3.3, cancel(1), []),
    ],
    "a thread's exception ends its worker when the job is done": [
        *ONE,
        (1.0, submit(1), [Assign(0, 1)]),
        (1.5, fault(0), []),
        (2.0, outcome(0), [Kill(0)]),
        (2.0, submit(2), []),
        (2.1, died(0), [ScheduleRestart(0, 0.0), Spawn(0, 2)]),
        (2.2, ready(0), [Assign(0, 2)]),
    ],
    "a close finishes the queue, with as many workers as it needs": [
        *TWO,
        (1.0, submit(1), [Assign(1, 1)]),
        (1.0, submit(2), [Assign(0, 2)]),
        (1.0, submit(3), []),
        (2.0, close(ALL, 30.0), []),
        (3.0, outcome(1), [Assign(1, 3)]),
        (3.5, outcome(0), [Stop(0)]),
        (3.6, died(0), []),
        (
            4.0,
            died(1, started=True, requeue=True),
            [ScheduleRestart(1, 0.0), Spawn(1, 2)],
        ),
        (4.1, ready(1), [Assign(1, 3)]),
        (5.0, outcome(1), [Stop(1)]),
        (5.1, died(1), [Finished()]),
    ],
    "a stricter close tightens the first one": [
        *TWO,
        (1.0, submit(1), [Assign(1, 1)]),
        (1.0, submit(2), [Assign(0, 2)]),
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
        (1.0, submit(1), [Assign(1, 1)]),
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
    # Regressions.
    "no worker is started when the time to close is over too": [
        *TWO,
        (1.0, died(0), [ScheduleRestart(0, 0.0), Spawn(0, 2)]),
        (1.1, submit(1), [Assign(1, 1)]),
        (1.1, submit(2), []),
        (1.2, died(0), [ScheduleRestart(0, 1.0)]),
        (1.2, close(ALL, 1.0), []),
        (2.2, timer, [FailJobs((1, 2), "closed"), Kill(1)]),
        (2.3, died(1), [Finished()]),
    ],
    "a broken pool probes with one start at a time": [
        *TWO,
        (1.0, submit(1), [Assign(1, 1)]),
        (1.0, died(0), [ScheduleRestart(0, 0.0), Spawn(0, 2)]),
        (1.1, ready(0), []),
        (2.0, died(0), [ScheduleRestart(0, 1.0)]),
        (3.0, timer, [Spawn(0, 3)]),
        (3.1, ready(0), []),
        (4.0, died(0), [ScheduleRestart(0, 2.0)]),
        (6.0, timer, [Spawn(0, 4)]),
        (
            6.1,
            died(0),
            [
                ParkSlot(0, "4 workers crashed within 60 s", 10),
                GiveUp("4 workers crashed within 60 s"),
            ],
        ),
        (16.1, timer, [Spawn(0, 5)]),
        (17.0, died(1), [ParkSlot(1, "4 workers crashed within 60 s", 10)]),
        (36.1, timer, [Kill(0)]),
    ],
    "the last slot of a closing pool cannot be filled: its queue hears it": [
        *TWO,
        (1.0, submit(1), [Assign(1, 1)]),
        (2.0, close(ALL, 30.0), [Stop(0)]),
        (2.1, died(0), []),
        (
            3.0,
            died(1, started=True, requeue=True),
            [ScheduleRestart(1, 0.0), Spawn(1, 2)],
        ),
        (3.1, died(1), [ScheduleRestart(1, 0.0), Spawn(1, 3)]),
        (
            3.2,
            died(1),
            [
                ParkSlot(1, "2 starts failed in a row", 10),
                GiveUp("every slot is parked: 2 starts failed in a row"),
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
    core = Supervision(workers=workers, policy=POLICY, start_timeout=20.0)
    for step, (now, event, commands) in enumerate(history):
        deadline = core.next_deadline()
        assert deadline is None or now <= deadline, f"step {step} comes too late"
        assert event(core, now) == commands, f"in step {step}"
