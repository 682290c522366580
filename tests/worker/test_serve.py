"""The life of a worker that serves, from its target to its exit status."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from asyncpool._core.wire.frames import FrameKind, header
from asyncpool._core.wire.log_records import LogEntry
from asyncpool._core.wire.messages import Failure
from asyncpool._core.wire.page import STACKS_SIZE, STACKS_START
from tests.worker import serves
from tests.worker.by_hand import Door
from tests.worker.master import Master

Start = Callable[..., Master]

NO_OBJECT = "does not name an object: write package.module:object"


def say(sock: socket.socket, data: bytes) -> bytes:
    sock.sendall(data)
    return sock.recv(1000)


def test_a_worker_knows_who_it_is(start: Start) -> None:
    master = start(serves.introduce, drain_timeout=2.5)
    master.ready()
    assert master.message() == (3, 7, 2.5, [])
    master.drain()
    assert master.ended() == (0, "")


def test_a_target_may_be_a_name(start: Start) -> None:
    master = start("tests.worker.serves:echo")
    master.ready()
    with master.connect() as client:
        assert say(client, b"hello") == b"hello"
        master.drain()
        for _ in range(
            100
        ):  # of which it would not live to see all, if it did not wait
            assert say(client, b"still here") == b"still here"
    assert master.ended() == (0, "")
    assert master.load == (1, 1)


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
        (
            "tests.worker.serves",
            f"ValueError: 'tests.worker.serves' {NO_OBJECT}",
        ),
        (
            "tests.worker.serves:",
            f"ValueError: 'tests.worker.serves:' {NO_OBJECT}",
        ),
        (
            "tests.worker.missing:serve",
            "ModuleNotFoundError: No module named 'tests.worker.missing'",
        ),
        (
            "tests.worker.serves:missing",
            "AttributeError: module 'tests.worker.serves' has no attribute 'missing'",
        ),
        (
            "tests.worker.serves:not_a_function",
            "TypeError: 'tests.worker.serves:not_a_function' is not a function, but int",
        ),
        (serves.fail_early, "LookupError: no database for 3"),
        (
            serves.leave_early,
            "RuntimeError: serve() returned before it was ready",
        ),
    ],
)
def test_a_target_that_cannot_serve_is_a_start_that_failed(
    start: Start, target: Any, summary: str
) -> None:
    master = start(target)
    failure = master.failure()
    # From Python 3.15 on it asks whether some other name was meant.
    last, _, _ = failure.text.splitlines()[-1].partition(". Did you mean")
    assert (failure.stage, failure.summary, last) == ("serve", summary, summary)
    assert master.ended() == (1, ""), "it was told, and prints nothing"


@pytest.mark.parametrize(
    ("target", "sequences"),
    [
        (serves.fail_early, [("serves.py", "fail_early")]),
        # Where nothing is the user's, all is told.
        (serves.leave_early, [("serve.py", "serve")]),
        (
            "tests.worker.broken:serve",
            [("broken.py", "<module>"), ("broken.py", "load")],
        ),
    ],
    ids=["early", "ours", "at import"],
)
def test_what_is_told_of_a_failed_start_begins_where_the_users_code_does(
    start: Start, target: Any, sequences: list[tuple[str, str]]
) -> None:
    master = start(target)
    told = master.failure().text
    found = re.findall(r'  File "(?:.*/)?(.*)", line \d+, in (.*)', told)
    assert found[: len(sequences)] == sequences
    is_theirs = target is not serves.leave_early
    assert (len(found) == len(sequences)) is is_theirs


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


def test_what_came_before_the_end_is_served_still(master: Master) -> None:
    with master.connect(), master.connect():
        master.post(("go_on", None))
        master.drain()
        assert master.message() == "2 kept"
        assert master.taken == [1, 2]
        # Those that serve() has forgotten are closed when the time is over, if not before.
        master.process.kill()


IN_TIME = "had not ended within the drain_timeout of 0.05 s"


def told(master: Master) -> str:
    """Wait for what the worker logs next."""
    frame = master.worker.heard(master.worker.control)
    assert frame is not None
    assert frame.kind is FrameKind.RECORD
    entry = LogEntry.unpack(frame.payload)
    assert (entry.name, entry.level_name) == ("asyncpool", "WARNING")
    return entry.message


def test_who_does_not_come_to_an_end_is_cancelled(start: Start) -> None:
    master = start(drain_timeout=0.05)
    master.ready()
    master.post(("stay", None))
    assert master.message() == "staying"
    master.drain()
    assert told(master) == f"what this worker serves {IN_TIME}, and is cancelled"
    assert master.heard() is None
    out, _ = master.process.communicate()
    assert (master.process.returncode, out) == (0, b"cleaned up\n")


def test_a_connection_that_does_not_end_is_ended(start: Start) -> None:
    master = start("tests.worker.serves:echo", drain_timeout=0.05)
    master.ready()
    with master.connect() as client:
        assert say(client, b"hello") == b"hello"
        master.drain()
        assert client.recv(1) == b""
        text = f"1 of 1 connections {IN_TIME}, and are cut off"
        assert told(master) == text, "who has no name is counted"
        assert master.ended() == (0, "")


@pytest.mark.parametrize("count", [2, 12])
@pytest.mark.parametrize("returns", [False, True], ids=["stays", "returns"])
def test_what_is_cut_off_is_told(
    start: Start,
    count: int,
    returns: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    master = start(drain_timeout=0.05)
    master.ready()
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        guests = [
            stack.enter_context(socket.create_connection(listener.getsockname()))
            for _ in range(count + 1)
        ]
        for _ in guests:
            master.hand(listener.accept()[0])
        master.post(("take", count + 1))
        assert master.message() == "taken"
        master.post(("close", None))  # the last one
        master.until_load(count + 1, 1)
        if returns:
            master.post(("keep_for_good", None))
            assert master.message() == "kept"
            master.post(("return", None))
        else:
            master.post(("stay", None))
            assert master.message() == "staying"
        master.drain()
        names = ["{}:{}".format(*guest.getsockname()) for guest in guests[:count]]
        found, _, who = told(master).partition(": ")
        assert found == f"{count} of {count + 1} connections {IN_TIME}, and are cut off"
        shown, _, more = who.partition(" and ")
        assert more == ("2 more" if count > 10 else "")
        assert len(shown.split(", ")) == min(count, 10)
        assert set(shown.split(", ")) <= set(names)
        assert master.ended() == (0, "")
        assert master.cut == count, "and the master counts them"


def test_an_exception_announces_the_end_and_others_get_what_waits(
    master: Master,
) -> None:
    with master.connect() as client, master.connect() as waiting:
        master.post(("echo", None))
        assert master.message() == "echoing"
        master.post(("fail", "out of luck"))
        failure = master.failure()
        assert (failure.stage, failure.summary) == ("serve", "ValueError: out of luck")
        assert "raise ValueError(text)\nValueError: out of luck" in failure.text
        frame = master.heard(FrameKind.REFUSED)
        assert frame is not None
        assert frame.job == 2
        late = master.connect()
        assert master.heard(FrameKind.REFUSED) is not None
        assert say(client, b"still here") == b"still here"
        master.drain()
        assert say(client, b"and here") == b"and here"
        assert waiting.recv(1) == late.recv(1) == b""
        late.close()
    status, err = master.ended()
    assert status == 1
    assert "ValueError: out of luck" in err
    assert (master.taken, master.refused) == ([1], [2, 3])


def test_who_exits_announces_it_too(master: Master) -> None:
    master.post(("exit", 4))
    assert master.failure().summary == "SystemExit: 4"
    master.drain()
    assert master.ended()[0] == 1


def test_a_thread_that_dies_ends_its_worker(master: Master) -> None:
    with master.connect() as client:
        master.post(("echo", None))
        assert master.message() == "echoing"
        master.post(("start_faulty_thread", "spun off"))
        failure = master.failure()
        assert failure.stage == "thread"
        assert failure.summary == "ValueError in thread 'faulty': spun off"
        assert say(client, b"still here") == b"still here"
        master.drain()
    assert master.ended()[0] == 1


@pytest.mark.parametrize("order", ["retire", "retire_elsewhere"])
def test_a_worker_may_retire(master: Master, order: str) -> None:
    with master.connect() as client:
        master.post(("echo", None))
        assert master.message() == "echoing"
        master.post((order, "worn out"))
        frame = master.worker.heard(master.worker.control)
        assert frame is not None
        assert (frame.kind, frame.number, frame.payload) == (
            FrameKind.RETIRE,
            0,
            b"worn out",
        )
        if order == "retire":
            assert master.message() is True
        assert say(client, b"still here") == b"still here"
        master.drain()
    assert master.ended() == (0, "")


@pytest.mark.parametrize("order", ["replace", "replace_elsewhere"])
def test_a_worker_may_ask_for_its_successor(master: Master, order: str) -> None:
    master.post((order, "worn out"))
    frame = master.worker.heard(master.worker.control)
    assert frame is not None
    assert (frame.kind, frame.number) == (FrameKind.RETIRE, 1)
    assert master.message() is False
    # It serves on.
    with master.connect() as client:
        master.post(("echo", None))
        assert master.message() == "echoing"
        assert say(client, b"still here") == b"still here"
        master.drain()
    assert master.ended() == (0, "")


def test_who_retires_does_not_wait_for_ever(start: Start) -> None:
    master = start(drain_timeout=0.05)
    master.ready()
    master.post(("retire", "worn out"))
    assert master.message() is True
    # Nobody answers.
    assert master.ended() == (0, "")


def test_who_returns_leaves_when_its_connections_are_closed(master: Master) -> None:
    with master.connect() as client:
        master.post(("echo", None))
        assert master.message() == "echoing"
        master.post(("return", None))
        assert say(client, b"still here") == b"still here"
        late = master.connect()
        assert late.recv(1) == b""
        late.close()
    assert master.ended() == (0, "")
    assert (master.taken, master.refused) == ([1], [2])


@pytest.mark.parametrize("returning", [True, False])
def test_a_connection_may_be_given_back(master: Master, returning: bool) -> None:  # noqa: FBT001
    with master.connect() as client:
        master.post(("take", 1))
        assert master.message() == "taken"
        master.post(("give_back", None))
        if returning:
            client.sendall(b"on its way")
            master.give_place()
        master.drain()
        if returning:
            with master.given() as back:
                assert back.recv(100) == b"on its way"
                back.sendall(b"answer")
            assert client.recv(100) == b"answer"
        assert master.message() is returning
        assert master.ended() == (0, "")
        assert client.recv(1) == b""
    assert master.load == (1, 1)


@pytest.mark.parametrize(
    ("frames", "trouble"),
    [
        (header(FrameKind.JOB, 0, 1, 1), "the pool sent JOB"),
        (header(FrameKind.HANDLE, 0, 1), "HANDLE came without a descriptor"),
        (header(FrameKind.LISTEN, 0, 0, 0, 1), "LISTEN came without a descriptor"),
        (
            header(FrameKind.ROOM, 0, 1),
            "the pool took 1 messages, after 0 of 0",
        ),
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


def test_stacks_tell_where_its_tasks_are(master: Master) -> None:
    with master.connect():
        master.post(("echo", None))
        assert master.message() == "echoing"
        control = master.worker.control
        control.sendall(header(FrameKind.STACKS, 0))
        frame = master.worker.heard(control)
        assert frame is not None
        assert frame.kind is FrameKind.STACKS
        text = os.pread(master.worker.page, STACKS_SIZE, STACKS_START).decode()
        assert "serves.py" in text
        assert "in run" in text
        assert "in echo_one" in text


def test_a_ping_is_answered_when_the_loop_turns(master: Master, door: Door) -> None:
    control = master.worker.control
    master.post(("block", door.path))
    assert door.visitor().startswith("blocked")
    # Its control thread answers what comes later, and has heard the ping by then.
    for kind in (FrameKind.PING, FrameKind.STACKS):
        control.sendall(header(kind, 0))
    frame = master.worker.heard(control)
    assert frame is not None
    assert frame.kind is FrameKind.STACKS
    text = os.pread(master.worker.page, STACKS_SIZE, STACKS_START).decode()
    assert "in block" in text
    door.release()
    frame = master.worker.heard(control)
    assert frame is not None
    assert frame.kind is FrameKind.PONG
    assert master.message() == "go"


def test_a_ping_is_answered_by_a_loop_that_is_busy(master: Master) -> None:
    control = master.worker.control
    master.post(("be_busy", None))
    assert master.message() == "busy"
    for _ in range(3):
        control.sendall(header(FrameKind.PING, 0))
        frame = master.worker.heard(control)
        assert frame is not None
        assert frame.kind is FrameKind.PONG


def test_failures_can_be_read() -> None:
    failure = Failure("serve", "ValueError: x", "text")
    assert Failure.unpack(failure.pack()) == failure
