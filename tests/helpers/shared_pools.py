"""Pools that clients share, in this process and in others."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import psutil

from asyncpool.pool import Pool
from asyncpool.sharedpool import PoolServer, SharedPool, connect
from tests.helpers.patience import PATIENCE

__all__ = ["client", "pool_and_client", "served", "server", "shared"]

SERVER = """
import asyncio, sys
from asyncpool.pool import Pool
from asyncpool.sharedpool import PoolServer

async def main():
    pool = Pool(int(sys.argv[2]))
    async with pool, PoolServer(pool, sys.argv[1]):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)

if __name__ == "__main__":
    asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def shared(
    tmp_path: Path, workers: int = 2, **options: Any
) -> AsyncGenerator[SharedPool]:
    """Yield the client of a pool in this process."""
    async with pool_and_client(tmp_path, workers, **options) as (_, client):
        yield client


@contextlib.asynccontextmanager
async def pool_and_client(
    tmp_path: Path, workers: int = 2, **options: Any
) -> AsyncGenerator[tuple[Pool, SharedPool]]:
    """Yield a pool in this process, and a client of it."""
    path = str(tmp_path / "pool.sock")
    async with (
        Pool(workers, **options) as pool,
        PoolServer(pool, path),
        connect(f"unix:{path}") as client,
    ):
        yield pool, client


@contextlib.contextmanager
def server(path: Path, workers: int = 1) -> Generator[subprocess.Popen[str]]:
    """Have another process share a pool; nothing of it is left at the end."""
    script = path.with_suffix(".py")
    script.write_text(SERVER)
    process = subprocess.Popen(
        [sys.executable, script, path, str(workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    family: list[psutil.Process] = []
    try:
        assert process.stdout.readline() == "ready\n"
        family = psutil.Process(process.pid).children(recursive=True)
        yield process
    finally:
        process.stdin.close()
        process.wait(PATIENCE)
        process.stdout.close()
        _, left = psutil.wait_procs(family, PATIENCE)
        assert not left


@contextlib.asynccontextmanager
async def served(
    tmp_path: Path, workers: int = 1
) -> AsyncGenerator[tuple[subprocess.Popen[str], SharedPool]]:
    """Have another process share a pool; yield it, and a client of the pool."""
    path = tmp_path / "pool.sock"
    with server(path, workers) as process:
        async with connect(f"unix:{path}") as client:
            yield process, client


CLIENT = """
import asyncio, signal, sys
from asyncpool.sharedpool import connect
from tests.helpers import jobs

async def main():
    async with connect("unix:" + sys.argv[1]) as pool:
        queued = [pool.submit(jobs.square, n) for n in range(5)]
        try:
            await pool.submit(jobs.wait_at, sys.argv[2], "of the other")
        except BaseException as error:
            print(type(error).__name__, flush=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


@contextlib.contextmanager
def client(path: Path, gate: str) -> Generator[subprocess.Popen[str]]:
    """Have another process use a shared pool, with a job at a gate."""
    script = path.with_name("client.py")
    script.write_text(CLIENT)
    process = subprocess.Popen(
        [sys.executable, script, path, gate], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)
        process.stdout.close()
