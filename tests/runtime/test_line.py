"""The line to a worker that may say anything: what is believed, and what is an offence."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from asyncpool._core.cluster.link_rules import MOST_MESSAGES
from asyncpool._core.figures.request_figures import MOST_NUMBERS
from asyncpool._core.wire.frames import Frame, FrameKind, header
from asyncpool._core.wire.messages import pack_numbers
from asyncpool._runtime.channel.descriptor_socket import DescriptorSocket
from asyncpool._runtime.cluster.link import MAX_MESSAGE
from tests.helpers.clusters import come_true
from tests.helpers.guards import few_descriptors, open_fds
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.runtime.fake_worker import FakeWorker, Master

pytestmark = BOTH_LOOPS


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Have this process open no more."""
    kept: list[int] = []
    try:
        with few_descriptors(8):
            while True:
                try:
                    kept.append(os.dup(0))
                except OSError:
                    break
            yield
    finally:
        for fd in kept:
            os.close(fd)


# Handles that it sends.


async def test_a_socket_that_it_sends_is_kept_and_acknowledged() -> None:
    with Master() as master, pair() as (ours, theirs):
        worker = master.worker()
        async with patience():
            for n, send in enumerate((worker.send_one, worker.send_slowly), 1):
                send(n, theirs.fileno())
                frame, _ = await worker.frame()
                assert (frame.kind, frame.job) == (FrameKind.TAKEN, n)
                slot, sock, _ = await anext(master.mail.sockets)
                with sock:
                    assert slot == 0
                    assert not sock.get_inheritable()
                    assert os.fstat(sock.fileno()) == os.fstat(theirs.fileno())
        assert ours.fileno() >= 0


async def test_many_sockets_in_a_row_find_their_frames() -> None:
    pairs = [socket.socketpair() for _ in range(40)]
    with Master() as master:
        worker = master.worker()
        for n, (_, theirs) in enumerate(pairs, 1):
            worker.send(n, theirs.fileno())
        async with patience():
            for n, (_, theirs) in enumerate(pairs, 1):
                assert (await worker.frame())[0].job == n
                _, sock, _ = await anext(master.mail.sockets)
                with sock:
                    assert os.fstat(sock.fileno()) == os.fstat(theirs.fileno())
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


async def test_a_socket_for_which_there_is_no_descriptor_is_refused() -> None:
    with Master() as master, pair() as (_, theirs):
        worker = master.worker()
        async with patience():
            with no_descriptors():
                worker.send(1, theirs.fileno())
                frame, _ = await worker.frame()
            assert (frame.kind, frame.job) == (FrameKind.REFUSED, 1)
            # The next one is not mistaken for it.
            worker.send(2, theirs.fileno())
            frame, _ = await worker.frame()
            assert (frame.kind, frame.job) == (FrameKind.TAKEN, 2)
            assert len(master.mail.sockets) == 1


@pytest.mark.logs("connections-lost")
async def test_connections_that_came_back_and_were_lost_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Master() as master, pair() as (ours, theirs):
        worker = master.worker()
        async with patience():
            with no_descriptors():
                for n in (1, 2):
                    worker.send(n, theirs.fileno(), tag=0)
                await come_true(lambda: worker.link.lost == 2)
        theirs.close()
        assert ours.recv(1) == b""
        worker.die()
    [record] = caplog.records
    text = "2 connections of worker 0 were closed, since there were too few descriptors to hand them on"
    assert record.getMessage() == f"cluster c: {text}"
    assert record.levelname == "ERROR"
    assert master.balancer.lost == 2


async def test_connections_that_a_worker_could_not_give_back_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Master() as master:
        worker = master.worker()
        async with patience():
            for lost in (0, 1, 250, 250):
                worker.load(300, 0, lost=lost)
                await worker.heard()
            assert (worker.link.lost, master.balancer.lost) == (250, 250)
        worker.die()
        assert master.balancer.lost == 250
    [record] = caplog.records
    assert record.getMessage().startswith(
        "cluster c: 250 connections of worker 0 were "
    )


async def test_a_worker_that_leaves_waits_while_descriptors_are_scarce() -> None:
    with Master() as master, pair() as (_, theirs):
        leaves, other = master.worker(), master.worker()
        leaves.load(9, 0)
        async with patience():
            await leaves.heard()
            leaves.link.shut()
            with few_descriptors(40):
                for n in (1, 2, 3):
                    leaves.send(n, theirs.fileno(), tag=0)
                for n in (1, 2, 3):
                    number, fd = await other.handle()
                    os.close(fd)
                    for _ in range(5):  # in which it would read another one
                        await asyncio.sleep(0)
                    assert leaves.link._received == n
                    other.say(FrameKind.TAKEN, number)


async def test_what_is_no_socket_is_a_file() -> None:
    with Master() as master:
        worker = master.worker()
        reading, writing = os.pipe()
        worker.send(1, reading)
        async with patience():
            assert (await worker.frame())[0].kind is FrameKind.TAKEN
            slot, file, _ = await anext(master.mail.files)
        os.close(reading)
        with file:
            assert os.write(writing, b"x") == 1
            assert (slot, file.read(1)) == (0, b"x")
        with pytest.raises(BrokenPipeError):
            os.write(writing, b"x")
        os.close(writing)


async def test_a_directory_is_refused() -> None:
    with Master() as master:
        worker = master.worker()
        folder = os.open("/", os.O_RDONLY)
        async with patience():
            for number in range(1, 21):
                worker.send(number, folder)
                assert (await worker.frame())[0].kind is FrameKind.REFUSED
        os.close(folder)
    # The guards find out whether the copies were closed.


def send_twice(worker: FakeWorker, fd: int) -> None:
    for _ in range(2):
        worker.send(1, fd)


def lose_fewer(worker: FakeWorker, _: int) -> None:
    worker.load(2, 0, lost=2)
    worker.load(2, 0, lost=1)


def go_back(worker: FakeWorker, _: int) -> None:
    for opened in (5, 4):
        worker.load(opened, 3)


def flood(worker: FakeWorker, _: int) -> None:
    for _n in range(MOST_MESSAGES + 1):
        worker.say(FrameKind.MESSAGE, payload=b"x")


OFFENCES: dict[str, tuple[Callable[[FakeWorker, int], object], str]] = {
    "no descriptor": (
        lambda w, _: w.say(FrameKind.HANDLE, 1),
        "it sent a handle without a descriptor",
    ),
    "a number twice": (
        send_twice,
        "it sent handle 1 after 1",
    ),
    "a number left out": (lambda w, fd: w.send(2, fd), "it sent handle 2 after 0"),
    "two descriptors": (
        lambda w, fd: w.send(1, fd, fd),
        "it sent descriptors with no handle",
    ),
    "descriptors with no handle": (
        lambda w, fd: [
            socket.send_fds(w.peer, [header(FrameKind.LOAD, 24) + bytes(24)], [fd])
            for _ in range(9)
        ],
        "it sent descriptors with no handle",
    ),
    "TAKEN for nothing": (
        lambda w, _: w.say(FrameKind.TAKEN, 1),
        "it answered for handle 1, which was not sent",
    ),
    "REFUSED for nothing": (
        lambda w, _: w.say(FrameKind.REFUSED, 7),
        "it answered for handle 7, which was not sent",
    ),
    "ROOM for what was not sent": (
        lambda w, _: w.say(FrameKind.ROOM, 1),
        "it took 1 messages, after 0 of 0",
    ),
    "LOAD of one number": (
        lambda w, _: w.say(FrameKind.LOAD, payload=pack_numbers((1,))),
        "its load has 1 numbers",
    ),
    "LOAD of half a number": (
        lambda w, _: w.say(FrameKind.LOAD, payload=b"1234567"),
        "a list of numbers cannot be read",
    ),
    "LOAD that has lost fewer": (
        lose_fewer,
        "it lost 1 connections, after 2",
    ),
    "LOAD that goes back": (
        go_back,
        "4 connections were opened and 3 closed, after 5 and 3",
    ),
    "more closed than opened": (
        lambda w, _: w.load(1, 2),
        "1 connections were opened and 2 closed, after 0 and 0",
    ),
    "more cut off than opened": (
        lambda w, _: w.load(2, 1, 3),
        "3 connections of 2 are cut off, 1 being closed, after 0 of 0",
    ),
    "a connection from nowhere": (
        lambda w, fd: w.send(1, fd, tag=0),
        "it gave back a connection that it never had",
    ),
    "a frame of a pool's": (
        lambda w, _: w.say(FrameKind.VALUE, 1),
        "it sent VALUE on its link",
    ),
    "LISTEN": (lambda w, _: w.say(FrameKind.LISTEN), "it sent LISTEN on its link"),
    "no frame": (lambda w, _: w.peer.sendall(b"x" * 100), "speaks version 120"),
    "a message that is too long": (
        lambda w, _: w.peer.sendall(header(FrameKind.MESSAGE, MAX_MESSAGE + 1)),
        f"a payload of {MAX_MESSAGE + 1} bytes exceeds the limit of {MAX_MESSAGE}",
    ),
    "figures that are too long": (
        lambda w, _: w.say(FrameKind.FIGURES, payload=bytes(8 * MOST_NUMBERS + 8)),
        f"its figures have {8 * MOST_NUMBERS + 8} bytes",
    ),
    "figures that are none": (
        lambda w, _: w.say(FrameKind.FIGURES, payload=bytes(16)),
        "durations are cut short",
    ),
    "figures that are less than before": (
        lambda w, _: w.figures(2, 1),
        "its figures are less than before",
    ),
    "too many messages": (
        flood,
        "it sent a message beyond the 64 for which there is room",
    ),
}


@pytest.mark.parametrize("offence", OFFENCES)
async def test_offences(offence: str) -> None:
    commit, trouble = OFFENCES[offence]
    with Master() as master, pair() as (ours, theirs):
        worker = master.worker()
        before = len(open_fds())
        commit(worker, theirs.fileno())
        async with patience():
            assert trouble in await worker.accused()
        assert not worker.link.open
        assert master.balancer.core.choose(0.0) is None
        worker.die()
        # Nothing that it has sent is left, but what was kept before the offence.
        kept = len(master.mail.sockets)
        assert len(open_fds()) == before - 2 + kept
        assert ours.fileno() >= 0


async def test_descriptors_hidden_in_a_long_message_are_closed() -> None:
    with Master() as master, pair() as (_, theirs):
        worker = master.worker()
        before = len(open_fds())
        size = MAX_MESSAGE
        worker.peer.sendall(header(FrameKind.MESSAGE, size))
        async with patience():
            for _ in range(30):
                socket.send_fds(worker.peer, [b"x"], [theirs.fileno()])
                await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(worker.peer, bytes(size - 30))
            assert await worker.accused() == "it sent descriptors with no handle"
        assert len(open_fds()) <= before + 2


async def test_an_answer_before_the_handle_was_sent_is_no_answer() -> None:
    """Or its descriptor would be closed, and another one be sent by that number."""
    with Master() as master:
        worker = master.worker()
        worker.channel.put(bytes(3_000_000))
        worker.channel.flush()
        await master.guest()
        async with patience():
            await come_true(lambda: master.balancer.core.connections(0) == 1)
            assert worker.channel.unsent_descriptors == 1
            worker.say(FrameKind.TAKEN, 1)
            assert "handle 1, which was not sent" in await worker.accused()


# Messages.


async def test_messages_are_kept_for_whoever_asks() -> None:
    with Master() as master:
        worker = master.worker()
        large = bytes(range(256)) * (MAX_MESSAGE // 256)
        for payload in (b"one", large, b"three"):
            loop = asyncio.get_running_loop()
            data = header(FrameKind.MESSAGE, len(payload)) + payload
            await loop.sock_sendall(worker.peer, data)
        async with patience():
            for payload in (b"one", large, b"three"):
                link, found = await anext(master.mail.messages)
                assert link is worker.link
                assert found == payload
                assert type(found) is bytes


async def test_room_is_told_of_before_there_is_none() -> None:
    with Master() as master:
        worker = master.worker()
        async with patience():
            for round_ in (1, 2):
                for _ in range(MOST_MESSAGES // 2):
                    worker.say(FrameKind.MESSAGE, payload=b"x")
                for _ in range(MOST_MESSAGES // 2):
                    link, _ = await anext(master.mail.messages)
                    link.consumed()
                frame, _ = await worker.frame()
                assert (frame.kind, frame.job) == (
                    FrameKind.ROOM,
                    round_ * MOST_MESSAGES // 2,
                )


async def test_who_sends_waits_for_room_in_turn() -> None:
    with Master() as master:
        worker = master.worker()
        sent = [
            asyncio.create_task(worker.link.send(f"{n}".encode())) for n in range(70)
        ]
        async with patience():
            for n in range(MOST_MESSAGES):
                frame, _ = await worker.frame()
                assert frame.payload == f"{n}".encode()
            assert [task.done() for task in sent].count(False) == 6
            worker.say(FrameKind.ROOM, 2)
            assert [(await worker.frame())[0].payload for _ in range(2)] == [
                b"64",
                b"65",
            ]
            sent[66].cancel()
            worker.say(FrameKind.ROOM, 3)
            assert (await worker.frame())[0].payload == b"67"
            worker.say(FrameKind.ROOM, 2)
            assert await worker.accused() == "it took 2 messages, after 3 of 67"
            assert [await task for task in sent[:66] + sent[67:68]] == [True] * 67
            assert [await task for task in sent[68:]] == [False] * 2


async def test_nothing_is_sent_to_who_is_not_ready() -> None:
    with Master() as master:
        worker = master.worker(ready=False)
        assert not await worker.link.send(b"x")
        worker.ready()
        assert await worker.link.send(b"x")


async def test_who_does_not_read_its_answers_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncpool._runtime.cluster.link._MOST_UNSENT", 1000)
    with Master() as master, pair() as (_, theirs):
        worker = master.worker()
        worker.channel.put(bytes(500_000))  # more than the socket takes
        worker.channel.flush()
        async with patience():
            worker.send(1, theirs.fileno())
            assert (
                await worker.accused() == "it does not read the answers to its handles"
            )


# The end.


async def test_who_is_to_leave_is_told_that_others_serve() -> None:
    with Master() as master:
        worker, other = master.worker(), master.worker()
        worker.link.shut()
        worker.link.shut()
        worker.channel.half_close()
        async with patience():
            assert (await worker.frame())[0].kind is FrameKind.RETURN
            with pytest.raises(EOFError):
                await worker.frame()
            master.stopped = True
            other.link.shut()
            other.channel.half_close()
            with pytest.raises(EOFError):
                await other.frame()


async def test_one_that_leaves_is_answered_nothing_more() -> None:
    with Master() as master, pair() as (_, theirs):
        worker = master.worker()
        worker.link.shut()
        worker.send(1, theirs.fileno())
        for _ in range(MOST_MESSAGES // 2):
            worker.say(FrameKind.MESSAGE, payload=b"x")
        async with patience():
            for _ in range(MOST_MESSAGES // 2):
                link, _ = await anext(master.mail.messages)
                link.consumed()
            assert len(master.mail.sockets) == 1
            worker.channel.half_close()
            assert (await worker.frame())[0].kind is FrameKind.RETURN
            with pytest.raises(EOFError):
                await worker.frame()


async def test_listening_sockets_come_with_their_number() -> None:
    with Master() as master:
        worker = master.worker()
        before = len(open_fds())
        with pair() as (one, two):
            worker.link.listen([one, two])
            async with patience():
                for sock in (one, two):
                    frame, fd = await worker.frame()
                    assert fd is not None
                    assert frame == Frame(FrameKind.LISTEN, 0, 0, 2, b"")
                    assert os.fstat(fd) == os.fstat(sock.fileno())
                    os.close(fd)
        assert len(open_fds()) == before


# Descriptors on their way.


async def test_too_many_descriptors_on_their_way_are_sent_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []
    send_fds = socket.send_fds

    def refuse(sock: socket.socket, data: list[bytes], fds: list[int]) -> int:
        tries.append(len(tries))
        if len(tries) < 4:
            raise OSError(errno.ETOOMANYREFS, "Too many references")
        return send_fds(sock, data, fds)

    with Master() as master:
        worker = master.worker()
        monkeypatch.setattr(socket, "send_fds", refuse)
        await master.guest()
        async with patience():
            number, fd = await worker.handle()
        os.close(fd)
        assert (number, len(tries)) == (1, 4)
        assert not worker.trouble


async def test_a_closed_channel_tries_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = asyncio.Event()

    def refuse(*_: object) -> int:
        refused.set()
        raise OSError(errno.ETOOMANYREFS, "Too many references")

    monkeypatch.setattr(socket, "send_fds", refuse)
    with Master() as master:
        worker = master.worker()
        await master.guest()
        async with patience():
            await refused.wait()
        retry = worker.channel._retry
        was_set = retry.is_set
        worker.die()
        assert (was_set, retry.is_set) == (True, False)
        assert master.waiting == 1


async def test_a_line_socket_closes_what_nobody_took() -> None:
    ours, theirs = socket.socketpair()
    link = DescriptorSocket(ours)
    with theirs, pair() as (kept, other):
        before = len(open_fds())
        socket.send_fds(theirs, [b"x"], [other.fileno()])
        assert link.recv_into(memoryview(bytearray(10))) == 1
        assert len(open_fds()) == before + 1
        link.close()
        assert len(open_fds()) == before - 1
        assert kept.fileno() >= 0
