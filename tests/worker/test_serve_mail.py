"""Messages and sockets between the pool's process and a worker that serves."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

import pytest

from asyncpool._core.wire.frames import FrameKind, header
from asyncpool._core.wire.log_records import LogEntry
from tests.helpers.patience import PATIENCE
from tests.helpers.serves import Unreadable
from tests.worker.by_hand import encode
from tests.worker.master import Master

Start = Callable[..., Master]


def order(master: Master, name: str, argument: object = None) -> object:
    """Have the worker do something, and return its answer."""
    master.post((name, argument))
    return master.message()


def test_messages_are_acknowledged_when_they_are_taken(master: Master) -> None:
    assert order(master, "say", {"a": 1}) == {"a": 1}
    assert order(master, "say", "b") == "b"
    master.until_room(2)
    # It takes one by one.
    with master.connect():
        master.post(("take", 2))
        assert master.heard(FrameKind.TAKEN) is not None
        for _ in range(64):
            master.post(("say", "late"))
        with master.connect():
            assert master.message() == "taken"
            master.write(header(FrameKind.ROOM, 0, 3))
            for _ in range(64):
                assert master.message() == "late"
    master.drain()
    assert master.ended()[0] == 0
    assert master.room == 67


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


def record(master: Master) -> LogEntry:
    """Wait for what the worker logs next."""
    frame = master.worker.heard(master.worker.control)
    assert frame is not None
    assert frame.kind is FrameKind.RECORD
    return LogEntry.unpack(frame.payload)


def test_what_cannot_be_read_is_dropped_and_told(master: Master) -> None:
    master.post(Unreadable())
    assert order(master, "say", "fine") == "fine"
    entry = record(master)
    assert entry.level_name == "ERROR"
    assert entry.message == "this worker cannot read a message and drops it"
    assert entry.trace.splitlines()[-1].startswith("ValueError: invalid literal")
    master.until_room(2)
    master.drain()
    assert master.ended() == (0, "")


def test_a_worker_waits_for_room(master: Master) -> None:
    master.post(("say_often", 100))
    assert [master.message() for _ in range(64)] == list(range(64))
    # It waits now, so whatever comes next comes after room was made.
    for consumed in (1, 40):
        master.write(header(FrameKind.ROOM, 0, consumed))
    assert [master.message() for _ in range(36)] == list(range(64, 100))
    assert master.message() == "said"


def test_a_worker_that_waits_for_room_at_the_end_hears_of_it(master: Master) -> None:
    master.post(("say_often", 64))  # and its answer
    assert [master.message() for _ in range(64)] == list(range(64))
    master.drain()
    failure = master.failure()
    assert failure.summary == "BrokenPipeError: the pool takes no more messages"
    assert master.ended()[0] == 1


def test_a_message_has_a_largest_size(start: Start) -> None:
    master = start(max_payload=1000)
    master.ready()
    size = 2000
    text = "a message of 2018 bytes is longer than the 1000 that may be sent"
    assert order(master, "say_large", size) == text
    assert order(master, "say", "x") == "x"
    master.write(encode(FrameKind.MESSAGE, bytes(1001)))
    text = "ProtocolError: a payload of 1001 bytes exceeds the limit of 1000"
    assert master.failure().summary == text
    assert master.ended()[0] == 1


def test_a_worker_of_a_cluster_knows_that_it_is_one(master: Master) -> None:
    assert order(master, "is_in_worker") is True


def test_a_socket_travels_to_the_worker(master: Master) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        name = listener.getsockname()
        number = master.hand(listener.dup(), tag=1)
        assert order(master, "get_socket") == name
    assert master.taken == [number]
    before = order(master, "descriptors")
    # One that nobody takes out is closed with the worker.
    master.hand(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), tag=1)
    assert master.heard(FrameKind.TAKEN) is not None
    assert order(master, "descriptors") == before + 1  # type: ignore[operator]
    master.drain()
    assert master.ended() == (0, "")


def test_a_socket_travels_from_the_worker(master: Master) -> None:
    before = order(master, "descriptors")
    master.post(("give_socket", None))
    with master.given() as sock:
        assert sock.family == socket.AF_INET
    master.write(header(FrameKind.TAKEN, 0, 1))
    assert master.message() == "arrived"
    master.post(("give_socket", None))
    master.given().close()
    master.write(header(FrameKind.REFUSED, 0, 2))
    assert master.message() == "OSError: the pool could not take the socket"
    # An answer to nothing changes nothing.
    master.write(header(FrameKind.TAKEN, 0, 2) + header(FrameKind.TAKEN, 0, 99))
    assert order(master, "descriptors") == before
    master.post(("give_socket", None))
    master.given().close()
    master.drain()
    assert master.message() == "OSError: the pool could not take the socket"
    assert master.ended() == (0, "")


def test_what_is_neither_a_socket_nor_a_file_costs_no_descriptor(
    master: Master,
) -> None:
    before = order(master, "descriptors")
    folder = os.open("/", os.O_RDONLY)
    for number in range(1, 21):
        head = header(FrameKind.HANDLE, 0, number, 0, 1)
        assert socket.send_fds(master.worker.jobs, [head], [folder]) == len(head)
        assert master.heard(FrameKind.REFUSED) is not None
    os.close(folder)
    assert order(master, "descriptors") == before
    master.drain()
    assert master.ended() == (0, "")


def test_a_worker_out_of_descriptors_says_so_and_loses_none(master: Master) -> None:
    before = order(master, "descriptors")
    assert order(master, "exhaust") == "exhausted"
    clients = [master.connect() for _ in range(3)]
    number = master.hand(socket.socket(), tag=1)
    for _ in range(4):
        assert master.heard(FrameKind.REFUSED) is not None
    assert master.refused == [1, 2, 3, number]
    entry = record(master)
    assert (entry.level_name, entry.message) == (
        "WARNING",
        "no connection can be accepted now: Too many open files",
    )
    for client in clients:
        assert client.recv(1) == b""  # no copy of it is left anywhere
        client.close()
    assert order(master, "recover") == "recovered"
    with master.connect() as client:
        assert order(master, "echo") == "echoing"
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"
    master.until_load(1, 1)
    assert order(master, "descriptors") == before
    master.drain()
    assert master.ended() == (0, "")


def test_a_thousand_connections_leave_nothing(master: Master) -> None:
    before = order(master, "descriptors")
    for number in range(1, 1001):
        with master.connect() as client:
            master.post(("echo", None))
            client.sendall(b"%d" % number)
            assert client.recv(100) == b"%d" % number
        assert master.message() == "echoing"
        if number % 50 == 0:  # as its user has taken the answers
            master.write(header(FrameKind.ROOM, 0, number + 1))
    master.until_load(1000, 1000)
    master.write(header(FrameKind.ROOM, 0, 1001))
    assert order(master, "descriptors") == before
    assert not master.refused
    assert master.taken == list(range(1, 1001))


def test_a_worker_accepts_on_what_it_was_given(start: Start) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as other,
    ):
        addresses = [one.getsockname(), other.getsockname()]
        master = start("tests.worker.serves:echo", spread="shared")
        master.listen(one, other)
        master.ready()
        clients = [socket.create_connection(name[:2]) for name in addresses * 2]
        for client in clients:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
        master.until_load(4, 0)
        # One that another worker gives back comes, too.
        with master.connect() as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
        master.drain()
        for client in clients:
            client.sendall(b"still here")
            assert client.recv(100) == b"still here"
            client.close()
        assert master.ended() == (0, "")
        assert master.taken == [1]
        # What comes now waits for others.
        one.settimeout(5)
        with socket.create_connection(addresses[0]), one.accept()[0]:
            pass


@pytest.mark.parametrize("others", [False, True])
def test_what_waits_when_it_is_to_drain(start: Start, others: bool) -> None:  # noqa: FBT001
    with socket.create_server(("127.0.0.1", 0), backlog=20) as listener:
        master = start("tests.worker.serves:echo", spread="shared")
        master.listen(listener)
        master.ready()
        where = listener.getsockname()
        clients = [socket.create_connection(where, PATIENCE)]
        master.until_load(1, 0)
        master.process.send_signal(signal.SIGSTOP)
        clients += [socket.create_connection(where, PATIENCE) for _ in range(10)]
        if others:
            master.give_place()
        master.drain()
        master.process.send_signal(signal.SIGCONT)
        if not others:
            for client in clients:
                client.sendall(b"hello")
                assert client.recv(100) == b"hello"
        for client in clients:
            client.close()
        assert master.ended() == (0, "")
        opened, closed = master.load
        listener.setblocking(False)
        left = 0
        with suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
                left += 1
        assert opened == closed == len(clients) - left
        # One or two come in those turns of its loop in which it hears of its end.
        assert left > 5 if others else left == 0


def test_a_worker_has_the_listening_sockets_for_its_own_use(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        master = start("tests.worker.serves:introduce", spread="shared")
        master.listen(listener)
        master.ready()
        assert master.message()[3] == [listener.getsockname()]
        master.listen(listener)
        failure = master.failure()
        assert failure.summary == "ProtocolError: the pool sent LISTEN too late"


def test_a_worker_that_cannot_listen_has_not_started(start: Start) -> None:
    master = start(spread="shared", rlimits=(("RLIMIT_NOFILE", 20),))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        master.listen(*[listener] * 20)
        failure = master.failure()
        text = "there is no descriptor left for a socket to listen on"
        assert failure.summary == f"OSError: [Errno 24] {text}"
    assert master.worker.ended()[0] == 1


def test_a_pool_that_ends_before_its_worker_listens(start: Start) -> None:
    master = start(spread="shared")
    master.drain()
    failure = master.failure()
    text = "BrokenPipeError: the pool has ended before this worker could listen"
    assert failure.summary == text
    assert master.ended()[0] == 1
