"""A Django application in a cluster, which is reloaded and closed under its clients."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncpool.cluster import asgi
from tests.helpers.clusters import all_ready, cluster_of
from tests.helpers.http import Browser
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience

pytestmark = BOTH_LOOPS

TARGET = asgi("tests.helpers.django_app:app")


async def test_django_serves_each_kind_of_view_and_outlives_reloads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_of(TARGET, workers=1, drain_timeout=PATIENCE)
    async with patience(3), cluster, Browser(cluster) as browser:
        first = await browser.get()
        assert (first.status, first.size) == (200, 42)
        for path, size in (("/later", 0), ("/stream", 1)):
            response = await browser.get(path)
            assert (response.pid, response.size) == (first.pid, size)
        browser.begin_upload(10)
        reloading = asyncio.create_task(cluster.reload())
        browser.writer.write(b"0123456789")
        assert (await browser.response()).size == 10
        assert (await reloading).replaced == 1
        await all_ready(cluster)
        # On the same connection, which the next worker has got.
        last = await browser.get()
        assert last.size == 42
        assert last.pid != first.pid
        summary = await cluster.close()
    assert (summary.failed, summary.killed) == (0, 0)
    assert [it for it in caplog.records if it.levelno >= logging.WARNING] == []
