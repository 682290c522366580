"""Sessions among planned exits; every order of events is in ``test_supervision.py``."""

from __future__ import annotations

from asyncpool._core.policies.restart import RestartPolicy
from tests.core.imaginary.shell import ImaginaryShell


def with_a_session(workers: int, slot: int) -> tuple[ImaginaryShell, int]:
    """Return a pool whose only worker that is ready has a session, which survives it."""
    shell = ImaginaryShell(workers=workers, policy=RestartPolicy())
    shell.start()
    shell.ready(slot)
    shell.want()
    [session] = shell.owners.values()
    shell.last(session)
    return shell, session


def test_a_session_that_goes_on_in_its_slot_needs_no_worker_elsewhere() -> None:
    shell, session = with_a_session(workers=2, slot=0)
    shell.call(session)
    shell.retire(0)
    for slot in (1, 2):
        shell.die(slot)
    assert shell.parked == {1, 2}, "starts fail"
    shell.die(0)
    assert [*shell.processes] == [0], "the session's next worker"
    assert shell.parked == {2}, "and so nobody is missing but one"


def test_another_call_rebuilds_a_session_if_the_first_was_cancelled_unbegun() -> None:
    shell, session = with_a_session(workers=1, slot=0)
    shell.die(0)
    shell.ready(0)
    first = shell.rebuilding[session]
    assert first is not None
    shell.call(session)
    shell.die(0, requeue=True)
    assert shell.waiting_calls == [first, first + 1], "that worker had not begun it"
    shell.cancel(first)
    shell.ready(0)
    assert list(shell.processes[0].hand) == [shell.rebuilding[session]]
    assert shell.rebuilding[session] != first
    assert shell.waiting_calls == [first + 1], "it waits for that"


def broken_with_sessions() -> ImaginaryShell:
    """Return a broken pool of two workers with sessions in its slots 0, 1 and 2."""
    shell = ImaginaryShell(workers=3, policy=RestartPolicy(max_failed_starts=2))
    shell.start()
    for slot in range(3):
        shell.ready(slot)
        shell.want()
    for session in shell.owners.values():
        shell.last(session)
    shell.resize(2, 2)
    for slot in (0, 1, 2):
        shell.die(slot)
    assert [*shell.processes] == [0, 1, 2], "no session gives up its place"
    for slot in (0, 1, 2):
        shell.die(slot)
    assert shell.broken
    return shell


def test_sessions_go_on_when_a_broken_pool_has_recovered() -> None:
    shell = broken_with_sessions()
    assert sorted(shell.owners) == [0, 1, 2]
    shell.advance(1.0)
    assert [*shell.processes] == [0], "one tries for all"
    shell.ready(0)
    assert sorted(shell.processes) == [0, 1, 2]
    for slot, session in [*shell.owners.items()]:
        if slot:
            shell.ready(slot)
        rebuilds = shell.rebuilding[session]
        assert list(shell.processes[slot].hand) == [rebuilds]


def test_calls_that_wait_fail_when_the_pool_breaks_also_one_that_rebuilds() -> None:
    shell, session = with_a_session(workers=1, slot=0)
    shell.die(0)
    shell.ready(0)
    first = shell.rebuilding[session]
    shell.call(session)
    shell.die(0, requeue=True)
    assert shell.waiting_calls == [first, shell.jobs]
    while not shell.broken:
        shell.die(0)
        if not shell.broken:
            shell.advance(1.0)
    assert not shell.waiting_calls
    shell.advance(60.0)
    shell.ready(0)
    assert list(shell.processes[0].hand) == [shell.rebuilding[session]]
    assert shell.rebuilding[session] != first


def test_sessions_are_over_when_the_pool_has_given_up() -> None:
    policy = RestartPolicy.limited(max_restarts=1, period=60.0)
    shell = ImaginaryShell(workers=1, policy=policy)
    shell.start()
    shell.ready(0)
    shell.want()
    [session] = shell.owners.values()
    shell.last(session)
    shell.die(0)
    shell.call(session)
    shell.die(0)
    assert shell.gave_up
    assert not shell.owners
    assert not shell.waiting_calls


def test_a_broken_pool_comes_back_without_the_slots_of_sessions_that_are_over() -> None:
    shell = broken_with_sessions()
    shell.end_session(shell.owners[1], fresh=False)
    shell.advance(1.0)
    shell.ready(0)
    assert sorted(shell.processes) == [0, 2]


def test_if_the_start_that_tries_for_all_is_not_needed_a_session_tries_its_own() -> (
    None
):
    shell, session = with_a_session(workers=4, slot=3)
    for slot in (1, 2):
        shell.ready(slot)
    shell.die(0)
    for _ in range(2):
        shell.die(3)
    assert shell.parked == {0, 3}
    shell.advance(1.0)
    assert shell.parked == {3}, "worker 0 tries for both"
    shell.resize(2, 2)
    assert shell.processes[0].leaving
    shell.advance(0.0)
    assert not shell.processes[3].ready
    shell.ready(3)
    assert shell.owners == {3: session}


def test_a_pool_that_is_made_smaller_keeps_a_worker_while_a_sessions_cannot_start() -> (
    None
):
    own = 0
    shell, session = with_a_session(workers=4, slot=own)
    for slot in (1, 2, 3):
        shell.ready(slot)
    for _ in range(2):
        shell.die(own)
    assert shell.parked == {own}
    shell.resize(1, 1)
    for slot in shell.slots("idle", told=True):
        shell.die(slot)
    for slot in shell.slots("idle", told=True):
        shell.die(slot)
    [other] = shell.slots("idle")
    shell.submit()
    assert shell.processes[other].hand, "it works meanwhile"
    shell.outcome(other)
    shell.advance(1.0)
    shell.ready(own)
    assert shell.owners == {own: session}
    assert shell.processes[other].leaving, "now there is one too many"
