"""See the story of an imaginary pool to its good end.

What is checked here is that good things happen: jobs are done, slots are filled,
a close finishes, all of it in bounded time.
"""

from __future__ import annotations

import math

from tests.core.imaginary.books import Process
from tests.core.imaginary.shell import ImaginaryShell
from tests.core.pool_core import (
    KILL_GRACE,
    STACK_GRACE,
    Finish,
    StopStage,
)

__all__ = ["behave", "close_whatever_happens", "get_well"]


# How often workers may do something for each job, at the most: begin with an empty slot,
# be ready, load it, give it back (which takes two) or finish it, and end; and the pool may
# have to get it, and to load what came of it.
STEPS = 8


def behave(shell: ImaginaryShell, manners: str) -> bool:
    """Let each worker do what it does; tell whether any of them did something.

    The kind do what is wanted from them.  The deaf do nothing and end by SIGKILL,
    and not even that ends the undead.
    """
    active = False
    for process in list(shell.processes.values()):
        if process.told is not StopStage.NO:
            if manners == "undead":
                continue
            if manners == "deaf" and process.told is not StopStage.KILLED:
                continue
            shell.die(process.slot)
        elif manners != "kind" or process.state == "idle":
            continue
        else:
            _go_on(shell, process)
        active = True
    if not active and manners == "kind" and (shell.preparing or shell.unpacking):
        # What the pool's own threads do, when everybody waits for it.
        if shell.unpacking:
            shell.outcome_unpacked(shell.unpacking[0])
        elif len(shell.preparing) == 1 and shell.jobs % 3 == 0:
            shell.refuse(shell.preparing[0])
        else:
            shell.submit_prepared(shell.preparing[0])
        active = True
    return active


def _go_on(shell: ImaginaryShell, process: Process) -> None:
    if process.state == "starting":
        shell.ready(process.slot)
    elif process.loading is not None:
        shell.load(process.slot)
    elif process.questions:
        shell.answer(process.slot)
    elif process.answers:
        shell.hear(process.slot)
    else:
        # Now and then one that must be loaded before it counts.
        shell.outcome(process.slot, heavy=shell.seen["completed"] % 3 == 0)


def end_sessions(shell: ImaginaryShell) -> None:
    """Let nobody have, or want, a worker to himself."""
    while shell.wanted:
        shell.want_no_more()
    for session in [*shell.owners.values()]:
        shell.end_session(session, fresh=session % 2 == 0)
    shell.depart()


def get_well(shell: ImaginaryShell) -> None:
    """Check that a pool whose workers are kind from now on does all its jobs."""
    for slot in shell.slots("starting", "idle", "busy", told=True):
        shell.die(slot)  # which may be one crash too many
    end_sessions(shell)
    began, broken = shell.now, shell.seen["broken"]
    # What comes back from a worker to a broken pool fails, as the queue did.
    healthy = not any(
        process.faulty or process.hung or process.questions or process.answers
        for process in shell.processes.values()
    )
    for _ in range(200 + STEPS * shell.jobs):
        if behave(shell, "kind"):
            continue
        missing = shell.workers - len(shell.free())
        if missing <= 0 or shell.gave_up:
            break
        deadline = shell.core.next_deadline()
        assert deadline is not None, "nobody looks at the empty slots"
        shell.advance(deadline - shell.now)
    else:
        raise AssertionError("the pool has not come back")
    patience = max(shell.policy.max_delay, 0.5 * len(shell.core.slots))
    assert shell.now <= began + patience + STACK_GRACE  # who hangs goes first
    assert not shell.open
    assert shell.seen["broken"] == broken or not healthy


def close_whatever_happens(shell: ImaginaryShell, manners: str) -> None:
    """Check that a close finishes, whatever came before and the workers are like."""
    patient = shell.closing is None and manners == "kind"
    closed, began = shell.seen["closed"], shell.now
    shell.close(Finish.ALL, math.inf if patient else 50.0)
    end_sessions(shell)
    while shell.holds:
        shell.release()
    for _ in range(400 + STEPS * shell.jobs):
        shell.bury_the_abandoned()
        if shell.finished:
            break
        if not behave(shell, manners):
            deadline = shell.core.next_deadline()
            assert deadline is not None, "nobody looks at the last workers"
            shell.advance(deadline - shell.now)
    assert shell.finished, "the close never ended"
    assert shell.now <= shell.close_at + KILL_GRACE
    if patient:
        assert shell.seen["closed"] == closed, "a job was not finished"
        assert shell.now < began + 50.0, "there was nothing to wait for"
