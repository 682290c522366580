"""``options``, of a pool and of a view."""

from __future__ import annotations

import asyncio
from typing import Any, assert_type

import asyncpool
from asyncpool import BoundPool, Job, LeaseKeeper, Map, Pool
from asyncpool.enums import CrashKind
from tests.typing.jobs import add


async def accepted(pool: Pool, keeper: LeaseKeeper[str]) -> None:
    assert_type(pool.options(), BoundPool)
    view = pool.options(
        max_attempts=3,
        retry_on=["crash", CrashKind.HUNG, OSError, asyncpool.errors.JobTimeoutError],
        retire_on=[OSError, "shop.DeviceError"],
        timeout=1.5,
        queue_timeout=2,
        heartbeat_timeout=None,
        deadline=asyncio.get_running_loop().time() + 5,
        on_cancel="kill",
        cancel_grace=0.5,
        priority=-1,
        key=("tenant", 7),
        lease=(keeper, "receipt"),
        prefetch=64,
    )
    assert_type(view, BoundPool)
    assert_type(view.options(timeout=None, lease=None), BoundPool)
    assert_type(view.submit(add, 1), Job[int])
    assert_type(view.map(add, [1]), Map[int])
    assert_type(await view.submit(add, 1, carry=True), int)


async def from_a_dict(pool: Pool, settings: dict[str, Any]) -> None:
    assert_type(await pool.options(**settings).submit(add, 1), int)


def rejected(pool: Pool, view: BoundPool, keeper: LeaseKeeper[str]) -> None:
    pool.options(max_attempt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    pool.options(3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    pool.options(max_attempts="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(max_attempts=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(retry_on=["crashed"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    pool.options(retry_on="crash")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(retry_on=CrashKind.CRASH)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(retry_on=OSError)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(retry_on=[OSError()])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    pool.options(retire_on=[OSError()])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    pool.options(retire_on=OSError)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(timeout="1 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(on_cancel="x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(cancel_grace=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(priority=0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(key=["tenant"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(lease="receipt")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(lease=("receipt", keeper))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.options(lease=(keeper, ["receipt"]))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    view.submit(add, "a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    view.options(max_attempt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    view.close()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    BoundPool(pool)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
