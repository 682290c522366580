"""Fixtures of the folders whose tests run in an event loop."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from multiprocessing import resource_tracker
from typing import Any

import pytest
import pytest_asyncio


@pytest.fixture(scope="module")
def resource_tracked() -> Iterator[None]:
    """Have what ``multiprocessing`` makes with the first name or value, and keeps."""
    resource_tracker.ensure_running()
    multiprocessing.RawValue("i")
    yield
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@asynccontextmanager
async def quiet() -> AsyncIterator[None]:
    """Check in the end that the loop had nothing to report, and has no task that is left."""
    reports: list[dict[str, Any]] = []
    loop, before = asyncio.get_running_loop(), asyncio.all_tasks()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    yield
    stray = asyncio.all_tasks() - before - {asyncio.current_task()}
    # An exception that nobody has retrieved is reported by the collector.
    gc.collect()
    assert not reports, f"the loop reported: {reports}"
    assert not stray, f"leaked tasks: {stray}"


@pytest_asyncio.fixture(autouse=True)
async def quiet_loop() -> AsyncIterator[None]:
    """Fail the test whose loop had something to report, or which leaves a task behind."""
    async with quiet():
        yield
