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


def test_a_pool_that_has_broken_comes_back_with_as_many_workers_as_its_size() -> None:
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
    shell.advance(1.0)
    assert [*shell.processes] == [0], "one tries for all"
    shell.ready(0)
    assert len(shell.processes) == 2, "the sessions are over"


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
