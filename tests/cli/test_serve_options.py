"""``asyncpool serve``: what options and the place where it starts change for clients."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncpool import connect
from tests.helpers.command import command_environment
from tests.helpers.gate import short_folder
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.scraping import Figures
from tests.helpers.serving import Server, until, write_app

ONE = ("--bind", "127.0.0.1:0", "--workers", "1")

# Tells what a request is, as JSON, and what the environment was at the import.
TELLER = """
    import json, os

    IMPORTED = os.environ.get("SHOP")

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        told = {
            "client": scope["client"] and scope["client"][0],
            "scheme": scope["scheme"],
            "root": scope["root_path"],
            "imported": IMPORTED,
            "masters": sorted(name for name in os.environ if name.startswith("LISTEN_")),
        }
        text = json.dumps(told).encode()
        headers = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    def make():
        return app
"""

WSGI = """
    import flask, os

    app = flask.Flask("shop")

    @app.post("/<name>")
    def buy(name):
        return f"{name} {len(flask.request.data)} {flask.request.remote_addr}"
"""

GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_app(tmp_path, TELLER, "teller")
    write_app(tmp_path, WSGI, "shop")
    with tempfile.TemporaryDirectory() as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield tmp_path


def exchange(server: Server, *parts: bytes) -> bytes:
    """Send parts, one when the last one may have arrived, and return all that comes."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client:
        answer = b""
        try:
            for part in parts:
                client.sendall(part)
            while more := client.recv(1 << 16):
                answer += more
        except ConnectionError:  # it has seen enough
            pass
        return answer


def told(server: Server, *headers: bytes) -> dict[str, Any]:
    lines = b"".join(header + b"\r\n" for header in headers)
    answer = exchange(server, GET + lines + b"connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


FORWARDED = (b"x-forwarded-for: 6.6.6.6", b"x-forwarded-proto: https")


def test_proxies_are_believed_if_they_are_named(folder: Path) -> None:
    with Server(folder, "teller:app", *ONE) as server:
        found = told(server, *FORWARDED)
        assert (found["client"], found["scheme"]) == ("127.0.0.1", "http")
        assert server.end(signal.SIGTERM) == 0
    trusting = ("--forwarded-allow-ips", "127.0.0.1", "--root-path", "/shop")
    with Server(folder, "teller:make", "--factory", *ONE, *trusting) as server:
        found = told(server, *FORWARDED)
        assert (found["client"], found["scheme"]) == ("6.6.6.6", "https")
        assert found["root"] == "/shop"
        assert server.end(signal.SIGTERM) == 0


def test_the_environment_is_there_before_the_import(folder: Path) -> None:
    (folder / "env").write_text("SHOP=open\n")
    env = {"LISTEN_FDNAMES": "web"}  # of systemd, for the master
    with Server(folder, "teller:app", *ONE, "--env-file", "env", env=env) as server:
        found = told(server)
        assert (found["imported"], found["masters"]) == ("open", [])
        (folder / "env").write_text("SHOP=closed\n")
        assert server.command("reload").code == 0
        assert told(server)["imported"] == "closed", "a reload reads it anew"
        assert server.end(signal.SIGTERM) == 0


def test_a_wsgi_application_is_served_in_threads(folder: Path) -> None:
    with Server(folder, "shop:app", *ONE, "--interface", "wsgi") as server:
        body = b"x" * 100_000
        head = b"POST /bread HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        head += b"content-length: 100000\r\n\r\n"
        answer = exchange(server, head, body)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\nbread 100000 127.0.0.1")
        head = b"POST /cake HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        head += b"transfer-encoding: chunked\r\n\r\n"
        answer = exchange(server, head, b"5\r\nsugar\r\n", b"2\r\n+1\r\n0\r\n\r\n")
        assert answer.endswith(b"\r\n\r\ncake 7 127.0.0.1"), "it reads chunks too"
        assert server.end(signal.SIGTERM) == 0


def test_what_is_no_application_replaces_none(folder: Path) -> None:
    with Server(folder, "teller:app", *ONE) as server:
        server.whole()
        for code, why in [
            (
                WSGI,
                (
                    "TypeError: teller:app is a WSGI application, not ASGI: serve it with "
                    "--interface wsgi"
                ),
            ),
            (
                "app = {}",
                "TypeError: teller:app is no application: dict cannot be called",
            ),
        ]:
            write_app(folder, code, "teller")
            done = server.command("reload")
            assert done.code == 1
            assert why in done.err
            assert told(server)["client"] == "127.0.0.1"
        assert server.end(signal.SIGTERM) == 0
    with Server(folder, "shop:app", *ONE) as server:
        assert server.end() == 3
        assert (
            "shop:app cannot be served: TypeError: shop:app is a WSGI appl"
            in server.log
        )


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_a_head_has_bounds(http: str, folder: Path) -> None:
    words = f"--header-size 4K --option http={http} --header-timeout 0.5"
    large = b"x: " + b"y" * 3000 + b"\r\n"
    with Server(folder, "teller:app", *ONE, *words.split()) as server:
        assert told(server, large.strip())["client"] == "127.0.0.1"
        for method in (b"GET", b"HEAD", b"POST"):
            head = GET.replace(b"GET", method)
            many = exchange(server, head + 2 * large + b"\r\n")
            assert many.startswith(TOO_LARGE), method
        # A body that is on its way behind it changes nothing.
        post = GET.replace(b"GET", b"POST") + b"content-length: 9\r\n" + 2 * large
        assert exchange(server, post + b"\r\n123456789").startswith(TOO_LARGE)
        # More than a loop reads at once, without an end.
        endless = exchange(server, GET + b"x: ", *[b"y" * 100_000] * 20)
        assert endless == b"" or endless.startswith(TOO_LARGE)
        # Nor are trailers larger, one or many of them.
        chunked = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        for trailers in ([b"x: ", *[b"y" * 100_000] * 20], [100 * large] * 20):
            # Its answer may have begun; what counts is that the connection ends.
            exchange(server, chunked + b"1\r\nz\r\n0\r\n", *trailers)
        fine = chunked.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        fine += b"1\r\nz\r\n0\r\nx: y\r\n\r\n"
        assert exchange(server, fine).startswith(b"HTTP/1.1 200 ")
        # A client that takes its time, and one that says nothing.
        assert exchange(server, GET).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert exchange(server) == b""
        # A body may be larger, and slower.
        post = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 20000\r\n"
        assert exchange(server, post + b"\r\n", b"z" * 20_000).startswith(
            b"HTTP/1.1 200 "
        )
        assert told(server)["scheme"] == "http"
        assert server.end(signal.SIGTERM) == 0


def test_a_unix_socket_is_its_users_own(folder: Path) -> None:
    for bind, mode in (("unix:x.sock", 0o600), ("unix:y.sock?mode=660", 0o660)):
        with Server(folder, "teller:app", "--bind", bind, "--workers", "1") as server:
            server.up()
            path = folder / bind.removeprefix("unix:").partition("?")[0]
            assert stat.S_IMODE(os.stat(path).st_mode) == mode
            assert server.end(signal.SIGTERM) == 0


# Metrics.


def scrape(port: int) -> Figures:
    where = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(where, timeout=PATIENCE) as response:
        return Figures(response.read().decode())


def test_a_scrape_has_what_the_server_does(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Server(folder, "teller:app", *ONE[:-1], "2", "--metrics", str(port)) as server:
        server.whole()
        assert f"metrics: http://127.0.0.1:{port}/metrics" in server.log
        for _ in range(5):
            server.get()

        def answered() -> bool:
            found = scrape(port)
            return found.get("cluster_requests_total", status="2xx") == 5

        until(answered, "all requests are counted")
        found = scrape(port)
        assert found.get("cluster_workers", state="ready", cluster="teller") == 2
        assert found.get("cluster_state", state="running") == 1
        assert found.get("cluster_request_seconds_count", status="2xx") == 5
        assert found.get("cluster_worker_start_seconds_count") == 2
        assert "process_cpu_seconds_total" in found.names
        assert server.command("reload").code == 0
        assert scrape(port).get("cluster_worker_exits_total", cause="roll") == 2
        assert scrape(port).get("cluster_requests_total", status="2xx") == 5
        assert server.end(signal.SIGTERM) == 0


# Where it starts: behind a symbolic link, and without a stderr.

WHERE = """
    import os, pathlib

    RELEASE = pathlib.Path("release").read_text()

    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200})
            body = f"{RELEASE} {pathlib.Path(os.getcwd()).name}".encode()
            await send({"type": "http.response.body", "body": body})
"""
NO_STDERR = ["sh", "-c", 'exec "$@" 2>&-', "sh"]


def test_a_reload_serves_the_release_that_the_link_leads_to_now(tmp_path: Path) -> None:
    link = tmp_path / "current"
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "release").write_text(release)
        write_app(tmp_path / release, WHERE)
    link.symlink_to("one")
    with Server(link, "app:app", *ONE, env={"PWD": str(link)}) as server:
        port = server.port
        assert server.get() == "one one"
        (tmp_path / "log").symlink_to("two")
        (tmp_path / "log").rename(link)
        os.rename(tmp_path / "one" / "log", tmp_path / "two" / "log")
        shutil.rmtree(tmp_path / "one")
        server.signal(signal.SIGHUP)
        server.says("reloaded: 1 worker is new")
        assert server.get() == "two two"
        assert server.port == port
        assert server.end(signal.SIGTERM) == 0


def test_a_server_works_without_stderr(tmp_path: Path) -> None:
    (tmp_path / "release").write_text("one")
    write_app(tmp_path, WHERE)
    with Server(tmp_path, "app:app", *ONE, before=NO_STDERR) as server:
        until(lambda: server.command("status").code == 0, "it serves")
        [address] = server.status()["addresses"]
        port = int(address.rpartition(":")[2])
        client = http.client.HTTPConnection("127.0.0.1", port, PATIENCE)
        client.request("GET", "/")
        assert client.getresponse().read().startswith(b"one ")
        client.close()
        assert server.end(signal.SIGTERM) == 0


def is_heard(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def test_an_agent_works_without_stderr() -> None:
    async def use(address: str) -> int:
        async with patience(), connect(address) as pool:
            return await pool.submit(pow, 2, 5)

    with short_folder() as folder:
        address = f"unix:{folder}/pool.sock"
        command = [sys.executable, "-m", "asyncpool", "agent", "--bind", address]
        env = {**command_environment(), "XDG_RUNTIME_DIR": str(folder)}
        with subprocess.Popen([*NO_STDERR, *command], cwd=folder, env=env) as agent:
            try:
                # The file alone does not do: nobody listens yet when it appears.
                until(partial(is_heard, folder / "pool.sock"), "it shares its pool")
                assert asyncio.run(use(address)) == 32
                agent.terminate()
                assert agent.wait(PATIENCE) == 0
            finally:
                agent.kill()


# What workers log and print.

LOGGING = """
    import logging, os

    async def app(scope, receive, send):
        assert scope["type"] == "http"
        if scope["path"] == "/print":
            for number in range(5000):
                print(number, "x" * 1000)
            os._exit(1)
        if scope["path"] == "/log":
            logging.getLogger("shop").warning("sold\\nout", extra={"order": 5})
        headers = [(b"x-request-id", b"7")] * (scope["path"] == "/named")
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"no", "more_body": True})
        await send({"type": "http.response.body", "body": b"ne"})
"""


def test_nothing_is_lost_of_what_a_worker_prints(folder: Path) -> None:
    write_app(folder, LOGGING)
    with Server(folder, "app:app", *ONE) as server:
        assert exchange(server, b"GET /print HTTP/1.1\r\nhost: x\r\n\r\n") == b""
        server.says("is ready", 2)  # the next one
        found = [line.split(": ")[-1] for line in server.log.splitlines()]
        printed = [line for line in found if line.endswith("xxx")]
        assert printed == [f"{number} {'x' * 1000}" for number in range(5000)]
        assert server.end(signal.SIGTERM) == 0


ASK = b'GET /%b?x="1" HTTP/1.1\r\nhost: x\r\nconnection: close\r\nuser-agent: "me\r\n'


def test_the_access_log_has_fields(folder: Path) -> None:
    write_app(folder, LOGGING)
    options = (*ONE, "--access-log", "--log-format", "json")
    with Server(folder, "app:app", *options) as server:
        exchange(server, ASK % b"named" + b"x-request-id: 6\r\n\r\n")
        exchange(server, ASK % b"log" + b"x-request-id: 6\r\n\r\n")
        server.says('"access"', 2).says('"order"')
        entries = [json.loads(line) for line in server.log.splitlines()]
        assert server.end(signal.SIGTERM) == 0
    first, second = (entry for entry in entries if entry["logger"] == "access")
    assert first.pop("ms") >= 0
    assert (first["pool"], first["slot"], first["generation"]) == ("app", 0, 1)
    wanted: dict[str, object] = {"method": "GET", "path": '/named?x="1"'}
    wanted |= {"protocol": "HTTP/1.1", "client": "127.0.0.1", "request_id": "7"}
    wanted |= {"status": 404, "bytes": 4}
    wanted |= {"agent": '"me', "referer": "-", "level": "INFO", "pid": second["pid"]}
    assert {name: first[name] for name in wanted} == wanted
    assert (second["request_id"], second["path"]) == ("6", '/log?x="1"')
    [record] = [entry for entry in entries if entry["logger"] == "shop"]
    assert (record["message"], record["order"]) == ("sold\n    out", 5)
    assert (record["pid"], record["slot"]) == (second["pid"], 0)


def test_the_access_log_has_a_format(folder: Path) -> None:
    write_app(folder, LOGGING)
    form = "%(method)s %(status)d %(bytes)d %(agent)s"
    with Server(folder, "app:app", *ONE, "--access-log-format", form) as server:
        exchange(server, ASK % b"" + b"\r\n")
        server.says('GET 404 4 \\"me\n')
        assert re.search(r"\d INFO access \[\d+\]: GET 404", server.log)
        assert server.end(signal.SIGTERM) == 0
    with Server(folder, "app:app", *ONE, "--access-log-format", "%(size)d") as server:
        assert server.end() == 2
        assert "access_log: '%(size)d' is no format: KeyError('size')" in server.log


def test_open_requests_are_told_the_oldest_first(folder: Path) -> None:
    write_app(folder)
    with short_folder() as runtime:
        path = f"{runtime}/control"
        with Server(folder, "app:app", *ONE, "--control", path) as server:
            begun = [server.begin("/slow?1"), server.begin("/slow?2")]

            def ask() -> Any:
                with socket.socket(socket.AF_UNIX) as control:
                    control.connect(path)
                    control.sendall(b'{"action": "requests"}\n')
                    with control.makefile() as lines:
                        rows = json.loads(lines.readline())["requests"]
                return [row for row in rows if row["stack"]]

            rows = until(lambda: len(it := ask()) == 2 and it, "both have begun")
            ages = [row["age"] for row in rows]
            assert ages == sorted(ages, reverse=True)
            assert rows[0].items() >= {"worker": 0, "method": "GET"}.items()
            assert rows[0]["path"] == "/slow"
            assert rows[0]["client"].startswith("127.0.0.1:")
            assert "in app" in rows[0]["stack"]
            (folder / "go").touch()
            for connection in begun:
                connection.getresponse().read()
                connection.close()
            until(lambda: not ask(), "none is open")
            assert server.end(signal.SIGTERM) == 0


def test_a_port_that_is_taken_is_all_that_is_told(folder: Path) -> None:
    (again := folder / "again").mkdir()
    write_app(again)
    with short_folder() as runtime:
        env = {"XDG_RUNTIME_DIR": str(runtime)}
        with Server(folder, "teller:app", "--name", "one", *ONE, env=env) as first:
            bind = ("--bind", f"127.0.0.1:{first.port}", "--name", "one")
            with Server(again, "app:app", *bind, env=env) as second:
                assert second.end() == 1
                [line] = second.log.splitlines()
                assert "cannot listen on" in line
            assert first.end(signal.SIGTERM) == 0
