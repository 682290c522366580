"""Connections on their way to workers that take them, refuse them, or die."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from contextlib import suppress

import pytest

from asyncpool._core.cluster.balancing import WINDOW
from asyncpool._core.cluster.link_rules import HandleTag
from asyncpool._core.wire.frames import FrameKind
from asyncpool._runtime.cluster.balancer import ConnectionBalancer
from asyncpool.errors import NoWorkerError
from tests.helpers.clusters import come_true
from tests.helpers.guards import open_fds
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.runtime.fake_worker import FakeWorker, Master

pytestmark = BOTH_LOOPS


def queued(master: Master) -> int:
    """Count the connections in the kernel's queue, by Linux's tcp_info."""
    info = master.listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
    return int.from_bytes(info[24:28], "little")


async def met(guest: socket.socket, fd: int) -> None:
    """Check that a descriptor is the other end of a connection; close it."""
    with socket.socket(fileno=fd) as sock:
        assert sock.getpeername() == guest.getsockname()


async def handed_over(master: Master, worker: FakeWorker) -> tuple[socket.socket, int]:
    """Have a worker take a new connection; return both ends of it."""
    guest = await master.guest()
    number, fd = await worker.handle()
    worker.say(FrameKind.TAKEN, number)
    await worker.heard()
    return guest, fd


async def test_connections_are_handed_over_and_let_go_of_when_taken() -> None:
    with Master() as master:
        worker = master.worker()
        async with patience():
            before = len(open_fds())
            for n in range(1, 4):
                guest = await master.guest()
                number, fd = await worker.handle()
                assert number == n
                # Ours, theirs, and the one that they have been given.
                assert len(open_fds()) == before + 3
                await met(guest, fd)
                worker.say(FrameKind.TAKEN, number)
                await worker.heard()
                guest.close()
                assert len(open_fds()) == before
            assert master.balancer.core.served == 3


async def test_nothing_is_accepted_while_nobody_could_have_it() -> None:
    with Master() as master:
        async with patience():
            first = await master.guest()
            worker = master.worker(ready=False)
            await asyncio.sleep(0)
            assert queued(master) == 1
            assert not master.balancer._accepting, "nor is it looked at"
            worker.ready()
            number, fd = await worker.handle()
            await met(first, fd)
            worker.say(FrameKind.TAKEN, number)
            await worker.heard()
            worker.link.shut()
            await master.guest()
            await asyncio.sleep(0)
            assert queued(master) == 1
            assert not master.balancer._accepting
            other = master.worker()
            assert await other.take() == 1


async def test_a_window_is_all_that_is_accepted_at_once() -> None:
    with Master() as master:
        worker = master.worker()
        async with patience():
            guests = [await master.guest() for _ in range(WINDOW + 5)]
            await come_true(lambda: queued(master) == 5)
            assert master.balancer.core.connections(0) == WINDOW
            for n in range(WINDOW + 5):
                number, fd = await worker.handle()
                await met(guests[n], fd)
                worker.say(FrameKind.TAKEN, number)
            assert queued(master) == 0


async def test_one_that_is_slow_is_passed_over() -> None:
    with Master() as master:
        slow, quick = master.worker(), master.worker()
        async with patience():
            for _ in range(2 * WINDOW):
                await master.guest()
            for _ in range(WINDOW):
                await quick.take()
            # Both have as many, and the slow one would be next.
            guests = [await master.guest() for _ in range(3)]
            for guest in guests:
                number, fd = await quick.handle()
                await met(guest, fd)
                quick.say(FrameKind.TAKEN, number)
            assert master.balancer.core.connections(slow.slot) == WINDOW


@pytest.mark.parametrize("taken", [0, 1, 3])
async def test_what_a_dead_worker_has_not_taken_goes_to_another(taken: int) -> None:
    with Master() as master:
        worker = master.worker()
        async with patience():
            guests = [await master.guest() for _ in range(3)]
            numbers = []
            for guest in guests:
                number, fd = await worker.handle()
                await met(guest, fd)
                numbers.append(number)
            for number in numbers[:taken]:
                worker.say(FrameKind.TAKEN, number)
            # Its last words are read, and count.
            worker.die()
            assert master.waiting == 3 - taken
            late = await master.guest()
            other = master.worker()
            for guest in [*guests[taken:], late]:
                number, fd = await other.handle()
                await met(guest, fd)
                other.say(FrameKind.TAKEN, number)
            assert await nothing_left(guests[:taken]) == b""


async def nothing_left(guests: list[socket.socket]) -> bytes:
    """Read what those get whose connections have ended; nobody else holds them."""
    loop = asyncio.get_running_loop()
    return b"".join([await loop.sock_recv(guest, 10) for guest in guests])


async def test_what_a_broken_line_did_not_take_goes_to_another() -> None:
    with Master() as master:
        worker = master.worker()
        worker.peer.close()
        async with patience():
            guest = await master.guest()
            await come_true(lambda: not worker.link.open)
            worker.die()
            other = master.worker()
            _, fd = await other.handle()
            await met(guest, fd)


async def test_a_refused_connection_goes_to_another() -> None:
    with Master() as master:
        full, other = master.worker(), master.worker()
        async with patience():
            guest = await master.guest()
            number, fd = await full.handle()
            os.close(fd)
            full.say(FrameKind.REFUSED, number)
            _, fd = await other.handle()
            await met(guest, fd)
            assert master.balancer.core.refused == 1


async def test_a_refused_connection_waits_for_the_only_worker() -> None:
    with Master() as master:
        worker = master.worker()
        async with patience():
            guest = await master.guest()
            for n in range(1, 4):
                number, fd = await worker.handle()
                assert number == n
                os.close(fd)
                worker.say(FrameKind.REFUSED, number)
            number, fd = await worker.handle()
            await met(guest, fd)


async def test_a_connection_that_is_given_back_goes_to_another() -> None:
    with Master() as master:
        worker = master.worker()
        async with patience():
            guest, fd = await handed_over(master, worker)
            worker.link.shut()
            other = master.worker()
            worker.send(1, fd, tag=0)
            os.close(fd)
            _, fd = await other.handle()
            await met(guest, fd)


async def test_a_connection_that_nobody_will_have_is_closed() -> None:
    with Master() as master:
        worker = master.worker()
        async with patience():
            guest, fd = await handed_over(master, worker)
            master.balancer.stop()
            worker.send(1, fd, tag=0)
            os.close(fd)
            assert await nothing_left([guest]) == b""


# This process has no descriptors.


@pytest.mark.logs("too-few-descriptors")
async def test_want_of_descriptors_is_a_pause_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0
    accept = socket.socket.accept

    def fail(sock: socket.socket) -> tuple[socket.socket, object]:
        nonlocal tries
        tries += 1
        if tries in {1, 2, 4}:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", fail)
    with Master("mine") as master:
        worker = master.worker()
        async with patience():
            guest = await master.guest()
            _, fd = await worker.handle()
            await met(guest, fd)
            await master.guest()
            await worker.take()
        text = (
            "cluster mine accepts no connections, since there are too few descriptors: [Errno 24] "
            "Too many open files"
        )
        found = [(r.levelno, r.getMessage()) for r in caplog.records]
        assert found == [(logging.ERROR, text)] * 2, "two episodes"


async def test_what_came_back_is_handed_on_though_nothing_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Master() as master:
        worker = master.worker()
        async with patience():
            guest = await master.guest()
            _, fd = await worker.handle()
            os.close(fd)

            def fail(_: socket.socket) -> None:
                raise OSError(errno.ENFILE, "Too many open files in system")

            monkeypatch.setattr(socket.socket, "accept", fail)
            await master.guest()
            await come_true(lambda: master.balancer._pause is not None)
            other = master.worker()
            worker.die()
            _, fd = await other.handle()
            await met(guest, fd)


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EPERM, errno.EPROTO])
async def test_a_guest_that_is_gone_again_is_no_trouble(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    accept = socket.socket.accept

    def fail(sock: socket.socket) -> tuple[socket.socket, object]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(number, os.strerror(number))
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", fail)
    with Master() as master:
        worker = master.worker()
        async with patience():
            guest = await master.guest()
            _, fd = await worker.handle()
            await met(guest, fd)


# Sockets of users.


async def test_a_socket_goes_to_whom_it_is_meant_for() -> None:
    with Master() as master:
        master.worker()
        worker = master.worker()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            before = len(open_fds())
            sending = asyncio.create_task(master.balancer.send(1, theirs.fileno(), b""))
            async with patience():
                frame, fd = await worker.frame()
                assert (frame.kind, frame.number) == (FrameKind.HANDLE, HandleTag.USER)
                assert fd is not None
                assert os.fstat(fd) == os.fstat(theirs.fileno())
                os.close(fd)
                assert not sending.done()
                worker.say(FrameKind.TAKEN, frame.job)
                await sending
            assert len(open_fds()) == before
            assert master.balancer.core.connections(1) == 0


@pytest.mark.parametrize("how", ["refused", "dead"])
async def test_a_socket_is_tried_with_each_worker_once(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncpool._core.cluster.balancing.PASSED_OVER", 0.0)
    with Master() as master:
        workers = [master.worker() for _ in range(3)]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            before = len(open_fds())
            sending = asyncio.create_task(master.balancer.send(1, theirs.fileno(), b""))
            tried: list[FakeWorker] = []
            async with patience():
                for slot in (1, 0, 2):
                    worker = workers[slot]
                    number, fd = await worker.handle()
                    os.close(fd)
                    tried.append(worker)
                    if how == "refused":
                        worker.say(FrameKind.REFUSED, number)
                    else:
                        worker.die()
                with pytest.raises(NoWorkerError) as caught:
                    await sending
            assert caught.value.worker is None
            assert len(open_fds()) == before - (2 * 3 if how == "dead" else 0)


async def test_who_has_left_need_not_be_found_a_worker() -> None:
    with Master() as master:
        first, other = master.worker(), master.worker()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            sending = asyncio.create_task(master.balancer.send(0, theirs.fileno(), b""))
            async with patience():
                number, fd = await first.handle()
                os.close(fd)
                sending.cancel()
                await asyncio.wait([sending])
                before = len(open_fds())
                first.say(FrameKind.REFUSED, number)
                await first.heard()
                assert len(open_fds()) == before - 1
                guest = await master.guest()
                _, fd = await other.handle()
                await met(guest, fd)


# The end.


async def test_at_the_end_all_that_has_come_is_handed_over() -> None:
    with Master() as master:
        worker, other = master.worker(), master.worker()
        async with patience():
            for _ in range(3 * WINDOW):
                await master.guest()
            await come_true(lambda: queued(master) == WINDOW)
            master.balancer.stop()
            master.listener.close()
            worker.link.shut()
            other.link.shut()
            taken = 0
            for one in (worker, other):
                for _ in range(3 * WINDOW // 2):
                    await one.take()
                    taken += 1
            assert taken == 3 * WINDOW


async def test_the_end_does_not_wait_for_those_who_go_on_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncpool._runtime.cluster.balancer._ACCEPTS_AT_END", 3)
    with Master() as master:
        worker = master.worker()
        async with patience():
            for _ in range(WINDOW + 5):
                await master.guest()
            await come_true(lambda: queued(master) == 5)
            master.balancer.stop()
            assert queued(master) == 2
            for _ in range(WINDOW + 3):
                await worker.take()
            assert master.balancer.core.served == WINDOW + 3


async def test_at_the_end_of_a_cluster_without_workers_connections_end() -> None:
    with Master() as master:
        async with patience():
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


async def test_stopping_twice_is_stopping_once() -> None:
    with Master() as master:
        assert isinstance(master.balancer, ConnectionBalancer)
        master.balancer.stop()
        master.balancer.stop()
        await master.guest()
        master.worker()
        await asyncio.sleep(0)
        assert queued(master) == 1
