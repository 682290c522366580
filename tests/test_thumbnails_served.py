"""The thumbnails behind ``asyncpool serve``: under load, whatever is done to workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.helpers.loops import EACH_LOOP, loop_factories
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
