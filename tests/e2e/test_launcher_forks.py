"""A launcher that is ended by a module that it preloads.

Either at the import, or while it forks: Python calls the module before, in the middle, and behind it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncpool import Crash, Pool, PoolBrokenError
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


@pytest.mark.parametrize(
    ("source", "how", "signal_name", "exit_code"),
    [
        ("string_at(0)", "signal SIGSEGV ended it", "SIGSEGV", None),
        ("os.abort()", "signal SIGABRT ended it", "SIGABRT", None),
        ("os._exit(7)", "it ended with exit status 7", None, 7),
    ],
)
async def test_a_preload_that_ends_the_launcher_is_named(
    source: str,
    how: str,
    signal_name: str | None,
    exit_code: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "ap_fatal.py").write_text(f"import os\nfrom ctypes import *\n{source}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PoolBrokenError) as caught:
        async with patience(), Pool(1, preload=["json", "ap_fatal"]):
            pass
    [crash] = caught.value.crashes
    assert str(crash) == (
        "a worker in slot 0 could not be started: "
        f"the launcher died while it imported ap_fatal: {how}"
    )
    assert (crash.signal, crash.exit_code, crash.final) == (
        signal_name,
        exit_code,
        True,
    )
    lines = crash.stack.splitlines()
    assert [line.partition(":")[0] for line in lines[:1]] == (
        [] if exit_code else ["Fatal Python error"]
    )
    assert any("ap_fatal.py" in line for line in lines) is (not exit_code)


async def test_a_preload_that_the_kernel_kills_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = (
        "import os, signal\n"
        f"mark = {str(tmp_path / 'mark')!r}\n"
        "if not os.path.exists(mark):\n"
        "    open(mark, 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "ap_killed.py").write_text(once)
    monkeypatch.syspath_prepend(tmp_path)
    crashes: list[Crash] = []
    pool = Pool(1, preload=["ap_killed"], on_crash=crashes.append)
    async with patience(), pool:
        await assert_serves(pool)
    [crash] = crashes
    assert crash.detail == (
        "the launcher died while it imported ap_killed: signal SIGKILL ended it"
    )
    assert (crash.signal, crash.final) == ("SIGKILL", False)
