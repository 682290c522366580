"""A pool whose cluster loses its head, or has a store that is full."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncpool.errors import NodeLostError, PoolClosedError
from asyncpool.ray import Pool
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.ray_clusters import until

pytestmark = pytest.mark.asyncio

# In a process of its own, since Ray ends the processes of a cluster whose head is gone.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args=head)
print("address", cluster.address, flush=True)
sys.stdin.readline()
cluster.head_node.kill_gcs_server()
sys.stdin.readline()
cluster.shutdown()
"""

# As clients of their own: Ray keeps what it knows of a cluster for good, and ends what is connected
# a minute after it has lost the head: without the pool's doing if "ray" was imported before it.
CLIENT = """
import asyncio, os, sys, time
if sys.argv[2] == "early":
    import ray
import asyncpool.ray
from asyncpool.errors import AsyncPoolError

async def told(submit, *call):
    try:
        print(await submit(*call), flush=True)
    except AsyncPoolError as error:
        print(type(error).__name__, flush=True)

async def main():
    pool = asyncpool.ray.Pool(sys.argv[1], workers_per_node=1, resources={})
    async with pool:
        print("worker", await pool.submit(os.getpid), flush=True)
        jobs = [pool.submit(time.sleep, 600), pool.submit(len, "ab")]
        for job in jobs:
            await told(lambda: job)
        await told(pool.submit, len, "abc")
    print("closed", flush=True)

asyncio.run(main())
"""


@pytest.fixture
def lonely(tmp_path: Path) -> Generator[subprocess.Popen[str]]:
    """Have a cluster that loses its head when it is told to."""
    (tmp_path / "cluster.py").write_text(CLUSTER)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "cluster.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.communicate("\n\n", timeout=4 * PATIENCE)


def start(*command: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True
    )


def word(process: subprocess.Popen[str], name: str) -> str:
    """Return what a process says behind *name*; Ray says other things too."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"{name} "):
            return line.removeprefix(name).strip()
    raise AssertionError(f"it did not say {name}")


async def test_nothing_hangs_and_nothing_is_left_when_the_head_dies(
    lonely: subprocess.Popen[str], tmp_path: Path
) -> None:
    """With the default limits of both, and before Ray ends the program."""
    (tmp_path / "client.py").write_text(CLIENT)
    address = word(lonely, "address")
    clients = [
        start(tmp_path / "client.py", address, when) for when in ("early", "late")
    ]
    workers = [psutil.Process(int(word(client, "worker"))) for client in clients]
    family = [process for one in workers for process in (one, *one.parents()[:1])]
    assert lonely.stdin is not None
    lonely.stdin.write("\n")
    lonely.stdin.flush()
    lost = NodeLostError.__name__
    for client in clients:
        out, _ = client.communicate(timeout=4 * PATIENCE)
        said = [line for line in out.splitlines() if not line.startswith("(")]
        assert said == [lost, lost, PoolClosedError.__name__, "closed"]
        assert client.returncode == 0
    await until(family)


async def test_a_full_store_spills_and_the_pool_goes_on(pool: Pool) -> None:
    import ray

    async with patience(4):
        held: list[Any] = [ray.put(os.urandom(20_000_000)) for _ in range(6)]
        data = os.urandom(9_000_000)
        assert await pool.submit(zlib.crc32, data) == zlib.crc32(data)
        assert await pool.submit(bytes, 9_000_000) == bytes(9_000_000)
        assert await pool.submit(len, held[0]) == 20_000_000
        # More than the store has in all.
        assert await pool.submit(len, bytes(120_000_000)) == 120_000_000
        assert await pool.submit(bytes, 120_000_000) == bytes(120_000_000)
        assert await pool.submit(abs, -2) == 2


# In a process that is not connected to Ray.
STRANGER = """
import asyncio, socket
import asyncpool.ray

async def main(address):
    try:
        await asyncpool.ray.Pool(address, start_timeout=1).start()
    except Exception as error:
        print(type(error).__name__, error, flush=True)

with socket.create_server(("127.0.0.1", 0)) as silent:
    asyncio.run(main(f"127.0.0.1:{silent.getsockname()[1]}"))
"""


async def test_a_cluster_that_does_not_answer_is_waited_for_until_start_timeout(
    tmp_path: Path,
) -> None:
    (tmp_path / "stranger.py").write_text(STRANGER)
    out, _ = start(tmp_path / "stranger.py").communicate(timeout=2 * PATIENCE)
    assert out == (
        "TimeoutError no agent of the Ray pool is ready after start_timeout (1 s): the Ray "
        "cluster does not answer\n"
    )
