"""Clusters some of whose nodes have another version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from typing import Any

import pytest

from asyncpool import __version__
from asyncpool.errors import ProtocolError
from asyncpool.ray import Pool, _engine, _placement
from tests.helpers.jobs import square
from tests.helpers.logs import Kept, handled_by
from tests.helpers.patience import patience
from tests.helpers.ray_clusters import LocalNodes, agents, local_nodes

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def cluster() -> Generator[LocalNodes]:
    with local_nodes(more=1) as nodes:
        yield nodes


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return which greetings of a pool are those of another version, counting from 1."""
    told, which, greeting = 0, set[int](), vars(_placement)["greeting"]

    def greet(version: str, codec: str) -> dict[str, Any]:
        nonlocal told
        told += 1
        other = {"asyncpool": "0.0.1"} if told in which else {}
        return {**greeting(version, codec), **other}

    monkeypatch.setattr(_placement, "greeting", greet)
    return which


class Looks:
    """Counts how often a pool looks at the nodes of its cluster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        self._loop = asyncio.get_running_loop()
        self._looked = asyncio.Event()
        nodes = _engine.Engine.nodes

        def look(engine: _engine.Engine) -> list[_engine.RayNode]:
            self._loop.call_soon_threadsafe(self._on_look)
            return nodes(engine)

        monkeypatch.setattr(_engine.Engine, "nodes", look)

    def _on_look(self) -> None:
        self._count += 1
        self._looked.set()

    async def more(self, count: int) -> None:
        """Wait until it has looked *count* times more."""
        end = self._count + count
        while self._count < end:
            self._looked.clear()
            await self._looked.wait()


REASON = (
    f"the agent has asyncpool {__version__}, and the client 0.0.1: both need the same"
)


@pytest.mark.logs("node-refused")
async def test_a_node_that_refuses_is_told_of_once_and_the_others_have_the_jobs(
    cluster: LocalNodes, refused: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused.add(1)
    looks, kept = Looks(monkeypatch), Kept()
    with handled_by(kept, "asyncpool"):
        async with patience(2), Pool(cluster.address) as pool:
            [good] = await agents(pool, 1)
            await kept.until(bool)
            jobs = [pool.submit(square, number) for number in range(100)]
            assert await asyncio.gather(*jobs) == [n * n for n in range(100)]
            await looks.more(4)  # at each of them a node could get an agent again
            assert await pool.map(square, range(10)) == [n * n for n in range(10)]
            assert [*await pool.nodes()] == [good]
    [record] = kept.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().endswith(f" refuses: {REASON}")
    assert good not in record.getMessage()


@pytest.mark.logs("node-refused")
async def test_a_pool_for_some_nodes_takes_another_one_than_that_which_refuses(
    cluster: LocalNodes, refused: set[int]
) -> None:
    refused.add(1)
    async with patience(2), Pool(cluster.address, nodes=1) as pool:
        assert await pool.submit(square, 3) == 9
        assert len(await pool.nodes()) == 1
        assert (await pool.stats()).lost_nodes == 1


@pytest.mark.logs("node-refused")
async def test_it_does_not_start_if_all_refuse_and_each_is_told_of_once(
    cluster: LocalNodes, refused: set[int]
) -> None:
    refused |= {1, 2}
    kept = Kept()
    with handled_by(kept, "asyncpool"), pytest.raises(ProtocolError) as caught:
        async with patience(2), Pool(cluster.address):
            pass
    assert str(caught.value).endswith(f" refuses: {REASON}")
    assert len(kept.messages) == len(set(kept.messages)) == 2
    assert all(text.endswith(f" refuses: {REASON}") for text in kept.messages)
