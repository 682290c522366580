"""Streams."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, assert_type

from asyncpool import Job, Pool, Stream
from tests.typing.jobs import add, lines, pages


async def accepted(pool: Pool) -> None:
    assert_type(pool.stream(pages, "a"), Stream[bytes])
    assert_type(pool.stream(pages, "a", first=3), Stream[bytes])
    assert_type(pool.stream(lines, 3), Stream[str])
    assert_type(pool.stream(range, 3), Stream[int])
    assert_type(pool.options(prefetch=3).stream(lines, 3), Stream[str])


async def items(pool: Pool) -> None:
    stream = pool.stream(lines, 3)
    async for line in stream:
        assert_type(line, str)
    assert_type([line async for line in stream], list[str])
    assert_type(await anext(stream), str)
    assert_type(stream.job, Job[Any] | None)
    iterator: AsyncIterator[str] = stream
    print(iterator)
    async with contextlib.aclosing(stream) as closing:
        assert_type(closing, Stream[str])


async def rejected(pool: Pool) -> None:
    pool.stream(pages)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    pool.stream(pages, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.stream(lines, "a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.stream(add, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.stream(pages, "a", buffer=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    pool.options(prefetch="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await pool.stream(lines, 3)  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
