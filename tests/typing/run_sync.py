"""``to_process.run_sync``, in place of anyio's."""

from __future__ import annotations

from typing import assert_type

import anyio
import anyio.to_process

from asyncpool import to_process
from tests.typing.jobs import add, repeat, total


async def accepted() -> None:
    assert_type(await to_process.run_sync(repeat, "a", 3), list[str])
    assert_type(await to_process.run_sync(add, 1), int)
    assert_type(await to_process.run_sync(total, 1, 2, 3), float)
    limiter = anyio.CapacityLimiter(2)
    found = await to_process.run_sync(len, "a", cancellable=True, limiter=limiter)
    assert_type(found, int)
    assert_type(to_process.current_default_process_limiter(), anyio.CapacityLimiter)
    assert_type(await anyio.to_process.run_sync(repeat, "a", 3), list[str])  # the same


async def rejected() -> None:
    await to_process.run_sync(len, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await to_process.run_sync(repeat, "a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await to_process.run_sync(repeat, "a", 1, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await to_process.run_sync(repeat, "a", times=1)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    await to_process.run_sync(len, "a", limiter=2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    text: str = await to_process.run_sync(len, "a")  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    print(text)
