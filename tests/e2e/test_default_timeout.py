"""A default timeout for sockets, of the program or of a module that workers import."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Literal

import pytest

import asyncpool
from asyncpool import Pool
from tests.helpers import faults, jobs
from tests.helpers.clusters import clients, whole_cluster
from tests.helpers.faults import by_name
from tests.helpers.inside import ControlClient, Request, path_of
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, crash_of

pytestmark = BOTH_LOOPS

both_launchers = pytest.mark.parametrize("launcher", ["forkserver", "spawn"])


@pytest.fixture
def impatient() -> Iterator[None]:
    """Set a default timeout in this process."""
    socket.setdefaulttimeout(5.0)
    yield
    socket.setdefaulttimeout(None)


async def assert_heals(pool: Pool) -> None:
    """Check that all workers serve, that one which dies is replaced, and that large values pass."""
    await assert_serves(pool)
    for _ in range(2):
        await crash_of(pool.submit(faults.commit, "exit 3"), by_name("exit 3"))
        await assert_serves(pool)
    assert await pool.submit(len, bytes(3_000_000)) == 3_000_000
    assert await pool.submit(bytes, 3_000_000) == bytes(3_000_000)
    assert pool.stats().crashes == 2


@both_launchers
@pytest.mark.usefixtures("impatient")
async def test_that_of_the_program_is_nothing_to_workers(
    launcher: Literal["forkserver", "spawn"],
) -> None:
    async with patience(), Pool(2, launcher=launcher) as pool:
        await assert_heals(pool)
        # Nor is it to those of an executor.
        with asyncpool.ProcessPoolExecutor(2) as executor:
            calls = [executor.submit(jobs.square, n) for n in range(50)]
            found = await asyncio.gather(*map(asyncio.wrap_future, calls))
    assert found == [n * n for n in range(50)]


@both_launchers
async def test_nor_is_that_of_a_module_that_they_import(
    launcher: Literal["forkserver", "spawn"],
) -> None:
    preload = ["tests.helpers.impatient"]
    async with patience(), Pool(2, launcher=launcher, preload=preload) as pool:
        await assert_heals(pool)
        assert await pool.submit(socket.getdefaulttimeout) == 5.0


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("spread", ["handoff", "shared"])
async def test_a_cluster_serves(spread: str) -> None:
    async with whole_cluster(spread=spread) as cluster:
        async with clients(cluster, 20) as some:
            for n, client in enumerate(some):
                assert await client.ask(f"echo {n}") == str(n)
        assert cluster.stats().crashes == 0


@pytest.mark.usefixtures("impatient")
async def test_a_control_socket_answers() -> None:
    def ask() -> object:
        with ControlClient(path_of("impatient"), within=20.0) as client:
            return client.ask(Request("status"))["kind"]

    async with patience(), Pool(1, control=True, name="impatient"):
        assert await asyncio.to_thread(ask) == "pool"
