"""ASGI applications in a worker that serves, and what becomes of their connections."""

from __future__ import annotations

import itertools
import logging
import math
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from asyncpool.cluster import asgi
from asyncpool.cluster._servers import uvicorn_parts
from tests.helpers.loops import LOOP_NAMES
from tests.helpers.patience import PATIENCE
from tests.helpers.tls import client_context, write_certificate
from tests.worker.by_hand import Failure, FrameKind, read_record
from tests.worker.master import Master
from tests.worker.serves import Patient

Start = Callable[..., Master]
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"

# The headers of a request with a body of ten bytes.
POST = b"POST /upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n"
STREAM = POST.replace(b"/upload", b"/stream")
KINDS = [
    pytest.param((loop, http), marks=pytest.mark.each_loop(loop), id=f"{loop}-{http}")
    for loop, http in itertools.product(LOOP_NAMES, ["h11", "httptools"])
]


@pytest.fixture(params=KINDS)
def serve(start: Start, request: pytest.FixtureRequest) -> Start:
    """Start workers that serve the application, with each loop and parser."""
    loop, http = request.param

    def serve(drain_timeout: float = PATIENCE, **options: Any) -> Master:
        target = Patient(asgi("tests.helpers.web_app:app", http=http, **options))
        master = start(target, loop=loop, drain_timeout=drain_timeout)
        master.ready()
        return master

    return serve


def respond(sock: socket.socket, request: bytes = GET) -> tuple[bytes, bytes]:
    """Send a request, and return the head of the response, and its body."""
    sock.sendall(request)
    return response(sock)


def response(sock: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of the next response, and its body; its connection goes on."""
    head = body = b""
    while not head.endswith(b"\r\n\r\n"):
        more = sock.recv(1)
        assert more, head
        head += more
    size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < size:
        body += sock.recv(size - len(body))
    return head, body


def until(sock: socket.socket, end: bytes) -> None:
    """Read as far as there is such an end."""
    data = b""
    while end not in data:
        more = sock.recv(1)
        assert more, data
        data += more


def until_end(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(1000):
        data += more
    return data


def pid(master: Master, size: int = 0) -> bytes:
    return b"%d %d" % (master.process.pid, size)


@pytest.mark.parametrize(
    ("app", "summary"),
    [
        ("missing", "module 'tests.helpers.web_app' has no attribute 'missing'"),
        ("broken", "the application's lifespan has refused to start: no database"),
        ("raising", "lifespan has refused to start: ValueError: no database"),
    ],
)
def test_an_application_that_does_not_start(
    start: Start, app: str, summary: str
) -> None:
    master = start(asgi(f"tests.helpers.web_app:{app}", lifespan="on"))
    frames = list(iter(lambda: master.worker.heard(master.worker.control), None))
    assert FrameKind.HELLO not in [frame.kind for frame in frames]
    [failure] = [
        Failure.unpack(frame.payload)
        for frame in frames
        if frame.kind is FrameKind.FAILED
    ]
    assert failure.summary.endswith(summary)
    assert ("in raising\n" in failure.text) == (app == "raising")
    status, err = master.worker.ended()
    assert (status, "Traceback" in err) == (1, False), "the master tells of it"
    assert FrameKind.RECORD not in [frame.kind for frame in frames], (
        "so uvicorn need not"
    )


def test_a_reason_of_several_lines_is_not_cut_short(start: Start) -> None:
    master = start(asgi("tests.helpers.web_app:explaining", lifespan="on"))
    frames = list(iter(lambda: master.worker.heard(master.worker.control), None))
    [record] = [frame.payload for frame in frames if frame.kind is FrameKind.RECORD]
    assert read_record(bytes(record))[0]["msg"] == "no database\nask for one"
    [failure] = [frame for frame in frames if frame.kind is FrameKind.FAILED]
    assert Failure.unpack(failure.payload).summary.endswith("start: ask for one")


def test_options_of_the_cluster_are_refused() -> None:
    with pytest.raises(TypeError) as caught:
        asgi("app:app", port=8000, workers=3, root_path="/x")
    assert str(caught.value) == "these options are not for workers: port, workers"
    pickle.dumps(asgi("app:app", root_path="/x"))


@pytest.mark.parametrize("proxies", ["bogus", "10.0.0.1/8", ["::1", "*"]])
def test_proxies_that_make_no_sense_are_refused(proxies: Any) -> None:
    with pytest.raises(ValueError, match=r"^forwarded_allow_ips: "):
        asgi("app:app", forwarded_allow_ips=proxies)


@pytest.mark.logs("not-handed-on")
@pytest.mark.parametrize("left", [0, 1])
def test_what_cannot_move_for_want_of_descriptors_is_counted(
    serve: Start, left: int
) -> None:
    master = serve()
    with master.connect() as busy, master.connect() as idle:
        respond(idle)
        respond(busy, GET.replace(b"/ ", b"/leave/%d " % left))
        master.give_place()
        master.drain()
        while master.lost < 2:
            assert master.heard(FrameKind.LOAD) is not None
        head, body = respond(busy)
        assert b"connection: close\r\n" in head
        assert body == pid(master)
        assert busy.recv(1) == idle.recv(1) == b""
        assert master.heard() is None
        frame = master.worker.heard(master.worker.control)
        assert frame is not None
        found, fields = read_record(frame.payload)
        record = {name: found[name] for name in ("name", "msg", "levelno", "levelname")}
        logging.getLogger("asyncpool").handle(logging.makeLogRecord(record | fields))
        assert found["msg"].startswith(
            "no connection can be handed on to other workers any mo"
        )
        assert master.worker.heard(master.worker.control) is None, "it says so once"
    assert master.ended()[0] == 0
    assert (master.load, master.lost) == ((2, 2), 2)


def test_a_request_in_the_middle_of_it_is_answered_before_it_moves(
    serve: Start,
) -> None:
    master = serve()
    with (
        master.connect() as body,
        master.connect() as head,
        master.connect() as stream,
        master.connect() as pipeline,
    ):
        respond(pipeline)
        body.sendall(POST + b"12345")
        head.sendall(POST[:30])
        stream.sendall(STREAM + b"1234")
        until(stream, b"so")
        # Of the third request there is only the beginning.
        assert respond(pipeline, GET + GET + POST[:40])[1] == pid(master)
        assert response(pipeline)[1] == pid(master)
        master.give_place()
        master.drain()
        # Whoever is at rest has moved when somebody has who was not.
        for client, rest, answer in (
            (body, b"67890", pid(master, 10)),
            (head, POST[30:] + b"1234567890", pid(master, 10)),
            (pipeline, POST[40:] + b"1234567890", pid(master, 10)),
        ):
            client.sendall(rest)
            found_head, found = response(client)
            assert b"connection: close" not in found_head
            assert found == answer
            with master.given() as moved:
                moved.sendall(b"here")
                assert client.recv(100) == b"here"
        stream.sendall(b"567890")
        until(stream, b"0\r\n\r\n")
        with master.given() as moved:
            moved.sendall(b"here")
            assert stream.recv(100) == b"here"
    assert master.ended() == (0, "")
    assert master.load == (4, 4)


def test_what_is_encrypted_does_not_move(serve: Start, tmp_path: Path) -> None:
    master = serve(ssl_certfile=write_certificate(tmp_path))
    with (
        master.connect() as plain,
        client_context().wrap_socket(plain, server_hostname="localhost") as client,
    ):
        head, body = respond(client)
        assert b"connection: close" not in head
        assert body == pid(master)
        master.give_place()
        master.drain()
        while b"connection: close" not in respond(client)[0]:
            pass
        assert until_end(client) == b""
    assert master.ended() == (0, "")


def test_a_handshake_has_the_time_of_a_head(serve: Start, tmp_path: Path) -> None:
    master = serve(ssl_certfile=write_certificate(tmp_path), header_timeout=0.5)
    with master.connect() as silent, master.connect() as begun:
        begun.sendall(b"\x16\x03\x01")  # of the first record's header
        for client in (silent, begun):
            assert client.recv(1) == b""
    master.until_load(2, 2)
    master.drain()
    assert master.ended() == (0, "")


def test_who_has_served_as_many_requests_as_it_may_is_replaced(start: Start) -> None:
    master = start(asgi("tests.helpers.web_app:app", limit_max_requests=2))
    master.ready()
    with master.connect() as client:
        for _ in range(2):
            respond(client)
        frame = master.worker.heard(master.worker.control)
        assert frame is not None
        assert (frame.kind, frame.number) == (FrameKind.RETIRE, 1)
        assert frame.payload == (
            b"it has served as many requests as it may (limit_max_requests)"
        )
        assert b"connection: close" not in respond(client)[0]
        master.drain()
    assert master.ended() == (0, "")


def test_workers_may_not_serve_equally_many_requests() -> None:
    def limits(**options: Any) -> list[float]:
        config = uvicorn.Config("app:app", log_config=None, **options)
        found = []
        for slot in range(4):
            worker: Any = SimpleNamespace(id=slot, generation=1)
            limit = config.limit_max_requests
            found.append(uvicorn_parts._most_requests(config, worker))
            assert config.limit_max_requests is None
            config.limit_max_requests = limit
        return found

    assert limits() == [math.inf] * 4
    assert limits(limit_max_requests=1000) == [938, 1000, 962, 924]
    assert limits(limit_max_requests=1) == [1] * 4
    by_chance = limits(limit_max_requests=1, limit_max_requests_jitter=10**9)
    assert min(by_chance) > 1
    assert len(set(by_chance)) == 4
