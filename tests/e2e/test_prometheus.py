"""A scrape over HTTP has what happened in a real pool, whatever state the pool is in."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from asyncpool import Pool
from asyncpool.errors import JobTimeoutError, WorkerCrashedError
from asyncpool.prometheus import register
from tests.helpers import jobs
from tests.helpers.patience import PATIENCE, look_again, patience
from tests.helpers.pools import idle
from tests.helpers.programs import find_program
from tests.helpers.scraping import Figures, Page, exported
from tests.helpers.scripts import ROOT
from tests.helpers.serving import Server, write_app

pytestmark = pytest.mark.asyncio

HERE = "tests.helpers.jobs"


async def scrape(page: Page) -> Figures:
    """Scrape in a thread, as the event loop goes on."""
    return await asyncio.to_thread(page.scrape)


async def test_a_scrape_has_what_happened() -> None:
    registry = CollectorRegistry()
    async with patience(), Pool(2, name="images") as pool:
        with exported(registry) as page:
            register(pool, registry)
            await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(20)))
            with pytest.raises(ZeroDivisionError):
                await pool.submit(jobs.divide, 1, 0)
            with pytest.raises(WorkerCrashedError):
                await pool.submit(os._exit, 3)
            with pytest.raises(JobTimeoutError):
                await pool.options(timeout=0.05).submit(jobs.stay, 60.0)
            await pool.map(jobs.pid_for, range(100), chunksize=10)
            await idle(pool)
            found = await scrape(page)
    square = {"pool": "images", "function": f"{HERE}.square"}
    assert found.get("jobs_total", outcome="ok", via="submit", **square) == 20
    assert found.get("jobs_total", outcome="raised", via="submit", **square) == 0
    mapped = f"{HERE}.pid_for"
    # The first items of a map may travel alone, as calls do, if a worker is idle then.
    alone = sum(found.all("jobs_total", function=mapped, via="submit", outcome="ok"))
    assert found.get("map_items_total", function=mapped) == 100 - alone
    divide, stay = f"{HERE}.divide", f"{HERE}.stay"
    assert found.get("jobs_total", function=divide, outcome="raised") == 1
    assert found.get("jobs_total", function="posix._exit", outcome="crashed") == 1
    assert found.get("jobs_total", function=stay, outcome="timeout") == 1
    assert found.get("job_timeouts_total") == 1
    assert found.get("job_run_seconds_count", function=divide) == 1
    assert found.get("job_run_seconds_bucket", function=divide, le="+Inf") == 1
    assert found.get("job_wait_seconds_count", via="submit", **square) == 20
    assert found.get("worker_crashes_total", kind="crash") == 1
    assert found.get("worker_starts_total") == 3
    assert found.get("worker_start_seconds_count") == 3
    assert found.get("workers", state="idle") == found.get("workers_wanted") == 2
    assert found.get("pool_state", state="running") == 1
    assert found.get("worker_memory_bytes", slot="0") > 1 << 20


async def test_an_event_loop_that_is_blocked_holds_up_no_scrape() -> None:
    registry = CollectorRegistry()
    async with patience(), Pool(1) as pool:
        with exported(registry) as page:
            register(pool, registry)
            await pool.submit(jobs.square, 2)
            found = page.scrape()  # which blocks this loop until it is answered
    assert found.get("jobs_total", outcome="ok") == 1


async def test_scrapes_beside_a_pool_that_loses_its_workers() -> None:
    """Each figure that only grows does, while workers are killed and jobs flow."""
    registry = CollectorRegistry()
    over = asyncio.Event()
    growing = (
        "worker_cpu_seconds_total",
        "jobs_submitted_total",
        "worker_starts_total",
    )
    seen: list[list[float]] = []

    async def watch() -> None:
        while not over.is_set():
            found = await scrape(page)
            seen.append([found.get(name) for name in growing])

    async with patience(), Pool(2) as pool:
        with exported(registry) as page:
            register(pool, registry)
            watching = asyncio.create_task(watch())
            view = pool.options(max_attempts=10)
            for _ in range(5):
                work = [view.submit(sum, range(20_000)) for _ in range(200)]
                for slot in pool.stats().slots:
                    if slot.pid is not None:
                        os.kill(slot.pid, signal.SIGKILL)
                await asyncio.gather(*work)
                await idle(pool)
            over.set()
            await watching
            found = await scrape(page)
    for column in zip(*seen, strict=True):
        assert list(column) == sorted(column)
    assert found.get("jobs_total", outcome="ok") == 1000
    assert found.get("job_takeovers_total") > 0
    assert found.get("worker_crashes_total", kind="crash") >= 5


# A real Prometheus, which evaluates the alerts and answers the dashboard.

MONITORING = ROOT / "docs" / "monitoring"

CONFIG = """
global:
  scrape_interval: 200ms
  evaluation_interval: 200ms
rule_files: [{rules}]
scrape_configs:
  - job_name: shop
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Prometheus:
    """A server that scrapes one page."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, what: str, **parameters: str) -> Any:
        """Return the data of an answer; it blocks.

        Raises:
            OSError: If there is no answer, or an error.
        """
        url = f"{self._url}{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            return json.load(response)["data"]

    def value(self, expression: str) -> float | None:
        """Return the only value of *expression*, or ``None`` if it has none yet."""
        try:
            answer = self.ask("query", query=expression)
        except urllib.error.HTTPError as error:  # it may not be ready yet
            error.close()
        except OSError:  # or not listen yet
            pass
        else:
            for found in answer["result"]:
                return float(found["value"][1])
        return None

    async def until(self, expression: str, value: float) -> None:
        """Wait until *expression* has this value."""
        while await asyncio.to_thread(self.value, expression) != value:
            await look_again()


@contextmanager
def prometheus(folder: Path, *, scraped: int) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes a port of this machine, with the alerts of the guide."""
    program = find_program("prometheus")
    (folder / "config.yml").write_text(
        # As JSON, which YAML is a superset of: the path of a checkout may have a comma.
        CONFIG.format(rules=json.dumps(f"{MONITORING}/alerts.yml"), port=scraped)
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder}/config.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Prometheus(port)
    except TimeoutError:
        raise AssertionError(log.read_text()) from None
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.asyncio
async def test_a_prometheus_has_what_happened_and_raises_the_alert(
    tmp_path: Path,
) -> None:
    registry = CollectorRegistry()
    crashes = 'sum(asyncpool_worker_crashes_total{pool="images"})'
    firing = (
        'ALERTS{alertname="AsyncpoolWorkersCrash",alertstate="firing",pool="images"}'
    )
    async with Pool(2, name="images") as pool:
        with (
            exported(registry) as page,
            prometheus(tmp_path, scraped=page.port) as server,
        ):
            async with patience(3):
                register(pool, registry)
                await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(20)))
                await server.until("sum(asyncpool_jobs_total)", 20)
                await server.until(crashes, 0)
                assert await asyncio.to_thread(server.value, firing) is None
                # A rate needs two scrapes of a series, so the first crash is scraped alone.
                for count in range(1, 5):
                    with pytest.raises(WorkerCrashedError):
                        await pool.submit(os._exit, 3)
                    await server.until(crashes, count)
                await idle(pool)
                await server.until(firing, 1)
                # Each panel but the one that needs a map.
                mapless = ["Items of maps"]
                while await asyncio.to_thread(empty_panels, server, "Pools") != mapless:
                    await look_again()
                groups = (await asyncio.to_thread(server.ask, "rules"))["groups"]
    health = [rule["health"] for group in groups for rule in group["rules"]]
    assert health == ["ok"] * 18


@pytest.mark.asyncio
async def test_a_prometheus_has_what_a_server_did(tmp_path: Path) -> None:
    write_app(tmp_path)
    arguments = ("--bind", "127.0.0.1:0", "--workers", "2", "--metrics", "127.0.0.1:0")
    with Server(tmp_path, "app:app", *arguments) as served:
        await asyncio.to_thread(served.whole)
        page = re.search(r"metrics: http://127\.0\.0\.1:(\d+)/metrics", served.log)
        assert page is not None
        (tmp_path / "prometheus").mkdir()
        with prometheus(tmp_path / "prometheus", scraped=int(page[1])) as server:
            async with patience(3):
                answers = 'sum(asyncpool_cluster_requests_total{status="2xx"})'
                crashes = "sum(asyncpool_cluster_worker_crashes_total)"
                await server.until(answers, 0)
                for count in range(1, 6):
                    await asyncio.to_thread(served.get)
                    await server.until(answers, count)
                [pid, _] = (slot["pid"] for slot in (await status_of(served))["slots"])
                os.kill(pid, signal.SIGKILL)
                await server.until(crashes, 1)
                await server.until(answers, 5)
                while await asyncio.to_thread(empty_panels, server, "Servers"):
                    await look_again()
                groups = (await asyncio.to_thread(server.ask, "rules"))["groups"]
        assert served.end(signal.SIGTERM) == 0
    health = {rule["health"] for group in groups for rule in group["rules"]}
    assert health == {"ok"}


async def status_of(served: Server) -> Any:
    return await asyncio.to_thread(served.whole)


def panels_of(title: str) -> list[Any]:
    """Return the panels of a row of the dashboard."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    row, found = "", []
    for panel in sorted(dashboard["panels"], key=lambda it: it["gridPos"]["y"]):
        if panel["type"] == "row":
            row = panel["title"]
        elif row == title:
            found.append(panel)
    return found


def empty_panels(server: Prometheus, row: str) -> list[str]:
    """Return the panels that show nothing yet; a wrong expression is an error."""
    empty = []
    for panel in panels_of(row):
        for target in panel["targets"]:
            expression = (
                target["expr"]
                .replace("$__rate_interval", "1m")
                .replace("$pool", ".*")
                .replace("$cluster", ".*")
                .replace("$instance", ".*")
            )
            if not server.ask("query", query=expression)["result"]:
                empty.append(panel["title"])
    return empty
