"""The life of a worker that serves, from its target to its exit status."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.worker import serves
from tests.worker.by_hand import STACKS_SIZE, Door, FrameKind, PageLayout, header
from tests.worker.master import Master

Start = Callable[..., Master]
NO_OBJECT = "does not name an object: write package.module:object"


def say(sock: socket.socket, data: bytes) -> bytes:
    sock.sendall(data)
    return sock.recv(1000)


def test_a_connection_counts_as_long_as_a_file_is_made_of_it(master: Master) -> None:
    with master.connect():
        master.post(("take", 1))
        assert master.message() == "taken"
        master.post(("close_but_keep_a_file", None))
        assert master.message() == "kept"
        assert master.load == (1, 0)
        master.until_load(1, 1)


@pytest.mark.parametrize(
    ("target", "summary"),
    [
        ("tests.worker.serves", NO_OBJECT),
        ("tests.worker.serves:", NO_OBJECT),
        ("tests.worker.missing:serve", "No module named 'tests.worker.missing'"),
        ("tests.worker.serves:missing", "has no attribute 'missing'"),
        ("tests.worker.serves:not_a_function", "is not a function, but int"),
        (serves.fail_early, "LookupError: no database for 3"),
        (serves.leave_early, "RuntimeError: serve() returned before it was ready"),
    ],
)
def test_a_target_that_cannot_serve_is_a_start_that_failed(
    start: Start, target: Any, summary: str
) -> None:
    master = start(target)
    failure = master.failure()
    # From Python 3.15 on it asks whether some other name was meant.
    last, _, _ = failure.text.splitlines()[-1].partition(". Did you mean")
    assert (failure.stage, last) == ("serve", failure.summary)
    assert failure.summary.endswith(summary)
    assert master.ended() == (1, ""), "it was told, and prints nothing"


def test_a_connection_is_taken_when_somebody_takes_it(master: Master) -> None:
    clients = [master.connect() for _ in range(3)]
    master.post(("say", "here"))
    assert master.message() == "here"
    assert not master.taken
    master.post(("take", 2))
    assert master.message() == "taken"
    assert master.taken == [1, 2]
    master.drain()
    assert master.ended() == (0, "")
    assert (master.taken, master.refused) == ([1, 2], [3])
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    "order", ["close", "make_transport", "detach", "drop", "drop_elsewhere"]
)
def test_a_connection_counts_until_its_socket_is_gone(
    master: Master, order: str
) -> None:
    with master.connect() as client:
        master.post(("take", 1))
        master.until_load(1, 0)
        assert master.message() == "taken"
        master.post(("copy", None))
        assert master.message() == ""
        master.post((order, None))
        master.until_load(1, 1)
        assert client.recv(1) == b""
    master.post(("count", None))
    master.until_load(2, 2)
    master.drain()
    assert master.ended()[0] == 0
    assert master.load == (2, 2)


@pytest.mark.parametrize(
    ("frames", "trouble"),
    [
        (header(FrameKind.JOB, 0, 1, 1), "the pool sent JOB"),
        (header(FrameKind.HANDLE, 0, 1), "the pool sent a handle without a descriptor"),
        (header(FrameKind.ROOM, 0, 1), "the pool took 1 messages, after 0 of 0"),
        (bytes(24), "the peer speaks version 0, not 2"),
    ],
)
def test_a_pool_that_breaks_the_protocol_ends_it(
    master: Master, frames: bytes, trouble: str
) -> None:
    master.write(frames)
    failure = master.failure()
    assert failure.summary == f"ProtocolError: {trouble}"
    status, err = master.ended()
    assert status == 1
    assert f"ProtocolError: {trouble}" in err


def test_a_ping_is_answered_when_the_loop_turns(master: Master, door: Door) -> None:
    control = master.worker.control
    master.post(("block", door.path))
    assert door.visitor().startswith("blocked")
    # Its control thread answers what comes later, and has heard the ping by then.
    for kind in (FrameKind.PING, FrameKind.STACKS):
        control.sendall(header(kind, 0))
    master.worker.told(FrameKind.STACKS)
    text = os.pread(master.worker.page, STACKS_SIZE, PageLayout(1).stacks).decode()
    assert "in block" in text
    door.release()
    master.worker.told(FrameKind.PONG)
    assert master.message() == "go"


def test_a_ping_is_answered_by_a_loop_that_is_busy(master: Master) -> None:
    control = master.worker.control
    master.post(("be_busy", None))
    assert master.message() == "busy"
    for _ in range(3):
        control.sendall(header(FrameKind.PING, 0))
        master.worker.told(FrameKind.PONG)


# Messages and sockets between it and the pool's process.


def order(master: Master, name: str, argument: object = None) -> object:
    """Have the worker do something, and return its answer."""
    master.post((name, argument))
    return master.message()


def test_who_sends_more_than_there_is_room_for_breaks_the_protocol(
    master: Master,
) -> None:
    with master.connect():
        master.post(("take", 2))  # which takes as long as there is no other connection
        assert master.heard(FrameKind.TAKEN) is not None
    for _ in range(65):
        master.post(("say", None))
    text = (
        "ProtocolError: the pool sent a message beyond the 64 for which there is room"
    )
    assert master.failure().summary == text
    assert master.ended()[0] == 1
