"""Nodes, agents and clients that come and go."""

from __future__ import annotations

import os
import signal
from typing import Any

import psutil
import pytest

from asyncpool import __version__
from asyncpool.errors import NodeLostError, ProtocolError
from asyncpool.ray import Pool, _placement
from tests.helpers.gate import Gate
from tests.helpers.jobs import square, wait_at
from tests.helpers.patience import patience
from tests.helpers.ray_clusters import LocalNodes, until

pytestmark = pytest.mark.asyncio


@pytest.mark.logs("node-lost")
async def test_nothing_is_left_of_an_agent_that_is_killed_and_its_node_gets_another(
    pool: Pool,
) -> None:
    async with Gate() as gate, patience(2):
        job = pool.submit(wait_at, gate.path, "here")
        visitor = await gate.visitor("here")
        agent = int(next(iter(await pool.nodes())).rpartition("/")[2])
        family = psutil.Process(agent).children(recursive=True)
        assert visitor.pid in [process.pid for process in family]
        os.kill(agent, signal.SIGKILL)
        with pytest.raises(NodeLostError, match=f"/{agent} is lost: The actor died"):
            await job
        await visitor.gone()
        await until(family)
        assert await pool.submit(square, 3) == 9


async def test_nothing_is_left_when_the_pool_is_closed(cluster: LocalNodes) -> None:
    async with Pool(cluster.address) as pool:
        agent = int(next(iter(await pool.nodes())).rpartition("/")[2])
        process = psutil.Process(agent)
        family = [process, *process.children(recursive=True)]
    await until(family)


@pytest.mark.logs("node-refused")
@pytest.mark.parametrize(
    ("kind", "name"), [("asyncpool", "asyncpool"), ("python", "Python")]
)
async def test_another_version_is_refused_and_both_are_named(
    cluster: LocalNodes, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    greeting = vars(_placement)["greeting"]
    here = greeting(__version__, "pickle")[kind]

    def older(version: str, codec: str) -> dict[str, Any]:
        return {**greeting(version, codec), kind: "0.0.1"}

    with monkeypatch.context() as patch:
        patch.setattr(_placement, "greeting", older)
        with pytest.raises(ProtocolError) as caught:
            await Pool(cluster.address).start()
    assert str(caught.value).endswith(
        f" refuses: the agent has {name} {here}, and the client 0.0.1: both need the same"
    )
    # The one that was refused has left its node to others.
    async with patience(2), Pool(cluster.address) as pool:
        assert await pool.submit(square, 3) == 9
