"""Sessions among planned exits; every order of events is in ``test_supervision.py``."""

from __future__ import annotations

from asyncpool._core.policies.restart import RestartPolicy
from tests.core.imaginary.shell import ImaginaryShell


def test_a_session_that_goes_on_in_its_slot_needs_no_worker_elsewhere() -> None:
    shell = ImaginaryShell(workers=2, policy=RestartPolicy())
    shell.start()
    shell.ready(0)
    shell.want()
    [session] = shell.owners.values()
    shell.last(session)
    shell.call(session)
    shell.retire(0)
    for slot in (1, 2):
        shell.die(slot)
    assert shell.parked == {1, 2}, "starts fail"
    shell.die(0)
    assert [*shell.processes] == [0], "the session's next worker"
    assert shell.parked == {2}, "and so nobody is missing but one"


def test_another_call_rebuilds_a_session_if_the_first_was_cancelled_unbegun() -> None:
    shell = ImaginaryShell(workers=1, policy=RestartPolicy())
    shell.start()
    shell.ready(0)
    shell.want()
    [session] = shell.owners.values()
    shell.last(session)
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
