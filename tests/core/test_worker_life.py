"""What follows the ends of workers; every order of events is in ``test_supervision.py``."""

from __future__ import annotations

from asyncpool._core.policies.restart import BURST, RestartPolicy
from asyncpool._core.slots.commands import (
    Command,
    GiveUp,
    ParkSlot,
    Recover,
    Spawn,
)
from asyncpool._core.supervision.supervision import Supervision
from tests.core.imaginary.shell import ImaginaryShell


def test_a_pool_that_gives_up_parks_whom_it_was_about_to_start_too() -> None:
    policy = RestartPolicy(max_restarts=2 * BURST + 1)
    shell = ImaginaryShell(workers=2, policy=policy)
    shell.start()
    shell.ready(0)
    shell.ready(1)
    for _ in range(2 * BURST):
        shell.die(0)
        shell.ready(0)
    shell.die(0)
    assert shell.core.slots[0].due is not None, "it waits"
    shell.die(1)
    assert shell.gave_up
    assert shell.parked == {0, 1}


def test_a_caller_of_a_broken_pool_brings_the_next_try_forward() -> None:
    policy = RestartPolicy(initial_delay=16.0, max_failed_starts=1)
    core = Supervision(workers=(2, 2), policy=policy, start_timeout=20.0)

    def fail(slot: int, now: float) -> list[Command]:
        return core.workers.ended(slot, now, started=False, requeue=(), jitter=0.0)

    core.workers.start(0.0)
    text = "the start failed"
    assert fail(0, 1.0) == [ParkSlot(0, text, 16.0)]
    assert core.broken is None, "the other one may come up"
    assert fail(1, 1.0) == [ParkSlot(1, text, 16.0), GiveUp(text)]
    assert core.next_deadline() == 17.0
    core.workers.try_sooner(1.5)
    assert core.next_deadline() == 2.0, "a second after the last try"
    assert core.workers.retry_in(1.5) == 0.5
    assert core.on_timer(2.0) == [Spawn(0, 2)]
    core.workers.try_sooner(2.1)
    assert core.next_deadline() == 22.0, "somebody tries: until start_timeout"
    again = "2 starts failed in a row"
    assert fail(0, 9.0) == [ParkSlot(0, again, 30.0)]
    core.workers.try_sooner(9.5)
    core.workers.try_sooner(50.0)
    assert core.next_deadline() == 10.0
    assert core.on_timer(50.0) == [Spawn(0, 3)]
    assert core.workers.ready(0, 50.1) == [Recover(0), Spawn(1, 2)]
    assert core.broken is None
    core.workers.try_sooner(50.2)
    assert core.next_deadline() == 70.1
