"""What travels between the master of a cluster and its workers: messages and sockets."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from asyncpool import Cluster
from asyncpool.errors import NoWorkerError, PoolClosedError
from asyncpool.events import Crashed, Retiring
from tests.helpers import serves
from tests.helpers.clusters import (
    Client,
    all_ready,
    cluster_of,
    come_true,
    whole_cluster,
)
from tests.helpers.gate import Gate, short_folder
from tests.helpers.guards import open_fds
from tests.helpers.inside import (
    MAX_MESSAGE,
    MOST_MESSAGES,
    messages_arrived,
    service_of,
)
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import case, next_of

pytestmark = BOTH_LOOPS


async def take(cluster: Cluster, count: int) -> list[object]:
    messages = cluster.messages()
    return [(await anext(messages)).value for _ in range(count)]


# Messages.


async def test_messages_come_back_in_their_order() -> None:
    async with patience(), cluster_of(serves.answer_messages, bind=()) as cluster:
        assert cluster.addresses == ()
        await all_ready(cluster)
        sending = [asyncio.create_task(cluster.send(1, n)) for n in range(300)]
        messages = cluster.messages()
        for n in range(300):
            message = await anext(messages)
            assert (message.worker, message.generation) == (1, 1)
            assert message.value == ("back", n)
        await asyncio.gather(*sending)


async def test_a_worker_waits_for_a_master_that_takes_nothing() -> None:
    async with patience(), cluster_of(serves.send_100, bind=(), workers=1) as cluster:
        service = service_of(cluster)
        await come_true(lambda: len(service.queues.messages) == MOST_MESSAGES)
        await cluster.stacks()  # it had the time to send more
        assert len(service.queues.messages) == MOST_MESSAGES
        assert await take(cluster, 100) == list(range(100))


async def test_the_master_waits_for_a_worker_that_takes_nothing() -> None:
    cluster = cluster_of(serves.take_no_messages, bind=(), workers=1)
    async with patience(), cluster:
        for n in range(MOST_MESSAGES):
            await cluster.send(0, n)
        one_more = asyncio.create_task(cluster.send(0, "more"))
        and_one = asyncio.create_task(cluster.send(0, "and more"))
        await cluster.stacks()
        assert not one_more.done()
        one_more.cancel()
        [pid] = [slot.pid for slot in cluster.stats().slots if slot.pid]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(NoWorkerError, match="there is no worker in slot 0"):
            await and_one
        with pytest.raises(asyncio.CancelledError):
            await one_more


async def test_what_a_worker_has_sent_before_its_death_arrives() -> None:
    cluster = cluster_of(serves.send_and_die, bind=(), workers=1)
    async with patience(), cluster:
        messages = cluster.messages()
        for generation in (1, 2):
            for n in range(10):
                message = await anext(messages)
                assert (message.generation, message.value) == (generation, n)


@pytest.mark.logs("messages-dropped")
async def test_of_dead_workers_the_last_messages_are_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("asyncpool._cluster.service.MOST_MESSAGES", 4)
    cluster = cluster_of(serves.send_and_die, bind=(), workers=1, name="mine")
    async with patience(), cluster:
        events = cluster.events()
        await next_of(events, Crashed)
        assert await take(cluster, 1) == [6]
    what = "6 messages of dead workers in slot 0, which nobody has read"
    assert f"cluster mine drops {what}" in told(caplog)


@pytest.mark.logs("messages-unread")
async def test_nobody_waits_where_nobody_can_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_of(serves.send_100, bind=(), workers=1, name="mine")
    async with patience(), cluster:
        service = service_of(cluster)
        await come_true(lambda: len(service.queues.messages) == MOST_MESSAGES)
        service.queues.drop_messages()
        await come_true(lambda: messages_arrived(cluster) == 100)
        assert not len(service.queues.messages)
    text = "worker 0 of cluster mine sends messages, which nobody can read here"
    assert told(caplog) == [f"{text}: they are dropped"]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings."""
    return [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]


@pytest.mark.logs("message-unreadable")
async def test_what_cannot_be_read_is_dropped_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_of(
        serves.send_what_cannot_be_read, bind=(), workers=1, name="mine"
    )
    async with patience(), cluster:
        assert await take(cluster, 1) == ["fine"]
    [record] = [r for r in caplog.records if r.levelno == logging.ERROR]
    text = "cluster mine cannot read a message of worker 0 and drops it"
    assert record.getMessage() == text
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_messages_and_broadcasts_that_cannot_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with whole_cluster(serves.answer_messages, bind=()) as cluster:
        text = f"longer than the {MAX_MESSAGE} that may be sent"
        with pytest.raises(ValueError, match=text):
            await cluster.send(0, bytes(MAX_MESSAGE))
        with pytest.raises(ValueError, match=text):
            await cluster.broadcast(bytes(MAX_MESSAGE))
        with pytest.raises(TypeError, match="cannot pickle"):
            await cluster.send(0, (n for n in range(0)))
        with pytest.raises(NoWorkerError, match="there is no worker in slot 9") as no:
            await cluster.send(9, "hello")
        assert no.value.worker == 9
        large = bytes(MAX_MESSAGE - 100)
        await cluster.send(0, large)
        assert (await anext(cluster.messages())).value == ("back", large)
        with pytest.raises(TypeError, match="unhashable"):
            await cluster.broadcast("x", key=[])  # type: ignore[arg-type]
        monkeypatch.setattr("asyncpool._cluster.service.MAX_BROADCASTS", 3000)
        await cluster.broadcast(bytes(2000), key=1)
        await cluster.broadcast(bytes(2500), key=1)  # instead of that
        with pytest.raises(ValueError, match="new workers may be told: use fewer keys"):
            await cluster.broadcast(bytes(2000), key=2)
    with pytest.raises(PoolClosedError):
        await cluster.send(0, "hello")
    with pytest.raises(PoolClosedError):
        await cluster.broadcast("x")


async def test_messages_end_with_the_cluster() -> None:
    async with patience():
        async with cluster_of(serves.answer_messages, bind=()) as cluster:
            await all_ready(cluster)
            await cluster.send(0, 1)
            heard: list[int] = []
            listeners = [asyncio.create_task(collect(cluster, heard)) for _ in range(2)]
            for n in range(2, 10):
                await cluster.send(0, n)
            await come_true(lambda: len(heard) == 9)
        await asyncio.gather(*listeners)
        assert heard == list(range(1, 10))
        assert [m async for m in cluster.messages()] == []
        assert [s async for s in cluster.incoming_sockets()] == []


async def collect(cluster: Cluster, heard: list[int]) -> None:
    async for message in cluster.messages():
        heard.append(message.value[1])  # noqa: PERF401 - while they come


# Broadcasts.


async def told_by(cluster: Cluster, count: int) -> dict[int, list[object]]:
    """Return the next so many messages by the slots of the workers."""
    told: dict[int, list[object]] = {}
    messages = cluster.messages()
    for _ in range(count):
        message = await anext(messages)
        told.setdefault(message.worker, []).append(message.value)
    return told


async def test_a_broadcast_is_for_those_that_are_there_and_that_come_later() -> None:
    async with whole_cluster(serves.answer_messages, bind=()) as cluster:
        for value in ("one", "two"):
            await cluster.broadcast(value, key="config")
        await cluster.broadcast("three")
        back = [("back", value) for value in ("one", "two", "three")]
        assert await told_by(cluster, 6) == {0: back, 1: back}
        await cluster.resize(3)
        await cluster.broadcast("four")
        # Of each key, the last one; behind them what comes on its line.
        late = [("back", value) for value in ("two", "three", "four")]
        assert await told_by(cluster, 5) == {
            0: [("back", "four")],
            1: [("back", "four")],
            2: late,
        }
        cluster.kill(0)
        assert await told_by(cluster, 2) == {0: [("back", "two"), ("back", "four")]}
        await all_ready(cluster)
        for n in range(100):  # what came early takes no room
            await cluster.send(0, n)
        assert await take(cluster, 100) == [("back", n) for n in range(100)]


async def test_a_worker_that_is_starting_gets_a_broadcast_once() -> None:
    async with patience(), Gate() as gate:
        target = partial(serves.answer_behind, gate.path)
        cluster = cluster_of(target, bind=(), workers=2)
        start = asyncio.create_task(cluster.start())
        visitors = [await gate.visitor(f"{slot}") for slot in range(2)]
        await cluster.broadcast("early")
        visitors[0].release()
        await start
        assert await take(cluster, 1) == [("back", "early")]
        visitors[1].release()
        assert await take(cluster, 1) == [("back", "early")]
        await cluster.broadcast("late")
        assert await take(cluster, 2) == [("back", "late")] * 2
        await cluster.close()


async def test_a_broadcast_waits_for_those_that_take_nothing() -> None:
    target = serves.take_no_messages
    async with patience(), cluster_of(target, bind=(), workers=1) as cluster:
        for n in range(MOST_MESSAGES):
            await cluster.broadcast(n)
        one_more = asyncio.create_task(cluster.broadcast("more"))
        await cluster.stacks()
        assert not one_more.done()
        cluster.kill(0)
        await one_more


# Sockets.


@contextmanager
def all_sockets() -> Iterator[list[socket.socket]]:
    """Yield sockets of all kinds, open as long as this lasts."""
    with ExitStack() as stack, short_folder() as folder:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        connected = socket.create_connection(listener.getsockname())
        udp, unix = socket.socket(type=socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)
        udp.bind(("127.0.0.1", 0))
        unix.bind(f"{folder}/s")
        unix.listen()
        pairs = [*socket.socketpair(), *socket.socketpair(type=socket.SOCK_DGRAM)]
        for sock in (connected, udp, unix, *pairs):
            stack.enter_context(sock)
        yield [connected, listener, udp, unix, pairs[0], pairs[2]]


async def test_sockets_travel_both_ways_with_a_value() -> None:
    cluster = cluster_of(serves.tell_about_sockets, bind=(), workers=1)
    async with patience(), cluster:
        messages, sockets = cluster.messages(), cluster.incoming_sockets()
        with all_sockets() as every:
            before = len(open_fds())
            for sock, value in itertools.product(every, ("a", b"x" * 60_000, None)):
                with case(sock, value):
                    await cluster.send_socket(0, sock, value)
                    kind = sock.family.name, sock.type.name
                    assert (await anext(messages)).value == (0, *kind, False)
                    slot, back = await anext(sockets)
                    with back:
                        assert (slot, back.value) == (0, value)
                        assert os.fstat(back.fileno()) == os.fstat(sock.fileno())
                        assert not back.get_inheritable()
                        assert (back.family, back.type) == (sock.family, sock.type)
                    assert len(open_fds()) == before, "a copy was sent, and closed"


@pytest.mark.parametrize("full", [(0,), (0, 1), (0, 1, 2)])
async def test_a_socket_that_does_not_get_there_goes_elsewhere(
    full: tuple[int, ...],
) -> None:
    target = partial(serves.hog_then_take_sockets, full)
    async with whole_cluster(target, bind=(), workers=3) as cluster:
        before = len(open_fds())
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if len(full) < 3:
                await cluster.send_socket(0, ours)
                messages = cluster.messages()
                assert (await anext(messages)).value in {1, 2} - {*full}
            else:
                text = "there is no worker that could take the descriptor"
                with pytest.raises(NoWorkerError, match=text) as caught:
                    await cluster.send_socket(0, ours)
                assert caught.value.worker is None
        assert cluster.stats().refused == len(full)
        assert len(open_fds()) == before


async def test_a_socket_of_a_worker_that_dies_goes_elsewhere() -> None:
    async with patience(), cluster_of(serves.take_sockets, bind=()) as cluster:
        stats = await all_ready(cluster)
        pid = stats.slots[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            sending = asyncio.create_task(cluster.send_socket(0, ours))
            left = asyncio.create_task(cluster.send_socket(0, ours))
            await cluster.send_socket(1, ours)
            assert not sending.done()
            left.cancel()
            events = cluster.events()
            os.kill(pid, signal.SIGKILL)
            await sending
            await next_of(events, Crashed)
            assert await take(cluster, 2) == [1, 1]
            with pytest.raises(asyncio.CancelledError):
                await left


# Files, and values beside both.


async def test_files_travel_both_ways_with_a_value() -> None:
    cluster = cluster_of(serves.tell_about_files, bind=(), workers=1)
    async with patience(), cluster:
        messages, files = cluster.messages(), cluster.incoming_files()
        with tempfile.TemporaryFile() as plain, a_pipe() as (reading, writing):
            modes = {reading: "rb", writing: "wb", plain.fileno(): "rb+"}
            before = len(open_fds())
            for (fd, mode), value in itertools.product(modes.items(), ({"a": 1}, None)):
                with case(mode, value):
                    await cluster.send_file(0, fd, value)
                    assert (await anext(messages)).value == (0, mode, False, value)
                    slot, back = await anext(files)
                    with back:
                        assert (slot, back.value) == (0, ["back", value])
                        assert os.fstat(back.fileno()) == os.fstat(fd)
                        assert back.mode == mode
                        assert not os.get_inheritable(back.fileno())
                    assert len(open_fds()) == before, "a copy was sent, and closed"


@contextmanager
def a_pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


async def test_a_worker_reads_from_a_pipe_and_writes_into_a_file() -> None:
    cluster = cluster_of(serves.copy_files, bind=(), workers=1)
    async with patience(), cluster:
        with tempfile.TemporaryFile() as file:
            reading, writing = os.pipe()
            with open(reading, "rb") as pipe:  # noqa: ASYNC230
                await cluster.send_file(0, pipe, "from")
            with open(writing, "wb") as pipe:  # noqa: ASYNC230
                await cluster.send_file(0, file, "to")
                pipe.write(b"through a pipe")
            assert await take(cluster, 1) == ["copied"]
            file.seek(0)
            assert file.read() == b"through a pipe"


async def descriptors(cluster: Cluster) -> object:
    await cluster.send(0, None)
    return (await anext(cluster.messages())).value


async def test_what_is_no_socket_or_file_is_refused_before_it_is_sent() -> None:
    cluster = cluster_of(serves.count_descriptors, bind=(), workers=1)
    async with patience(), cluster:
        before, there = len(open_fds()), await descriptors(cluster)
        with ExitStack() as stack:
            for _ in range(20):
                reading, writing = (
                    stack.enter_context(open(end, mode))  # noqa: ASYNC230
                    for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
                )
                for end in (reading, writing):
                    with pytest.raises(TypeError, match="sock must be a socket, not"):
                        await cluster.send_socket(0, end)  # type: ignore[arg-type]
        with socket.socket() as sock:
            with pytest.raises(TypeError, match=r"send_socket\(\)"):
                await cluster.send_file(0, sock)  # type: ignore[arg-type]
            text = r"^a value of 655\d\d bytes is longer than the 65536 that may go"
            with pytest.raises(ValueError, match=text):
                await cluster.send_socket(0, sock, bytes(65_536))
            with pytest.raises(TypeError, match="cannot pickle"):
                await cluster.send_socket(0, sock, (n for n in range(0)))
            with pytest.raises(NoWorkerError, match="there is no worker in slot 5"):
                await cluster.send_socket(5, sock)
        folder = os.open("/", os.O_RDONLY)
        try:
            with pytest.raises(TypeError, match="file must not be a directory: send"):
                await cluster.send_file(0, folder)
        finally:
            os.close(folder)
        with pytest.raises(
            TypeError, match=r"^file must be a file or a descriptor, not"
        ):
            await cluster.send_file(0, "/etc/passwd")  # type: ignore[arg-type]
        with pytest.raises(OSError, match="Bad file descriptor"):
            await cluster.send_file(0, folder)
        assert len(open_fds()) == before
        assert await descriptors(cluster) == there
    with socket.socket() as sock, pytest.raises(PoolClosedError):
        await cluster.send_socket(0, sock)


@pytest.mark.logs("descriptor-unreadable")
async def test_a_value_that_cannot_be_read_costs_no_descriptor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_of(serves.send_odd_values, bind=(), workers=1, name="mine")
    async with patience(), cluster:
        sockets, files = cluster.incoming_sockets(), cluster.incoming_files()
        slot, sock = await anext(sockets)
        slot_too, file = await anext(files)
        with sock, file:
            assert (slot, sock.value, slot_too, file.value) == (0, "fine", 0, "fine")
    [first, second] = [r for r in caplog.records if r.levelno == logging.ERROR]
    text = (
        "cluster mine cannot read what worker 0 has sent with a descriptor, and drops"
    )
    assert first.getMessage() == second.getMessage() == f"{text} both"
    # The guards find out whether the descriptors were closed.


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (serves.send_files_without_end, "file"),
        (serves.send_sockets_without_end, "socket"),
    ],
)
async def test_what_nobody_takes_is_refused_in_the_end(target: Any, what: str) -> None:
    async with patience(), cluster_of(target, bind=(), workers=1) as cluster:
        assert await take(cluster, 1) == [(64, f"the pool could not take the {what}")]
    # The guards find out whether the others were closed.
    # The guards find out whether the others were closed.

    # The guards find out whether the others were closed.


async def test_a_message_from_a_worker_that_drains_arrives() -> None:
    async with patience(), cluster_of(workers=1) as cluster:
        async with Client(cluster) as client:
            events = cluster.events()
            assert await client.ask("retire") == "retiring"
            await next_of(events, Retiring)
            assert await client.ask("send 3") == "sent"
        assert await take(cluster, 3) == [(0, n) for n in range(3)]
