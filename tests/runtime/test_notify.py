"""What a service manager is told, and that nobody waits for it."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from asyncpool._runtime.cluster.notify import Notifier, watchdog_interval


class Manager:
    """Stands for systemd."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(address.replace("@", "\0", 1))
        self.sock.setblocking(False)
        self.environment = {"NOTIFY_SOCKET": address}

    def heard(self) -> list[str]:
        return self.sock.recv(4096).decode().split("\n")


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest) -> Iterator[Manager]:
    if request.param == "abstract" and not Path("/proc/self/net/unix").exists():
        pytest.skip("only Linux has abstract sockets")
    with tempfile.TemporaryDirectory() as folder:
        found = Manager(
            f"@asyncpool-test-{os.getpid()}"
            if request.param == "abstract"
            else f"{folder}/notify"
        )
        with found.sock:
            yield found


def test_what_is_said(manager: Manager) -> None:
    with closing(Notifier(manager.environment)) as notifier:
        assert notifier.listens
        notifier.ready("2 of 2\nworkers")
        assert manager.heard() == ["READY=1", "STATUS=2 of 2 workers"]
        notifier.status("fine")
        assert manager.heard() == ["STATUS=fine"]
        notifier.alive()
        assert manager.heard() == ["WATCHDOG=1"]
        notifier.stopping()
        assert manager.heard() == ["STOPPING=1", "STATUS=draining"]


def test_a_reload_has_its_time(manager: Manager) -> None:
    with closing(Notifier(manager.environment)) as notifier:
        before = time.monotonic_ns() // 1000
        notifier.reloading()
        after = time.monotonic_ns() // 1000
    first, stamp, last = manager.heard()
    assert (first, last) == ("RELOADING=1", "STATUS=reloading")
    name, _, microseconds = stamp.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(microseconds) <= after


@pytest.mark.parametrize(
    "environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}]
)
def test_nobody_listens(environment: dict[str, str]) -> None:
    with closing(Notifier(environment)) as notifier:
        assert not notifier.listens
        notifier.ready("fine")


def test_nobody_is_there(tmp_path: Path) -> None:
    with closing(Notifier({"NOTIFY_SOCKET": f"{tmp_path}/none"})) as notifier:
        assert notifier.listens
        notifier.ready("fine")  # must not raise


def test_nobody_waits_for_a_manager_that_does_not_read(manager: Manager) -> None:
    with closing(Notifier(manager.environment)) as notifier:
        for _ in range(10_000):
            notifier.alive()
    notifier.alive()  # nor after the end
    notifier.close()
    assert manager.heard() == ["WATCHDOG=1"]


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid() + 1)}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog(environment: dict[str, str], seconds: float | None) -> None:
    assert watchdog_interval(environment) == seconds
