"""Fixtures of the folders whose tests run in an event loop."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
from collections.abc import AsyncIterator, Iterator
from multiprocessing import resource_tracker
from typing import Any

import pytest
import pytest_asyncio

__all__ = ["no_stray_tasks", "quiet_loop", "resource_tracked"]


@pytest.fixture(scope="module")
def resource_tracked() -> Iterator[None]:
    """Have what ``multiprocessing`` makes with the first name or value, and keeps."""
    resource_tracker.ensure_running()
    multiprocessing.RawValue("i")
    yield
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@pytest_asyncio.fixture(autouse=True)
async def quiet_loop() -> AsyncIterator[None]:
    """Fail the test whose loop had something to report."""
    reports: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    yield
    # An exception that nobody has retrieved is reported by the collector.
    gc.collect()
    assert not reports, f"the loop reported: {reports}"


@pytest_asyncio.fixture(autouse=True)
async def no_stray_tasks() -> AsyncIterator[None]:
    """Fail the test that leaves an asyncio task behind."""
    yield
    stray = asyncio.all_tasks() - {asyncio.current_task()}
    assert not stray, f"leaked tasks: {stray}"
