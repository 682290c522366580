"""What ``ps`` calls the processes of a pool."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from asyncpool import Pool
from tests.helpers import jobs
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import idle, launcher_of

pytestmark = [
    BOTH_LOOPS,
    pytest.mark.skipif(sys.platform != "linux", reason="nothing else has such names"),
]

# In place of the extra: it tells what it was asked for.
FAKE = """
import os

def setproctitle(title):
    with open(os.path.join(os.path.dirname(__file__), "titles"), "a") as file:
        file.write(f"{os.getpid()} {title}\\n")
"""


async def test_each_process_has_a_name_of_its_own() -> None:
    async with patience(), Pool(2, name="shop") as pool:
        await idle(pool)
        names = [psutil.Process(await launcher_of(pool)).name()]
        workers = {it.slot: it.pid for it in pool.stats().slots}
        names += [psutil.Process(workers[slot]).name() for slot in (0, 1)]
    assert names == ["pool-launcher", "pool-worker-0", "pool-worker-1"]


async def test_a_spawned_worker_has_one_too() -> None:
    async with patience(), Pool(1, launcher="spawn") as pool:
        pid = await pool.submit(jobs.pid)
        assert psutil.Process(pid).name() == "pool-worker-0"


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_with_the_extra_a_title_names_the_pool(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setproctitle.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with patience(), Pool(1, name="shop", launcher=launcher) as pool:  # type: ignore[arg-type]
        pid, parent = await pool.submit(jobs.pid), await launcher_of(pool)
        assert psutil.Process(pid).name() == "pool-worker-0", "the short name stays"
    told = (tmp_path / "titles").read_text().splitlines()
    assert f"{parent} asyncpool: launcher" in told
    assert f"{pid} asyncpool: worker 0 of shop" in told


async def test_an_extra_that_fails_hurts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setproctitle.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    async with patience(), Pool(1) as pool:
        assert await pool.submit(jobs.square, 3) == 9
