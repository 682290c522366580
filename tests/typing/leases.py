"""``LeaseKeeper``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import assert_type

from asyncpool import LeaseKeeper, Pool
from asyncpool.events import LeaseStats
from tests.typing.jobs import add


@dataclass(frozen=True)
class Message:
    receipt: str


async def extend(message: Message) -> None:
    print(message.receipt)


async def extend_text(receipt: str) -> bool:
    return bool(receipt)


def extend_at_once(receipt: str) -> None:
    print(receipt)


async def extend_list(receipts: list[str]) -> None:
    print(receipts)


def on_lost(message: Message) -> None:
    print(message)


async def accepted(pool: Pool, message: Message, task: asyncio.Task[None]) -> None:
    assert_type(
        LeaseKeeper(extend_text, 2, interval=60, timeout=None), LeaseKeeper[str]
    )
    keeper = LeaseKeeper(extend, max_rate=2.5, max_retries=0, timeout=1.5)
    assert_type(keeper, LeaseKeeper[Message])
    async with keeper as same:
        assert_type(same, LeaseKeeper[Message])
    assert_type(keeper.add(message), None)
    keeper.add(message, on_lost=on_lost)
    keeper.keep(message, pool.submit(add, 1))
    keeper.keep(message, task)
    assert_type(keeper.remove(message), bool)
    assert_type(keeper.stats(), LeaseStats)
    assert_type(keeper.stats().saturated, bool)
    pool.options(lease=(keeper, message))


async def rejected(
    pool: Pool, keeper: LeaseKeeper[Message], message: Message, stats: LeaseStats
) -> None:
    LeaseKeeper()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    LeaseKeeper(extend_at_once)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    LeaseKeeper(extend_list)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    LeaseKeeper(extend, max_rate="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    LeaseKeeper(extend, 1.0, 120.0, 3, 15.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with keeper:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    keeper.add("receipt")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    keeper.add(message, on_lost=extend_at_once)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    keeper.keep(message)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    keeper.keep(message, extend(message))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    keeper.remove("receipt")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stats.leases = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    pool.options(lease=keeper)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
