"""A launcher that is killed while it forks: before, in the middle, and behind it.

It is killed by a module that it preloads, which Python calls at each of these moments.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncpool import Crash, Pool
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    end_of,
    idle,
    launcher_of,
)

pytestmark = BOTH_LOOPS

# Whoever forks next takes the order.  What the new process does to its parent, that one
# waits for.
DEADLY = """
import os, signal

taken = False

def before():
    global taken
    try:
        os.unlink({order!r})
    except FileNotFoundError:
        return
    taken = True
    if {moment!r} == "before":
        os.kill(os.getpid(), signal.SIGKILL)

def in_parent():
    if taken and {moment!r} == "in the parent":
        os.kill(os.getpid(), signal.SIGKILL)
    while taken:
        signal.pause()

def in_child():
    global taken
    if taken:
        taken = False
        os.kill(os.getppid(), signal.SIGKILL)

os.register_at_fork(
    before=before, after_in_parent=in_parent, after_in_child=in_child
)
"""


@pytest.fixture(params=["before", "in the child", "in the parent"])
def order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """Return the file that is the order to kill the launcher at its next fork."""
    order = tmp_path / "order"
    source = DEADLY.format(order=str(order), moment=request.param)
    (tmp_path / "ap_deadly.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return order


async def test_a_start_that_fails_is_made_up_for(order: Path) -> None:
    crashes: list[Crash] = []
    pool = Pool(1, preload=["ap_deadly"], on_crash=crashes.append)
    async with patience(), Gate() as gate, pool:
        first = await launcher_of(pool)
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        order.touch()
        await pool.resize(2)
        await idle(pool)
        await end_of(first)
        assert not order.exists()
        # Who runs goes on, and the others are of another launcher.
        visitor.release()
        assert await held == "go"
        await assert_serves(pool)
        stats = pool.stats()
        assert visitor.pid in {slot.pid for slot in stats.slots}
    [crash] = crashes
    assert (crash.kind, crash.pid, crash.job_id) == ("failed start", None, None)
    assert crash.detail == "the launcher's process ended"
    assert crash.next_step_text.startswith("the start failed, next try in 0.0")
    assert (stats.crashes, stats.restarts, stats.spawned) == (1, 1, 2)
