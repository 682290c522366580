"""What is in ``__main__`` reaches a pool of another program, which cannot import it."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.scripts import run_script
from tests.helpers.shared_pools import server

SCRIPT = """
import asyncio
import sys

import asyncpool

FACTOR = 3


class Point:
    def __init__(self, x):
        self.x = x


def scaled(x):
    return x * FACTOR


def moved(point, by=b""):
    return Point(point.x + len(by))


async def use(pool):
    print(await pool.submit(scaled, 2))
    print([number async for number in pool.map(scaled, range(3))])
    print((await pool.submit(moved, Point(1), by=b"12")).x)
    large = bytes(3_000_000)
    print((await pool.submit(moved, Point(1), by=large)).x)
    print(list((await pool.broadcast(scaled, 5)).values()))


async def main():
    async with asyncpool.Pool(1) as here:
        await use(here)
        async with asyncpool.connect(f"unix:{sys.argv[1]}") as there:
            await use(there)
            await use(here)


if __name__ == "__main__":
    asyncio.run(main())
"""

SAID = ["6", "[0, 3, 6]", "3", "3000001", "[15]"]


def test_a_program_with_a_pool_of_its_own_uses_another_one_too(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    with server(path):
        said = run_script(tmp_path, SCRIPT, str(path))
    assert said.splitlines() == 3 * SAID
