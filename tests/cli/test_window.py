"""How many items of ``asyncpool map`` are under way."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from asyncpool._cli.inputs import Item
from asyncpool._cli.window import Window
from tests.helpers.loops import BOTH_LOOPS

pytestmark = BOTH_LOOPS


@pytest.mark.parametrize(("places", "least"), [(2, 1000), (5000, 5000)])
async def test_no_place_stays_empty_for_want_of_items(places: int, least: int) -> None:
    jobs: list[asyncio.Future[str]] = []

    def submit(_: Item) -> asyncio.Future[str]:
        jobs.append(asyncio.get_running_loop().create_future())
        return jobs[-1]

    window = Window(submit, lambda _, __: None, places)
    items = [Item(n, b"", 0) for n in range(20_000)]
    running = asyncio.create_task(window.run(items))
    before = -1
    while len(jobs) > before:  # until it waits
        before = len(jobs)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert least <= len(jobs) <= max(2048, 2 * places)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
