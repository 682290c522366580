"""``map`` and ``starmap``, and what they return."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from pathlib import Path
from typing import Any, assert_type

from asyncpool import Map, Outcome, Pool
from tests.typing.jobs import add, fetch, join, repeat, total


async def accepted(
    pool: Pool,
    numbers: AsyncIterator[int],
    texts: AsyncIterable[str],
    columns: Iterable[list[int]],
) -> None:
    assert_type(pool.map(len, ["a"]), Map[int])
    assert_type(pool.map(add, range(3)), Map[int])
    assert_type(pool.map(add, [1], (2, 3)), Map[int])
    assert_type(pool.map(add, numbers), Map[int])
    assert_type(pool.map(repeat, texts, numbers), Map[list[str]])
    assert_type(pool.map(repeat, texts, [1, 2]), Map[list[str]])
    assert_type(pool.map(join, ["a"], {1}, iter([b""])), Map[str])
    assert_type(pool.map(total, [1.0], [2], [3], [4], [5]), Map[float])
    many: Map[float] = pool.map(total, *columns)
    print(many)
    assert_type(
        pool.map(Path.exists, [Path()], buffersize=8, chunksize=None), Map[bool]
    )
    assert_type(pool.map(int, ["1"]), Map[int])
    assert_type(pool.map(max, [1], [2]), Map[int])
    assert_type(pool.map(lambda n: n / 2, [1]), Map[float])
    assert_type(pool.map(len, pool.map(str, numbers)), Map[int])


async def coroutines(pool: Pool) -> None:
    assert_type(pool.map(fetch, ["a"]), Map[bytes])
    assert_type(pool.starmap(fetch, [("a",)]), Map[bytes])
    assert_type(await pool.map(fetch, ["a"]), list[bytes])


async def starmap_accepted(pool: Pool, rows: AsyncIterator[tuple[str, int]]) -> None:
    assert_type(pool.starmap(repeat, [("a", 1)]), Map[list[str]])
    assert_type(pool.starmap(repeat, zip(["a"], [1], strict=True)), Map[list[str]])
    assert_type(pool.starmap(repeat, {"a": 1}.items(), buffersize=4), Map[list[str]])
    assert_type(pool.starmap(repeat, rows), Map[list[str]])
    assert_type(pool.starmap(add, [(1,)]), Map[int])
    assert_type(pool.starmap(total, [(1.0, 2.0, 3.0, 4.0)]), Map[float])


async def results(pool: Pool) -> None:
    found = pool.map(str, [1])
    assert_type(await found, list[str])
    assert_type(await found.unordered(), list[str])
    async for text in found:
        assert_type(text, str)
    async for text in found.unordered():
        assert_type(text, str)
    async with contextlib.aclosing(found) as closing:
        assert_type(closing, Map[str])
    assert_type(await anext(found), str)
    assert_type([text async for text in found], list[str])
    assert_type(len(found), int)
    iterator: AsyncIterator[str] = found
    print(iterator)


async def outcomes(pool: Pool) -> None:
    found = pool.map(len, ["a"]).outcomes()
    assert_type(found, Map[Outcome[int]])
    assert_type(found.unordered(), Map[Outcome[int]])
    assert_type(await found, list[Outcome[int]])
    async for outcome in found:
        assert_type(outcome.index, int)
        assert_type(outcome.item, Any)
        assert_type(outcome.ok, bool)
        assert_type(outcome.error, BaseException | None)
        assert_type(outcome.result(), int)


async def rejected(
    pool: Pool, numbers: AsyncIterator[int], texts: AsyncIterator[str]
) -> None:
    pool.map(len)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    pool.map(len, 3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.map(len, [3])  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.map(add, "a")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.map(add, texts)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.map(repeat, texts)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.map(repeat, numbers, texts)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.map(len, texts, texts)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.map(join, texts, numbers, numbers)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.map(join, texts, numbers)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.map(add, numbers, size=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    pool.map(add, numbers, buffersize=0.5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.map(add, numbers, chunksize="1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def starmap_rejected(pool: Pool, rows: AsyncIterator[tuple[int, str]]) -> None:
    pool.starmap(repeat, [("a", "b")])  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.starmap(repeat, [("a",)])  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.starmap(repeat, rows)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.starmap(len, ["a"])  # type: ignore[arg-type, list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.starmap(repeat, [("a", 1)], [("b", 2)])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def results_rejected(pool: Pool, outcome: Outcome[int]) -> None:
    found = pool.map(str, [1])
    numbers: list[int] = await found  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    for text in found:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        print(text, numbers)
    found[0]  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
    outcome.error = None  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    result: str = outcome.result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(result)
