"""A server always answers: whoever leaves gives back what he held, and what hangs is given up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import resource
import socket
import struct
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Cluster
from asyncpool.cluster import asgi, wsgi
from asyncpool.events import Retiring
from tests.helpers.clusters import Connection, all_ready, cluster_of, come_true
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import case, next_of
from tests.helpers.tls import client_context, write_certificate

pytestmark = BOTH_LOOPS

KINDS = {
    "raw WSGI": ("raw_wsgi", "/stream"),
    "write()": ("raw_wsgi", "/write"),
    "Flask": ("flask_app", "/stream"),
    "Django": ("django_app", "/stream"),
    "raw ASGI": ("raw_asgi", "/stream"),
    "ASGI that never waits": ("raw_asgi", "/torrent"),
    "Starlette": ("starlette_app", "/stream"),
    "FastAPI in a thread": ("fast", "/stream"),
}
GET = "GET {} HTTP/1.1\r\nhost: localhost\r\n\r\n"
TRAILER = (
    "POST {} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    "1\r\na\r\n0\r\nX-Remote-User: root\r\n\r\n"
)
THREADS, CLIENTS, MOST = 2, 5, 6


class Caller(Connection):
    """A client without manners."""

    def say(self, text: str) -> None:
        self.writer.write(text.encode("latin-1"))

    async def head(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def ask(self, path: str) -> tuple[int, bytes]:
        self.say(GET.format(path))
        return await self.response()

    async def response(self) -> tuple[int, bytes]:
        head = (await self.head()).lower()
        size = int(head.partition("content-length: ")[2].split("\r\n")[0])
        return int(head.split()[1]), await self.reader.readexactly(size)

    def reset(self) -> None:
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def get(cluster: Cluster, path: str) -> tuple[int, bytes]:
    async with Caller(cluster) as caller:
        return await caller.ask(path)


async def told(cluster: Cluster, **wanted: int) -> dict[str, int]:
    """Ask the application what has happened until it is so."""
    while True:
        status, body = await get(cluster, "/told")
        assert status == 200
        found: dict[str, int] = json.loads(body)
        if all(found.get(name.replace("_", " "), 0) >= wanted[name] for name in wanted):
            return found


@contextlib.asynccontextmanager
async def serving(
    name: str, spread: str = "handoff", drain: float = PATIENCE, **options: Any
) -> AsyncGenerator[Cluster]:
    """Serve, a WSGI application with two threads; in the end what hangs is released."""
    make: Any = asgi
    if name in {"raw_wsgi", "flask_app", "django_app"}:
        make, options = wsgi, {"threads": THREADS, **options}
    target = make(f"tests.helpers.leaving:{name}", **options)
    cluster = cluster_of(target, workers=1, spread=spread, drain_timeout=drain)
    async with patience(), cluster:
        await all_ready(cluster)
        yield cluster
        await cluster.close(timeout=0)


def records(caplog: pytest.LogCaptureFixture, name: str) -> list[Any]:
    return [it for it in caplog.records if getattr(it, "message_id", "") == name]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [it.getMessage() for it in caplog.records if it.levelno >= logging.ERROR]


# Clients that leave.

WAYS = ["closes", "resets", "leaves a pipeline", "half-closes before"]


@pytest.mark.parametrize("kind", KINDS)
async def test_who_leaves_a_stream_gives_back_what_it_held(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, path = KINDS[kind]
    async with serving(name) as cluster:
        for number, way in enumerate(WAYS * CLIENTS, 1):
            with case(way):
                async with Caller(cluster) as caller:
                    caller.say(GET.format(path) * (1 + (way == "leaves a pipeline")))
                    assert "200 OK" in await caller.head()
                    await caller.reader.readexactly(1000)
                    if way == "half-closes before":
                        caller.writer.write_eof()
                    elif way == "resets":
                        caller.reset()
                found = await told(cluster, closed=number)
                assert found["begun"] == found["closed"] == number
        if path == "/stream" and name == "raw_wsgi":
            await told(cluster, **{"close()": CLIENTS * len(WAYS)})
        await come_true(lambda: cluster.stats().requests.open == 0)
    assert errors(caplog) == []


async def test_who_leaves_a_torrent_behind_tls_blocks_no_loop(tmp_path: Path) -> None:
    async with serving("raw_asgi", ssl_certfile=write_certificate(tmp_path)) as cluster:
        for _ in range(2 * CLIENTS):
            async with Caller(cluster, tls=client_context()) as caller:
                caller.say(GET.format("/torrent"))
                assert "200 OK" in await caller.head()
                caller.reset()


@pytest.mark.parametrize(
    "name", ["raw_wsgi", "flask_app", "django_app", "raw_asgi", "starlette_app"]
)
async def test_an_upload_that_breaks_off_is_no_whole_one(name: str) -> None:
    async with serving(name) as cluster:
        for number in range(1, CLIENTS + 1):
            async with Caller(cluster) as caller:
                caller.say(
                    "POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n"
                    "expect: 100-continue\r\n\r\n"
                )
                # Who leaves before an application asks for the body has no part in it.
                assert "100 Continue" in await caller.head()
                caller.say("1234")
            assert (await told(cluster, broken_off=number))["broken off"] == number


async def test_who_leaves_the_queue_costs_no_thread() -> None:
    async with serving("raw_wsgi", threads=1) as cluster, Caller(cluster) as first:
        first.say(GET.format("/hang"))
        await come_true(lambda: cluster.stats().requests.open == 1)
        for _ in range(CLIENTS):
            async with Caller(cluster) as caller:
                caller.say(GET.format("/hang"))
                await come_true(lambda: cluster.stats().requests.open == 2)
            await come_true(lambda: cluster.stats().requests.open == 1)


@pytest.mark.parametrize("name", ["raw_wsgi", "raw_asgi", "starlette_app"])
async def test_a_stream_that_was_asked_for_its_head_ends_there(name: str) -> None:
    async with serving(name) as cluster:
        for number in range(1, CLIENTS + 1):
            async with Caller(cluster) as caller:
                caller.say(GET.format("/stream").replace("GET", "HEAD"))
                assert "200 OK" in await caller.head()
                assert (await told(cluster, closed=number))["begun"] == number
                assert (await caller.ask("/told"))[0] == 200


async def test_who_sends_no_more_gets_an_answer_from_a_thread() -> None:
    async with serving("raw_wsgi") as cluster, Caller(cluster) as caller:
        caller.say(GET.format("/hang") + GET.format("/told"))
        await come_true(lambda: cluster.stats().requests.open == 1)
        caller.writer.write_eof()
        await get(cluster, "/release")
        for _ in range(2):
            assert (await caller.response())[0] == 200
        assert await caller.reader.read() == b""


# Requests that take too long.


async def looks(cluster: Cluster, count: int) -> None:
    """Have a worker look at its requests some times."""
    before = cluster.stats().worker_loop_lag.count
    while cluster.stats().worker_loop_lag.count < before + count:
        await get(cluster, "/told")


@pytest.mark.logs("request-timed-out")
async def test_a_request_without_a_response_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving("raw_asgi", request_timeout=0.5) as cluster:
        async with Caller(cluster) as events:
            events.say(GET.format("/events"))
            await events.head()
            for _ in range(2):  # what has begun to answer may take any time
                assert await get(cluster, "/wait") == (503, b"Service Unavailable")
            await get(cluster, "/release")
            assert b"at last" in await events.reader.readuntil(b"at last")
        await come_true(lambda: cluster.stats().requests.timed_out == 2)
        assert cluster.stats().spawned == 1
    record, _ = records(caplog, "request-timed-out")
    assert (record.method, record.path, record.status) == ("GET", "/wait", 503)
    assert "has no response after 0.5 s, and is answered 503" in record.getMessage()
    assert record.stack_info.endswith("in raw_asgi")
    assert errors(caplog) == []


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_a_body_has_bounds(http: str) -> None:
    announced = "POST {} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n"
    chunked = "POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serving("raw_asgi", http=http, body_size=100) as cluster:
        for head, body, status in (
            (announced.format("/echo", 100), "x" * 100, 200),
            (announced.format("/echo", 101), "", 413),
            (chunked, "32\r\n" + "x" * 50 + "\r\n" + "33\r\n" + "x" * 51, 413),
        ):
            async with Caller(cluster) as caller:
                caller.say(head + body)
                assert (await caller.response())[0] == status
                if status == 413:
                    assert await caller.reader.read() == b""
        await come_true(lambda: cluster.stats().requests.refused == 2)
        assert (await told(cluster))["broken off"] == 1


@pytest.mark.parametrize("trusted", ["10.0.0.0/8,::1", "*", None])
async def test_a_proxy_at_a_unix_socket_is_believed_if_any_is(
    trusted: str | None,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bind = f"unix:{folder}/x.sock", "127.0.0.1:0"
        target = asgi("tests.helpers.leaving:raw_asgi", forwarded_allow_ips=trusted)
        async with patience(), cluster_of(target, bind=bind, workers=1) as cluster:
            for number, believed in enumerate((trusted is not None, trusted == "*")):
                async with Caller(cluster, number) as caller:
                    head = (
                        "x-forwarded-for: 6.6.6.6, 10.1.1.1\r\nx-forwarded-proto: https"
                    )
                    caller.say(
                        GET.format("/client").replace("\r\n", f"\r\n{head}\r\n", 1)
                    )
                    status, body = await caller.response()
                assert status == 200
                client, scheme = json.loads(body)
                wanted = "https" if believed else "http"
                assert scheme == wanted
                assert (client is not None and client[0] == "6.6.6.6") is believed


async def test_stacks_show_open_requests_and_where_they_wait() -> None:
    async with serving("raw_asgi") as cluster, Caller(cluster) as older:
        older.say(GET.format("/wait?for=ever"))
        await come_true(lambda: cluster.stats().requests.open == 1)
        async with Caller(cluster) as younger:
            younger.say(GET.format("/wait"))
            await come_true(lambda: cluster.stats().requests.open == 2)
            [text] = (await cluster.stacks()).values()
    title = r"^ +task '.*' for ([0-9.]+) s: GET '/wait' of 127.0.0.1:[0-9]+:$"
    _, age, first, age_of_second, _ = re.split(title, text, flags=re.MULTILINE)
    assert float(age) >= float(age_of_second)
    assert re.search(r"in wait\n.* in raw_asgi$", first, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "path"), [("raw_asgi", "/stubborn"), ("raw_wsgi", "/hang")]
)
async def test_a_worker_with_what_cannot_be_ended_is_replaced(
    name: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "asyncpool")
    async with serving(name, request_timeout=0.5) as cluster:
        events = cluster.events()
        # Both threads, if it is WSGI, and two that wait for one.
        answers = await asyncio.gather(*(get(cluster, path) for _ in range(4)))
        assert answers == [(503, b"Service Unavailable")] * 4
        await next_of(events, Retiring)
        assert [it.ready for it in cluster.stats().slots] == [False, True]
        assert await get(cluster, "/told") == (200, b"{}")
        await come_true(lambda: "5xx" in cluster.stats().requests.responses)
        assert cluster.stats().requests.responses["5xx"].count == 4
    late = records(caplog, "request-timed-out")
    stack = next(it.stack_info for it in late if it.stack_info)  # some have waited
    assert ("in hang" if name == "raw_wsgi" else "in ignore_cancellation") in stack
    reason = records(caplog, "replacement-called")[0].reason
    assert reason.endswith("which were given up after 0.5 s (request_timeout)")


@pytest.mark.parametrize("way", ["they leave", "all are quiet", "one is not"])
async def test_threads_that_are_quiet_streams_cost_their_worker(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving("raw_wsgi", request_timeout=0.5, drain=0.5) as cluster:
        async with Caller(cluster) as first, Caller(cluster) as quiet:
            first.say(GET.format("/stream" if way == "one is not" else "/silence"))
            quiet.say(GET.format("/silence"))
            await asyncio.gather(first.head(), quiet.head())
            if way == "one is not":
                assert await get(cluster, "/told") == (503, b"Service Unavailable")
            while way != "they leave" and not quiet.reader.at_eof():
                with contextlib.suppress(ConnectionError):  # to its worker's end
                    await quiet.reader.read(1000)
        await come_true(lambda: cluster.stats().spawned == 2)
        await get(cluster, "/told")
    late = [it for it in records(caplog, "request-timed-out") if it.path != "/told"]
    assert {it.path for it in late} == {"/silence"}
    left = "sent nothing more for 0.5 s, and is left until its worker has drained, "
    assert way == "they leave" or left in late[-1].getMessage()
    assert "in silence" in late[-1].stack_info
    assert errors(caplog) == []


async def test_a_quiet_stream_whose_client_has_left_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving("raw_wsgi", request_timeout=0.5, drain=0.5) as cluster:
        async with Caller(cluster) as caller:
            caller.say(GET.format("/silence"))
            await caller.head()
        await come_true(lambda: bool(records(caplog, "request-timed-out")))
    [late] = records(caplog, "request-timed-out")
    assert "goes on for nobody for 0.5 s" in late.getMessage()


async def test_a_response_is_whole_though_its_application_hangs_behind_it() -> None:
    async with serving("raw_wsgi", request_timeout=0.5, threads=20) as cluster:
        async with Caller(cluster) as caller:
            for _ in range(20):
                caller.say(GET.format("/lingering"))
                await caller.reader.readuntil(b"\r\n\r\n5\r\nwhole\r\n0\r\n\r\n")
        await come_true(lambda: cluster.stats().spawned == 2)


async def test_a_body_that_stops_coming_is_the_clients_fault() -> None:
    async with (
        serving("raw_wsgi", request_timeout=0.5) as cluster,
        Caller(cluster) as caller,
    ):
        caller.say("POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n1234")
        assert await caller.response() == (408, b"Request Timeout")
        assert (await told(cluster, broken_off=1))["broken off"] == 1
        assert cluster.stats().spawned == 1


@pytest.mark.parametrize(
    ("name", "http", "path"),
    [
        ("raw_wsgi", "httptools", "/flood"),
        ("raw_asgi", "httptools", "/torrent"),
        # Its application has returned, so only the connection tells.
        ("raw_asgi", "httptools", "/big"),
        ("raw_asgi", "h11", "/big"),
    ],
)
async def test_who_reads_nothing_is_cut_off(
    name: str, http: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(name, request_timeout=0.5, http=http) as cluster,
        Caller(cluster) as caller,
    ):
        if path != "/big":
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        caller.say(GET.format(path))
        if path == "/big":  # its own buffer fills, and it reads no more
            await caller.reader.readexactly(1)
        else:
            await told(cluster, closed=1)
        await come_true(lambda: cluster.stats().requests.timed_out == 1)
        await come_true(lambda: cluster.stats().slots[0].connections == 0)
        await looks(cluster, 2)
        assert cluster.stats().spawned == 1  # nobody else loses his connection
    [record] = records(caplog, "request-timed-out")
    assert "has read nothing of its response for 0.5 s" in record.getMessage()


async def test_who_reads_slowly_is_not_cut_off() -> None:
    async with serving("raw_wsgi", request_timeout=0.5) as cluster:
        host, _, port = cluster.addresses[0].removeprefix("tcp://").rpartition(":")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, (host, int(port)))
            await loop.sock_sendall(sock, GET.format("/flood").encode())
            while cluster.stats().worker_loop_lag.count < 5:
                assert await loop.sock_recv(sock, 1000)
                await get(cluster, "/told")
            assert cluster.stats().requests.timed_out == 0


async def test_who_waits_for_a_thread_when_all_ends_is_told_so() -> None:
    async with (
        serving("raw_wsgi", threads=1, drain=0.5) as cluster,
        Caller(cluster) as first,
        Caller(cluster) as second,
    ):
        first.say(GET.format("/hang"))
        await come_true(lambda: cluster.stats().requests.open == 1)
        second.say(GET.format("/told"))
        await come_true(lambda: cluster.stats().requests.open == 2)
        closing = asyncio.create_task(cluster.close())
        assert await second.response() == (503, b"Service Unavailable")
        await closing


# Workers that can take no request.


async def hold(
    cluster: Cluster, stack: contextlib.AsyncExitStack, path: str, requests: int
) -> None:
    """Connect, and send requests, until one worker can take no more."""
    callers = 0
    while all(slot.state != "busy" for slot in cluster.stats().slots):
        if callers < MOST:
            callers += 1
            caller = await stack.enter_async_context(Caller(cluster))
            if callers <= requests:
                caller.say(GET.format(path))
        await asyncio.sleep(0)


ONE_THREAD = {"threads": 1, "request_timeout": None}


@pytest.mark.parametrize(
    ("name", "path", "options"),
    [
        pytest.param(
            "raw_wsgi", "/hang", ONE_THREAD, marks=pytest.mark.logs("worker-busy")
        ),
        ("raw_wsgi", "/hang", {**ONE_THREAD, "spread": "shared"}),
        pytest.param(
            "raw_asgi",
            "/wait",
            {"limit_concurrency": 4},
            marks=pytest.mark.logs("worker-free"),
        ),
        pytest.param("raw_asgi", "/block", {}, marks=pytest.mark.logs("worker-late")),
    ],
    ids=["threads", "shared", "connections", "loop"],
)
async def test_no_connection_goes_where_nothing_is_free(
    name: str, path: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Of two workers one is full: it is not ready, and all others get to the other one."""
    caplog.set_level("INFO", "asyncpool")
    async with serving(name, **options) as cluster:
        async with contextlib.AsyncExitStack() as stack:
            alone = path == "/block" or "spread" in options  # nobody waits
            await hold(cluster, stack, path, 1 if alone else MOST)
            assert [slot.ready for slot in cluster.stats().slots] == [False]
            if path == "/hang" and not alone:  # it is told when one has waited
                await come_true(lambda: bool(records(caplog, "worker-busy")))
            await cluster.resize(2)
            for _ in range(20):
                assert await get(cluster, "/told") == (200, b"{}")
            if path != "/wait":
                states = [slot.state for slot in cluster.stats().slots]
                assert states == ["busy", "ready"]
            if path == "/block":
                cluster.kill(0)
        if path == "/wait":  # until it is below its limit
            await come_true(lambda: all(it.ready for it in cluster.stats().slots))


async def test_who_hangs_is_busier_than_who_has_idle_connections() -> None:
    async with serving("raw_wsgi", threads=1) as it, Caller(it), Caller(it):
        await looks(it, 2)
        await it.resize(2)
        async with Caller(it) as hanging:
            hanging.say(GET.format("/hang"))
            await come_true(lambda: it.stats().slots[1].connections == 1)
            assert await get(it, "/told") == (200, b"{}")


UPGRADE = (
    "GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
DRIPS = {
    "empty lines behind a response": (GET.format("/told"), "\r\n"),
    "a body that nobody reads": (
        GET.format("/told").replace("host", "content-length: 999\r\nhost"),
        "x",
    ),
    "a handshake with a body": (f"{UPGRADE}content-length: 9\r\n\r\n", "x"),
}


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_what_never_becomes_a_request_holds_no_connection(http: str) -> None:
    async with serving("raw_asgi", header_timeout=0.5, http=http) as cluster:
        for what, (first, drip) in DRIPS.items():
            with case(what):
                async with Caller(cluster) as caller:
                    caller.say(first)
                    while not (caller.reader.at_eof() or caller.writer.is_closing()):
                        caller.say(drip)
                        with contextlib.suppress(TimeoutError, ConnectionError):
                            async with asyncio.timeout(0.05):
                                await caller.reader.read(4096)


async def test_a_lifespan_that_raises_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving("no_lifespan") as cluster:
        assert await get(cluster, "/") == (200, b"")
    assert (
        "the application goes on without a lifespan, which has raised in its beginning: "
        "RuntimeError: no database"
    ) in caplog.messages


# What a WSGI application is given, and what clients may send.


async def test_wsgi_as_its_specification_has_it() -> None:
    async with (
        serving("raw_wsgi", root_path="/root") as cluster,
        Caller(cluster) as caller,
    ):
        caller.say(
            "GET /headers?/a%20b%FF HTTP/1.1\r\nhost: x\r\nX_Remote_User: root\r\n"
            "X-Remote-User: me\r\ncookie: a=1\r\ncookie: b=2\r\n\r\n"
        )
        status, body = await caller.response()
        assert status == 200
        assert json.loads(body) == {
            "HTTP_X_REMOTE_USER": "me",
            "HTTP_COOKIE": "a=1; b=2",
            "PATH_INFO": "/headers",
            "SCRIPT_NAME": "/root",
        }
        caller.say("POST /lines HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
        caller.say("abcde\nfg\n")
        assert json.loads((await caller.response())[1]) == ["abc", "de\n"]
        caller.say(GET.format("/late"))
        head = await caller.head()
        assert head.startswith("HTTP/1.1 418 ")
        assert "x: second" in head
    async with serving("raw_wsgi", http="h11") as cluster, Caller(cluster) as caller:
        caller.say(TRAILER.format("/headers"))
        _, body = await caller.response()
        assert json.loads(body)["HTTP_X_REMOTE_USER"] is None


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_requests_of_any_kind_are_read_as_they_are_meant(
    http: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving("raw_asgi", http=http) as cluster:
        for send in (send_large_heads, send_trailer, offer_protocol, send_pipeline):
            with case(send):
                await send(cluster)
    assert errors(caplog) == []


async def send_large_heads(cluster: Cluster) -> None:
    large = f"GET / HTTP/1.1\r\nhost: x\r\nx: {'x' * 200_000}\r\n\r\n"
    for _ in range(20):
        async with Caller(cluster) as caller:
            with contextlib.suppress(ConnectionError):
                caller.say(large)
                await caller.writer.drain()
                assert (await caller.head()).startswith("HTTP/1.1 431 ")
    await come_true(lambda: cluster.stats().requests.refused == 20)
    async with Caller(cluster) as caller:
        caller.say(f"{UPGRADE}cookie: {'x' * 9000}\r\n\r\n")
        assert (await caller.head()).startswith("HTTP/1.1 431 ")


async def send_trailer(cluster: Cluster) -> None:
    async with Caller(cluster) as caller:
        caller.say(TRAILER.format("/echo"))
        status, body = await caller.response()
    assert status == 200
    assert json.loads(body) == ["POST", ["host", "transfer-encoding"], "a"]


async def offer_protocol(cluster: Cluster) -> None:
    """It does not change where a request ends."""
    body = "GET /release HTTP/1.1\r\nhost: x\r\n\r\n"
    async with Caller(cluster) as caller:
        for later in (False, True) * 3:
            caller.say(
                "POST /echo HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\n"
                f"upgrade: h2c\r\nhttp2-settings: AA\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            if later:
                await caller.writer.drain()
                await get(cluster, "/told")  # the head has come by itself
            caller.say(body + GET.format("/echo"))
            status, answer = await caller.response()
            method, headers, text = json.loads(answer)
            assert (status, method, text) == (200, "POST", body)
            assert {"connection", "content-length", "host"} <= set(headers)
            status, answer = await caller.response()
            assert json.loads(answer) == ["GET", ["host"], ""]


async def send_pipeline(cluster: Cluster) -> None:
    count, size = 300, 1000
    async with Caller(cluster) as caller:
        for number in range(count):
            head = f"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n"
            caller.say(head + str(number).rjust(size))
        for number in range(count):
            _, answer = await caller.response()
            assert int(json.loads(answer)[2]) == number


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_a_pipeline_takes_no_memory_that_grows_with_it(http: str) -> None:
    async with serving("raw_asgi", http=http) as cluster, Caller(cluster) as caller:
        pid = cluster.stats().slots[0].pid
        memory = Path(f"/proc/{pid}/statm")
        page = resource.getpagesize()
        before = int(memory.read_text().split()[1]) * page
        transport = caller.writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        sent = refused = 0
        most = 16_000_000  # more than the kernel holds for both sides
        while sent < most and refused < 20:
            # The worker takes no more, or not yet.
            if transport.get_write_buffer_size():
                refused += 1
                await get(cluster, "/told")
                continue
            refused = 0
            piece = GET.format("/told") * 1000
            caller.say(piece)
            sent += len(piece)
            await asyncio.sleep(0)
        grown = int(memory.read_text().split()[1]) * page - before
        transport.abort()  # to close it would wait until all is sent
        assert (sent < most, grown < 40_000_000) == (True, True)
