"""The files of ``examples/deploy`` do what they say: nginx, systemd, Docker."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.patience import PATIENCE
from tests.helpers.programs import find_program
from tests.helpers.serving import Server, until

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"

# What Debian's nginx.conf has around the files of conf.d, for one who is not root.
_NGINX = """
daemon off; master_process off; pid pid; error_log stderr;
events {{ }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    {site}
}}
"""


def command_of(line: str) -> list[str]:
    """Return the arguments of ``asyncpool serve`` in a line."""
    _, serve, *arguments = shlex.split(line)
    assert serve == "serve"
    return arguments


@contextmanager
def started(folder: Path) -> Iterator[tuple[Server, Path]]:
    """Start the application as systemd does with its unit; the socket is there before it."""
    unit = ConfigParser(delimiters="=", strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "app.service")
    arguments = command_of(unit["Service"]["ExecStart"])
    # The paths of sockets must be short.
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as sock:
        path = Path(place, "app.sock")
        sock.bind(str(path))
        sock.listen()
        script = (
            f'exec 3<&{sock.fileno()}; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'
        )
        before = ["bash", "-c", script, "-"]
        workers = ("--workers", "2")
        with Server(
            folder, *arguments, *workers, before=before, fds=[sock.fileno()]
        ) as server:
            yield server.up(), path
            assert server.end(signal.SIGTERM) == 0


@contextmanager
def proxied(folder: Path, path: Path) -> Iterator[int]:
    """Start nginx in front of the application; yield its port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    site = (DEPLOY / "nginx.conf").read_text()
    site = site.replace("/run/app.sock", str(path)).replace(
        "listen 80;", f"listen 127.0.0.1:{port};"
    )
    (folder / "nginx.conf").write_text(_NGINX.format(site=site))
    log = folder / "nginx.log"
    with log.open("wb") as end:
        nginx = subprocess.Popen(
            [find_program("nginx"), "-p", str(folder), "-c", "nginx.conf"],
            stdout=end,
            stderr=end,
        )

    def listens() -> bool:
        assert nginx.poll() is None, log.read_text()
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, "nginx listens")
        yield port
    finally:
        nginx.send_signal(signal.SIGQUIT)
        nginx.wait(PATIENCE)


def ask(
    port: int, path: str = "/", body: bytes = b"", said: int | None = None
) -> tuple[int, str]:
    """Send a request, which may lie about the size of its body; return status and text."""
    client = http.client.HTTPConnection("127.0.0.1", port, PATIENCE)
    length = str(len(body) if said is None else said)
    client.request("POST", path, body, {"Content-Length": length})
    answer = client.getresponse()
    found = answer.status, answer.read().decode()
    client.close()
    return found


def test_nginx_tells_who_asks_and_refuses_large_bodies(tmp_path: Path) -> None:
    with started(app_in(tmp_path)) as (_, path), proxied(tmp_path, path) as port:
        assert ask(port) == (200, "127.0.0.1 by http, 0 bytes\n")
        assert ask(port, body=b"x" * 1_000_000)[1].endswith(" 1000000 bytes\n")
        assert ask(port, said=11_000_000)[0] == 413


def test_behind_nginx_a_reload_fails_no_request(tmp_path: Path) -> None:
    with started(app_in(tmp_path)) as (server, path), proxied(tmp_path, path) as port:
        reloaded = threading.Event()
        found: list[int] = []

        def go_on() -> None:
            while not reloaded.is_set():
                found.append(ask(port, "/slow" if len(found) == 1 else "/")[0])

        clients = [threading.Thread(target=go_on) for _ in range(4)]
        for client in clients:
            client.start()
        before = {slot["pid"] for slot in server.whole()["slots"]}
        server.signal(signal.SIGHUP)
        until(
            lambda: before.isdisjoint(slot["pid"] for slot in server.whole()["slots"]),
            "both workers are new",
        )
        reloaded.set()
        for client in clients:
            client.join()
        assert len(found) > 4
        assert set(found) == {200}


def test_systemd_knows_the_words_of_the_units() -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd here")
    done = subprocess.run(
        [analyze, "verify", DEPLOY / "app.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    # An older one does not know this type, and the command is not here.
    known = re.compile("notify-reload|is not executable|^$")
    assert [line for line in done.stderr.splitlines() if not known.search(line)] == []


def test_the_command_of_the_container_serves_and_ends(tmp_path: Path) -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    (command,) = (line for line in lines if line.startswith("CMD "))
    arguments = command_of(shlex.join(json.loads(command.removeprefix("CMD "))))
    assert arguments[arguments.index("--bind") + 1] == ":8000"
    arguments[arguments.index("--bind") + 1] = "127.0.0.1:0"
    with Server(app_in(tmp_path), *arguments) as server:
        assert server.get() == "127.0.0.1 by http, 0 bytes\n"
        assert server.end(signal.SIGTERM) == 0


def app_in(folder: Path) -> Path:
    (folder / "app.py").write_bytes((DEPLOY / "app.py").read_bytes())
    return folder
