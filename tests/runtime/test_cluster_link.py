"""How connections, messages and descriptors pass between a cluster and its workers."""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import pytest

from asyncpool._cluster.link import MAX_MESSAGE
from asyncpool._cluster.service import ConnectionBalancer, WorkerLink, WorkerMail
from asyncpool._core.figures import NUMBERS, RequestFigures
from asyncpool._engine.channel import READ_SIZE, Channel, DescriptorSocket
from asyncpool._engine.life_log import NamedLog
from asyncpool._wire.frames import HEADER_SIZE, Frame, FrameDecoder, FrameKind, header
from asyncpool._wire.messages import pack_numbers
from asyncpool.errors import ProtocolError
from tests.helpers.clusters import come_true
from tests.helpers.guards import few_descriptors, open_fds
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

if TYPE_CHECKING:
    from asyncpool._cluster.service import Service


class Master:
    """What of a cluster's master deals with lines, and nothing else.

    Attributes:
        listener: What it accepts on.
        address: Where that is.
    """

    def __init__(self, name: str = "c") -> None:
        self.loop = asyncio.get_running_loop()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.listener.setblocking(False)
        self.address = self.listener.getsockname()
        self.lines: dict[int, WorkerLink] = {}
        log = NamedLog(name, f"cluster {name}")
        self.balancer = ConnectionBalancer(log, [self.listener], self.lines)
        self.queues = WorkerMail(log)
        self.stopped = False
        self.workers: list[FakeWorker] = []
        self.guests: list[socket.socket] = []
        self._patience = patience()

    def worker(self, *, ready: bool = True) -> FakeWorker:
        """Return one more worker."""
        worker = FakeWorker(self, len(self.workers))
        self.workers.append(worker)
        if ready:
            worker.ready()
        return worker

    async def guest(self) -> socket.socket:
        """Return a connection to the cluster."""
        guest = socket.socket()
        self.guests.append(guest)
        guest.setblocking(False)
        await self.loop.sock_connect(guest, self.address)
        return guest

    # What a link asks of its service.

    def begin_drain(self, link: WorkerLink) -> None:
        assert not link.share.open
        self.balancer.dispatch()

    def count_load(self, link: WorkerLink, opened: int, closed: int, cut: int) -> None:
        link.share.load(opened, closed, cut)

    @property
    def waiting(self) -> int:
        return len(self.balancer.core.waiting)

    async def __aenter__(self) -> Self:
        await self._patience.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.die()
        self.balancer.close()
        self.queues.close()
        self.listener.close()
        for guest in self.guests:
            guest.close()
        await self._patience.__aexit__(kind, error, traceback)


class FakeWorker:
    """One worker.

    Attributes:
        slot: Its slot.
        peer: Its end of the line.
        trouble: How it has broken the protocol.
        link: The master's end.
    """

    def __init__(self, master: Master, slot: int) -> None:
        self.slot = slot
        self.trouble = ""
        self._master = master
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        sock = DescriptorSocket(ours)
        self.channel = Channel(
            master.loop,
            sock,
            buffer=memoryview(bytearray(READ_SIZE)),
            max_payload=MAX_MESSAGE,
            on_frames=self._on_frames,
            on_end=self._on_end,
        )
        self.link = WorkerLink(slot, 1, sock, self.channel, cast("Service", master))
        master.lines[slot] = self.link
        master.balancer.core.shares[slot] = self.link.share
        self.news = asyncio.Event()
        self.turn = asyncio.Event()
        self._decoder = FrameDecoder(max_payload=MAX_MESSAGE)
        self._frames: deque[Frame] = deque()
        self._arrived: deque[int] = deque()
        self._dead = False

    def ready(self) -> None:
        self.link.share.open = True
        self._master.balancer.dispatch()

    def die(self) -> None:
        """End, as a process does whose end is told when all is read."""
        if self._dead:
            return
        self._dead = True
        for fd in self._arrived:
            os.close(fd)
        self.peer.close()
        self.channel.read_rest()
        self.channel.close()
        del self._master.lines[self.slot]
        self.link.shut()
        self.link.end()
        self._master.balancer.gone(self.link)

    # What it hears.

    async def frame(self) -> tuple[Frame, int | None]:
        """Wait for the next frame; return it with the descriptor that came along."""
        while not self._frames:
            await self._readable()
            data, ancillary, _, _ = self.peer.recvmsg(READ_SIZE, socket.CMSG_SPACE(4))
            if not data:
                raise EOFError
            for _, _, fds in ancillary:
                self._arrived += array.array("i", fds)
            self._frames += self._decoder.feed(data)
        frame = self._frames.popleft()
        carries = frame.kind is FrameKind.HANDLE
        return frame, self._arrived.popleft() if carries else None

    async def handle(self) -> tuple[int, int]:
        """Wait for the next handle; return its number and its descriptor."""
        frame, fd = await self.frame()
        assert frame.kind is FrameKind.HANDLE
        assert fd is not None
        return frame.job, fd

    async def take(self) -> int:
        """Take the next connection, and close it; return its number."""
        number, fd = await self.handle()
        os.close(fd)
        self.say(FrameKind.TAKEN, number)
        return number

    async def _readable(self) -> None:
        loop, ready = self._master.loop, asyncio.Event()
        loop.add_reader(self.peer.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self.peer.fileno())

    # What it says.

    def say(self, kind: FrameKind, number: int = 0, payload: bytes = b"") -> None:
        self.peer.sendall(header(kind, len(payload), number) + payload)

    def load(self, opened: int, closed: int, cut: int = 0, *, lost: int = 0) -> None:
        self.say(FrameKind.LOAD, lost, pack_numbers((opened, closed, cut)))

    def figures(self, *refused: int) -> None:
        """Tell of so many refused requests, one report after the other."""
        for count in refused:
            figures = RequestFigures()
            figures.refused = count
            self.say(FrameKind.FIGURES, payload=pack_numbers(figures.pack()))

    def send(self, number: int, *fds: int, tag: int = 1) -> None:
        socket.send_fds(
            self.peer, [header(FrameKind.HANDLE, 0, number, number=tag)], fds
        )

    def send_slowly(self, number: int, fd: int) -> None:
        """Send the header of a handle in two pieces; the first brings the descriptor."""
        data = header(FrameKind.HANDLE, 0, number, number=1)
        socket.send_fds(self.peer, [data[: HEADER_SIZE // 2]], [fd])
        self.peer.sendall(data[HEADER_SIZE // 2 :])

    async def accused(self) -> str:
        """Wait until it has broken the protocol, and return how."""
        while not self.trouble:
            self.news.clear()
            await self.news.wait()
        return self.trouble

    async def heard(self) -> None:
        """Wait until the master has read something of it."""
        self.turn.clear()
        await self.turn.wait()

    # What a handle does.

    def _on_frames(self, frames: list[Frame]) -> None:
        if not self.trouble:
            try:
                self.link.on_frames(frames)
            except ProtocolError as error:
                self._accuse(str(error))
        self.turn.set()

    def _on_end(self, error: ProtocolError | None) -> None:
        if error is not None:
            self._accuse(str(error))
        self.link.shut()
        self.news.set()

    def _accuse(self, trouble: str) -> None:
        self.trouble = trouble
        self.link.shut()
        self.news.set()


pytestmark = BOTH_LOOPS


def queued(master: Master) -> int:
    """Count the connections in the kernel's queue, by Linux's tcp_info."""
    info = master.listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
    return int.from_bytes(info[24:28], "little")


def met(guest: socket.socket, fd: int) -> None:
    """Check that a descriptor is the other end of a connection; close it."""
    with socket.socket(fileno=fd) as sock:
        assert sock.getpeername() == guest.getsockname()


async def nothing_left(guests: list[socket.socket]) -> bytes:
    """Read what those get whose connections have ended; nobody else holds them."""
    loop = asyncio.get_running_loop()
    return b"".join([await loop.sock_recv(guest, 10) for guest in guests])


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


def refuse_accepts(monkeypatch: pytest.MonkeyPatch, *tries: int, error: int) -> None:
    """Have these of the tries to accept a connection fail; without any, all of them."""
    count, accept = 0, socket.socket.accept

    def accept_or_fail(sock: socket.socket) -> tuple[socket.socket, object]:
        nonlocal count
        count += 1
        if not tries or count in tries:
            raise OSError(error, os.strerror(error))
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", accept_or_fail)


# Connections.


@pytest.mark.logs("too-few-descriptors")
async def test_want_of_descriptors_is_a_pause_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_accepts(monkeypatch, 1, 2, 4, error=errno.EMFILE)
    async with Master("mine") as master:
        worker = master.worker()
        guest = await master.guest()
        number, fd = await worker.handle()
        met(guest, fd)
        worker.say(FrameKind.TAKEN, number)
        await master.guest()
        await worker.take()
    assert caplog.messages == [
        (
            "cluster mine accepts no connections, since there are too few descriptors: [Errno 24] "
            "Too many open files"
        )
    ], "of two episodes in a row the first"


async def test_what_came_back_is_handed_on_though_nothing_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Master() as master:
        worker = master.worker()
        guest = await master.guest()
        _, fd = await worker.handle()
        os.close(fd)
        refuse_accepts(monkeypatch, error=errno.ENFILE)
        await master.guest()
        other = master.worker()
        worker.die()
        _, fd = await other.handle()
        met(guest, fd)


@pytest.mark.parametrize("error", [errno.ECONNABORTED, errno.EPERM, errno.EPROTO])
async def test_a_guest_that_is_gone_again_is_no_trouble(
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_accepts(monkeypatch, 1, 2, error=error)
    async with Master() as master:
        worker = master.worker()
        guest = await master.guest()
        _, fd = await worker.handle()
        met(guest, fd)


async def test_who_has_left_need_not_be_found_a_worker() -> None:
    async with Master() as master:
        first, other = master.worker(), master.worker()
        with pair() as (_, theirs):
            sending = asyncio.create_task(master.balancer.send(0, theirs.fileno(), b""))
            number, fd = await first.handle()
            os.close(fd)
            before = len(open_fds())
            sending.cancel()
            await asyncio.wait([sending])
            assert len(open_fds()) == before - 1
            first.say(FrameKind.REFUSED, number)
            await first.heard()
            guest = await master.guest()
            _, fd = await other.handle()
            met(guest, fd)


async def test_the_end_does_not_wait_for_those_who_go_on_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncpool._cluster.acceptor._ACCEPTS_AT_END", 3)
    async with Master() as master:
        worker = master.worker()
        for _ in range(6):
            await master.guest()
        await come_true(lambda: queued(master) == 5)
        master.balancer.stop()
        assert queued(master) == 2
        for _ in range(4):
            await worker.take()
        assert master.balancer.core.served == 4


async def test_at_the_end_of_a_cluster_without_workers_connections_end() -> None:
    async with Master() as master:
        guests = [await master.guest() for _ in range(3)]
        worker = master.worker()
        _, fd = await worker.handle()
        os.close(fd)
        worker.die()
        assert master.waiting > 0
        master.balancer.stop()
        assert master.waiting == 0
        master.listener.close()
        for guest in guests:
            # One in the kernel's queue is reset.
            with suppress(ConnectionResetError):
                assert await nothing_left([guest]) == b""


# Handles that a worker sends.


async def test_a_socket_for_which_there_is_no_descriptor_is_refused() -> None:
    async with Master() as master:
        worker = master.worker()
        with pair() as (_, theirs):
            with no_descriptors():
                worker.send(1, theirs.fileno())
                frame, _ = await worker.frame()
            assert (frame.kind, frame.job) == (FrameKind.REFUSED, 1)
            # The next one is not mistaken for it.
            worker.send_slowly(2, theirs.fileno())
            frame, _ = await worker.frame()
            assert (frame.kind, frame.job) == (FrameKind.TAKEN, 2)
            link, sock, _ = await anext(master.queues.sockets)
            with sock:
                assert (link.slot, sock.get_inheritable()) == (0, False)
                assert os.fstat(sock.fileno()) == os.fstat(theirs.fileno())
        folder = os.open("/", os.O_RDONLY)
        for number in range(3, 21):
            worker.send(number, folder)
            assert (await worker.frame())[0].kind is FrameKind.REFUSED
        os.close(folder)  # the guards find out whether the copies were closed


@pytest.mark.logs("connections-lost")
async def test_connections_that_came_back_and_were_lost_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Master() as master:
        worker = master.worker()
        with pair() as (ours, theirs):
            with no_descriptors():
                for n in (1, 2):
                    worker.send(n, theirs.fileno(), tag=0)
                await come_true(lambda: worker.link.lost == 2)
            theirs.close()
            assert ours.recv(1) == b""
        worker.die()
        assert master.balancer.lost == 2
    assert caplog.messages == [
        (
            "cluster c: 2 connections of worker 0 were closed, since there were too few descriptors "
            "to hand them on"
        )
    ]


async def test_connections_that_a_worker_could_not_give_back_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Master() as master:
        worker = master.worker()
        for lost in (0, 1, 250, 250):
            worker.load(300, 0, lost=lost)
            await worker.heard()
        assert (worker.link.lost, master.balancer.lost) == (250, 250)
        worker.die()
        assert master.balancer.lost == 250
    [text] = caplog.messages
    assert text.startswith("cluster c: 250 connections of worker 0 were ")


async def test_a_worker_that_leaves_waits_while_descriptors_are_scarce() -> None:
    async with Master() as master:
        leaves, other = master.worker(), master.worker()
        leaves.load(9, 0)
        await leaves.heard()
        leaves.link.shut()
        with pair() as (_, theirs), few_descriptors(40):
            for n in (1, 2, 3):
                leaves.send(n, theirs.fileno(), tag=0)
            for n in (1, 2, 3):
                number, fd = await other.handle()
                os.close(fd)
                for _ in range(5):  # in which it would read another one
                    await asyncio.sleep(0)
                assert leaves.link._received == n
                other.say(FrameKind.TAKEN, number)


def send_twice(worker: FakeWorker, fd: int) -> None:
    for _ in range(2):
        worker.send(1, fd)


def lose_fewer(worker: FakeWorker, _: int) -> None:
    worker.load(2, 0, lost=2)
    worker.load(2, 0, lost=1)


OFFENCES: dict[str, tuple[Callable[[FakeWorker, int], object], str]] = {
    "no descriptor": (
        lambda w, _: w.say(FrameKind.HANDLE, 1),
        "it sent a handle without a descriptor",
    ),
    "a number twice": (send_twice, "it sent handle 1 after 1"),
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
    "ROOM for nothing": (
        lambda w, _: w.say(FrameKind.ROOM, 1),
        "it took 1 messages, after 0 of 0",
    ),
    "a message too many": (
        lambda w, _: w.peer.sendall(header(FrameKind.MESSAGE, 0) * 65),
        "it sent a message beyond the 64 for which there is room",
    ),
    "LOAD of half a number": (
        lambda w, _: w.say(FrameKind.LOAD, payload=b"1234567"),
        "a list of numbers cannot be read",
    ),
    "LOAD that has lost fewer": (lose_fewer, "it lost 1 connections, after 2"),
    "a connection from nowhere": (
        lambda w, fd: w.send(1, fd, tag=0),
        "it gave back a connection that it never had",
    ),
    "a frame of a pool's": (
        lambda w, _: w.say(FrameKind.VALUE, 1),
        "it sent VALUE on its link",
    ),
    "figures that are too long": (
        lambda w, _: w.say(FrameKind.FIGURES, payload=bytes(8 * NUMBERS + 8)),
        f"its figures have {8 * NUMBERS + 8} bytes",
    ),
    "figures that are less than before": (
        lambda w, _: w.figures(2, 1),
        "its figures are less than before",
    ),
}


@pytest.mark.parametrize("offence", OFFENCES)
async def test_offences(offence: str) -> None:
    commit, trouble = OFFENCES[offence]
    async with Master() as master:
        with pair() as (_, theirs):
            worker = master.worker()
            before = len(open_fds())
            commit(worker, theirs.fileno())
            assert trouble in await worker.accused()
            assert not worker.link.share.open
            assert master.balancer.core.choose(0.0) is None
            worker.die()
            # Nothing that it has sent is left, but what was kept before the offence.
            assert len(open_fds()) == before - 2 + len(master.queues.sockets)


async def test_descriptors_hidden_in_a_long_message_are_closed() -> None:
    async with Master() as master:
        worker = master.worker()
        with pair() as (_, theirs):
            before = len(open_fds())
            worker.peer.sendall(header(FrameKind.MESSAGE, MAX_MESSAGE))
            for _ in range(30):
                socket.send_fds(worker.peer, [b"x"], [theirs.fileno()])
                await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(worker.peer, bytes(MAX_MESSAGE - 30))
            assert await worker.accused() == "it sent descriptors with no handle"
            assert len(open_fds()) <= before + 2


async def test_an_answer_before_the_handle_was_sent_is_no_answer() -> None:
    """Or its descriptor would be closed, and another one be sent by that number."""
    async with Master() as master:
        worker = master.worker()
        worker.channel.put(bytes(3_000_000))
        worker.channel.flush()
        await master.guest()
        await come_true(lambda: master.balancer.core.shares[0].connections == 1)
        assert worker.channel.unsent_descriptors == 1
        worker.say(FrameKind.TAKEN, 1)
        assert "handle 1, which was not sent" in await worker.accused()


async def test_who_does_not_read_its_answers_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncpool._cluster.service._MOST_UNSENT", 1000)
    async with Master() as master:
        worker = master.worker()
        worker.channel.put(bytes(500_000))  # more than the socket takes
        worker.channel.flush()
        with pair() as (_, theirs):
            worker.send(1, theirs.fileno())
            trouble = await worker.accused()
    assert trouble == "it does not read the answers to its handles"


async def test_too_many_descriptors_on_their_way_are_sent_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_fds, tries, refused = socket.send_fds, 0, asyncio.Event()

    def refuse(sock: socket.socket, data: list[bytes], fds: list[int]) -> int:
        nonlocal tries
        tries += 1
        if tries != 4:
            refused.set()
            raise OSError(errno.ETOOMANYREFS, "Too many references")
        return send_fds(sock, data, fds)

    monkeypatch.setattr(socket, "send_fds", refuse)
    async with Master() as master:
        worker = master.worker()
        await master.guest()
        number, fd = await worker.handle()
        os.close(fd)
        assert (number, tries) == (1, 4)
        worker.say(FrameKind.TAKEN, number)
        refused.clear()
        await master.guest()
        await refused.wait()
        retry = worker.channel._retry
        was_set = retry.is_set
        worker.die()
        assert (was_set, retry.is_set) == (True, False), "who is gone is tried no more"
        assert master.waiting == 1


async def test_a_socket_closes_the_descriptors_that_nobody_took() -> None:
    ours, theirs = socket.socketpair()
    link = DescriptorSocket(ours)
    with theirs, pair() as (_, other):
        before = len(open_fds())
        socket.send_fds(theirs, [b"x"], [other.fileno()])
        assert link.recv_into(memoryview(bytearray(10))) == 1
        assert len(open_fds()) == before + 1
        link.close()
        assert len(open_fds()) == before - 1
