"""``asyncpool serve --metrics``: a real scrape of a real server."""

from __future__ import annotations

import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.helpers.patience import PATIENCE
from tests.helpers.scraping import Figures
from tests.helpers.serving import Server, until, write_app

TWO = ("--bind", "127.0.0.1:0", "--workers", "2")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_app(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def scrape(server: Server) -> Figures:
    found = re.search(r"metrics: (http://127\.0\.0\.1:\d+/metrics)", server.up().log)
    assert found is not None
    with urllib.request.urlopen(found[1], timeout=PATIENCE) as response:
        return Figures(response.read().decode())


def test_a_scrape_has_what_the_server_does(folder: Path) -> None:
    with Server(folder, "app:app", *TWO, "--metrics", "127.0.0.1:0") as server:
        server.whole()
        for _ in range(5):
            server.get()

        def answered() -> bool:
            found = scrape(server)
            return found.get("cluster_requests_total", status="2xx") == 5

        until(answered, "all requests are counted")
        found = scrape(server)
        assert found.get("cluster_workers", state="ready", cluster="app") == 2
        assert found.get("cluster_state", state="running") == 1
        assert found.get("cluster_request_seconds_count", status="2xx") == 5
        assert found.get("cluster_worker_start_seconds_count") == 2
        assert "process_cpu_seconds_total" in found.names
        assert server.command("reload").code == 0
        assert scrape(server).get("cluster_worker_exits_total", cause="roll") == 2
        assert scrape(server).get("cluster_requests_total", status="2xx") == 5
        assert server.end(signal.SIGTERM) == 0


def test_a_plain_port_is_one_of_this_machine(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Server(folder, "app:app", *TWO, "--metrics", str(port)) as server:
        assert f"metrics: http://127.0.0.1:{port}/metrics" in server.up().log
        assert server.end(signal.SIGTERM) == 0
