"""``broadcast``."""

from __future__ import annotations

from typing import assert_type

from asyncpool import BoundPool, Pool
from asyncpool.errors import BroadcastError
from tests.typing.jobs import add, fetch


async def accepted(pool: Pool, view: BoundPool) -> None:
    assert_type(await pool.broadcast(add, 1, carry=True), dict[int, int])
    assert_type(await pool.broadcast(fetch, "a"), dict[int, bytes])
    assert_type(await view.broadcast(add, 1), dict[int, int])


def failed(error: BroadcastError) -> None:
    assert_type(error.name, str)
    assert_type(error.errors, dict[int, BaseException])


async def rejected(pool: Pool) -> None:
    await pool.broadcast(add, "a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await pool.broadcast(fetch)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    results: list[int] = await pool.broadcast(add, 1)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(results)
