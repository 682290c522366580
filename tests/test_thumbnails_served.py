"""The thumbnails behind ``asyncpool serve``: under load, whatever is done to workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from tests.helpers.loops import EACH_LOOP, loop_factories
from tests.helpers.patience import PATIENCE
from tests.helpers.served import (
    CLIENTS,
    WORKERS,
    crowd_of,
    run_served,
)

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=EACH_LOOP)
def loop(request: pytest.FixtureRequest) -> str:
    """The event loop that serves."""
    if request.param not in loop_factories():
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


async def test_no_client_notices_a_reload(tmp_path: Path, loop: str) -> None:
    async with run_served(tmp_path, loop=loop) as service:
        old = await service.workers()
        async with crowd_of(service) as crowd:
            answer = await service.command("reload")
            assert answer == (0, "reloaded: 2 workers are new\n")
            await crowd.more(CLIENTS)
        new = await service.workers()
    assert len(new) == WORKERS
    assert new.isdisjoint(old)
    assert not crowd.lost
    assert set(crowd.statuses) == {200}


async def test_nor_one_of_bad_code(tmp_path: Path, loop: str) -> None:
    async with run_served(tmp_path, loop=loop) as service:
        old, code = await service.workers(), service.code.read_text()
        async with crowd_of(service) as crowd:
            service.code.write_text(f"raise RuntimeError('a bad deploy')\n{code}")
            status, text = await service.command("reload")
            assert status == 1
            assert text.startswith("asyncpool: the reload has ended after 0 workers")
            assert await service.said("failed start.*RuntimeError: a bad deploy")
            await crowd.more(CLIENTS)
            assert await service.workers() == old

            service.code.write_text(code)
            status, _ = await service.command("reload")
            assert status == 0
            await crowd.more(CLIENTS)
        assert old.isdisjoint(await service.workers())
    assert not crowd.lost
    assert set(crowd.statuses) == {200}


async def test_a_killed_worker_takes_no_more_than_its_own_requests(
    tmp_path: Path, loop: str
) -> None:
    kills = 3
    async with run_served(tmp_path, loop=loop) as service:
        async with crowd_of(service) as crowd:
            for _ in range(kills):
                victim = min(await service.workers())
                below = psutil.Process(victim).children(recursive=True)
                os.kill(victim, signal.SIGKILL)
                await service.until_all_ready(without=victim)
                await crowd.more(CLIENTS)
                # The pool of that worker has gone with it.
                assert not psutil.wait_procs(below, PATIENCE)[1]
        assert (await service.status())["crashes"] == kills
    assert len(crowd.lost) <= kills * CLIENTS
    assert not [lost for lost in crowd.lost if isinstance(lost, httpx.ConnectError)]
    assert set(crowd.statuses) == {200}


async def test_a_worker_of_the_pool_in_a_worker_is_replaced_unnoticed(
    tmp_path: Path, loop: str
) -> None:
    async with run_served(tmp_path, loop=loop) as service:
        async with crowd_of(service) as crowd:
            (slot,) = (await service.health())["slots"]
            os.kill(slot["pid"], signal.SIGKILL)
            assert await service.said("pool thumbnails: worker .* was killed")
            await crowd.more(2 * CLIENTS)
        assert (await service.status())["crashes"] == 0
    assert not crowd.lost
    assert set(crowd.statuses) == {200}
