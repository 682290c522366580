"""``asyncpool dashboard``, run as a user runs it."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.command import (
    finish_command,
    run_command,
    run_without,
    start_command,
)
from tests.helpers.patience import PATIENCE

PORT = 8750
ADDRESS = re.compile(r"dashboard: http://127\.0\.0\.1:(\d+)(/[\w-]{22}/)\n")


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@contextlib.contextmanager
def started(
    folder: Path, *args: str
) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """Start a dashboard; yield its process, its port and the path of its page."""
    process = start_command(folder, "dashboard", *args)
    try:
        assert process.stdout is not None
        found = ADDRESS.fullmatch(process.stdout.readline())
        assert found is not None
        yield process, int(found[1]), found[2]
    finally:
        process.kill()
        process.communicate()


def test_a_second_one_takes_another_port_and_says_so(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # somebody has it anyway
            stack.enter_context(socket.create_server(("127.0.0.1", PORT)))
        process, port, _ = stack.enter_context(started(tmp_path))
        process.send_signal(signal.SIGINT)
        done = finish_command(process)
        assert done.err == (
            f"asyncpool: port {PORT} is taken, perhaps by another dashboard: this one has "
            f"port {port}\n"
        )


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_it_prints_its_address_and_ends_by_a_signal_also_while_pages_are_open(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with (
        started(tmp_path, "--bind", "127.0.0.1:0") as (process, port, path),
        socket.create_connection(("127.0.0.1", port), PATIENCE) as page,
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path)
            assert b"<title>asyncpool" in connection.getresponse().read()
        page.sendall(f"GET {path}events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert page.recv(4096).startswith(b"HTTP/1.1 200 OK")
        process.send_signal(number)
        done = finish_command(process)
        assert (done.code, done.err) == (code, "")


@pytest.mark.parametrize(
    "bind", ["8750", "127.0.0.1", ":8750", "127.0.0.1:x", "127.0.0.1:99999", "a/b:1"]
)
def test_an_address_that_makes_no_sense_is_refused(tmp_path: Path, bind: str) -> None:
    done = run_command(tmp_path, "dashboard", "--bind", bind)
    assert (done.code, done.out, done.err) == (
        2,
        "",
        (
            "asyncpool: --bind takes a host and a port, such as 127.0.0.1:8750, "
            f"not {bind}\n"
        ),
    )


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run_command(tmp_path, "dashboard", "--bind", bind)
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith(f"asyncpool: cannot listen at {bind}: ")
    assert done.err.endswith("; name another place by --bind HOST:PORT\n")


def test_who_lets_others_connect_is_warned(tmp_path: Path) -> None:
    process = start_command(tmp_path, "dashboard", "--bind", "0.0.0.0:0")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert finish_command(process).err == (
        "asyncpool: 0.0.0.0 is not this machine alone, and the page is not encrypted: who "
        "sees the traffic sees the token\n"
    )


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_it_says_which_extra_it_needs(tmp_path: Path, package: str) -> None:
    done = run_without(tmp_path, package, "dashboard")
    assert (done.code, done.err) == (
        2,
        (
            f"asyncpool: the dashboard needs {package}, which is not installed: "
            "pip install 'asyncpool-supervised[dashboard]'\n"
        ),
    )
