"""Large buffers between a client and its agent go through memory that both see."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from asyncpool import __version__
from asyncpool._engine.loop import Threads
from asyncpool._remote import carrier
from asyncpool._remote.carrier import BorrowedMemory
from asyncpool._remote.messages import greeting, pack_greeting, pack_lent, pack_parts
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.frames import FrameKind, header
from asyncpool._wire.memory import Memory, available, create
from asyncpool.errors import JobNotPicklableError, PoolClosedError, ProtocolError
from asyncpool.pool import Pool
from asyncpool.sharedpool import PoolServer, connect
from tests.helpers import jobs, large, streams
from tests.helpers.inside import borrowed_by, lent_by
from tests.helpers.large import Block, pattern
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import case
from tests.helpers.shared_pools import server, shared

pytestmark = [
    BOTH_LOOPS,
    pytest.mark.skipif(not available(), reason="memory cannot be sealed here"),
]

MB = 1 << 20


async def test_calls_and_results_go_through_memory_that_is_used_again(
    tmp_path: Path,
) -> None:
    async with patience(), shared(tmp_path, workers=1) as pool:
        for size in (MB // 4, 3 * MB):  # in this turn, and by a thread
            blocks = [Block(pattern(size, seed)) for seed in range(4)]
            for block in blocks:
                back = await pool.submit(large.same, block)
                assert back == block
                back.data[0] ^= 1  # it is the caller's own
                del back
                assert await pool.submit(large.checksum, block) == large.checksum(block)
        # Of each size there may be one on its way back.
        assert 2 <= len(lent_by(pool)) <= 4
        assert 2 <= len(borrowed_by(pool)) <= 4
        filler = large.filler(2 * MB)  # a long stream, without buffers
        assert await pool.submit(large.same, filler) == filler
        kept = await asyncio.gather(*[pool.submit(large.make, MB, n) for n in range(5)])
        assert kept == [large.make(MB, n) for n in range(5)]
        # A small one is there sooner than the large one before it, if nothing keeps it back.
        sizes = (3 * MB, 10, 3 * MB + 1, 11, 3 * MB)
        mixed = [Block(pattern(size)) for size in sizes]
        assert [item async for item in pool.stream(streams.values, mixed)] == mixed
        async with pool.worker() as worker:
            await asyncio.gather(*[worker.submit(large.keep, it) for it in mixed])
            assert await worker.submit(large.kept) == [*map(large.checksum, mixed)]
            # Calls that are given up on their way, or there, leave room for others.
            for _ in range(3):
                given_up = worker.submit(large.same, mixed[0])
                await asyncio.sleep(0)
                given_up.cancel()
            assert await worker.submit(jobs.square, 3) == 9
        block, sums = mixed[0], [large.checksum(mixed[0])] * 9
        for turns in range(6):
            job = pool.submit(large.same, block)
            for _ in range(turns):
                await asyncio.sleep(0)
            job.cancel()
        late = pool.options(queue_timeout=1e-3).submit(large.same, block)
        with contextlib.suppress(TimeoutError):
            await late
        assert await pool.submit(large.same, block) == block
        assert await pool.map(large.checksum, [block] * 9) == sums


async def test_nothing_is_left_of_a_large_call_when_its_client_closes(
    tmp_path: Path,
) -> None:
    block = Block(pattern(3 * MB))
    async with patience(), shared(tmp_path, workers=1) as pool:
        jobs_open = [pool.submit(large.same, block) for _ in range(5)]
        await asyncio.sleep(0)
        await pool.close(finish="none")
        left = {task.get_name() for task in asyncio.all_tasks()}
        assert "asyncpool large call" not in left
        for job in jobs_open:
            with pytest.raises(PoolClosedError):
                await job


async def test_a_result_lasts_longer_than_its_agent_and_its_client(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pool.sock"
    with server(path) as process:
        async with patience(), connect(f"unix:{path}") as pool:
            result = await pool.submit(large.make, 3 * MB, 5)
            process.kill()
    assert result == large.make(3 * MB, 5)


async def test_memory_that_a_fork_may_see_is_not_used_again(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path, workers=1) as pool:
        result = await pool.submit(large.make, MB, 1)
        [number] = borrowed_by(pool)
        with _fork():
            del result
            for seed in range(3):
                assert await pool.submit(large.make, MB, seed) == large.make(MB, seed)
        assert number not in borrowed_by(pool)


@contextlib.contextmanager
def _fork() -> Generator[None]:
    """Fork this process, and end the copy at the end of the context."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        yield
    finally:
        os.close(writing)
        os.waitpid(pid, 0)


async def test_where_there_is_no_memory_to_lend_the_socket_carries_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "MOST_LENT", 0)
    block = Block(pattern(3 * MB))
    async with patience(), shared(tmp_path, workers=1) as pool:
        assert await pool.submit(large.same, block) == block
        [item] = [item async for item in pool.stream(streams.values, [block])]
        assert item == block
        assert not lent_by(pool)
        assert not borrowed_by(pool)


async def test_large_calls_wait_for_memory_that_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "MOST_LENT", 4 * MB)  # one of them
    monkeypatch.setattr(carrier, "SOCKET_RATE", 1)
    sent: list[object] = []

    def pack(pickled: OutOfBandPickle) -> bytes:
        sent.append(pickled)
        return pack_parts(pickled)

    monkeypatch.setattr(carrier, "pack_parts", pack)
    block = Block(pattern(3 * MB))
    async with patience(), shared(tmp_path, workers=1) as pool:
        sums = [pool.submit(large.checksum, block) for _ in range(5)]
        assert await asyncio.gather(*sums) == [large.checksum(block)] * 5
        assert not sent, "by the socket"
        monkeypatch.setattr(carrier, "SOCKET_RATE", 1e12)
        sums = [pool.submit(large.checksum, block) for _ in range(5)]
        assert await asyncio.gather(*sums) == [large.checksum(block)] * 5
        assert sent, "it is faster"


async def test_a_server_that_closes_waits_until_what_it_sent_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "MOST_LENT", 0)  # more than a socket holds
    path = tmp_path / "pool.sock"
    async with patience(), Pool(1) as pool:
        async with PoolServer(pool, path):
            client = connect(f"unix:{path}")
            await client.start()
            job = client.submit(large.make, 3 * MB, 1)
            await client.stats()  # the server has the job by now
        assert await job == large.make(3 * MB, 1)
        await client.close()


async def test_memory_that_cannot_be_mapped_costs_its_job_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = Block(pattern(3 * MB))
    async with patience(), shared(tmp_path, workers=1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr("asyncpool._wire.memory.Memory", _only_for_its_maker)
            with pytest.raises(JobNotPicklableError, match="agent cannot map"):
                await pool.submit(large.checksum, block)
            with pytest.raises(JobNotPicklableError, match="process cannot map"):
                await pool.submit(large.make, 3 * MB, 1)
        assert await pool.submit(large.same, block) == block


def _only_for_its_maker(fd: int, size: int, *, later: bool = False) -> Memory:
    if later:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return Memory(fd, size)


class Raw:
    """A client that sends what a test wants, with descriptors."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(path))
        hello = pack_greeting(greeting(__version__, "pickle"))
        self.sock.sendall(header(FrameKind.BATCH, len(hello)) + hello)

    def lend(self, number: int, told: int, fd: int) -> None:
        head = header(FrameKind.SEGMENT, 0, told, number=number)
        socket.send_fds(self.sock, [head], [fd])
        os.close(fd)

    def is_cut(self) -> bool:
        with contextlib.suppress(ConnectionError):
            while self.sock.recv(1 << 16):
                pass
        self.sock.close()
        return True


def _unsealed(size: int) -> int:
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, size)
    return fd


def _half_sealed(size: int) -> int:
    fd = _unsealed(size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return fd


def _sparse(size: int) -> int:
    fd = os.memfd_create("sparse", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def _file(size: int) -> int:
    fd = os.open("/proc/self/exe", os.O_RDONLY)
    assert os.fstat(fd).st_size >= size
    return fd


def lends(make: Callable[[int], int], size: int, told: int) -> Callable[[Raw], None]:
    return lambda raw: raw.lend(1, told, make(size))


def _twice(raw: Raw) -> None:
    raw.lend(1, MB, create(MB))
    raw.lend(1, MB, create(MB))


def _without(raw: Raw) -> None:
    raw.sock.sendall(header(FrameKind.SEGMENT, 0, MB, number=1))


def _beside_nothing(raw: Raw) -> None:
    empty = pack_greeting({})
    piece = header(FrameKind.BATCH, len(empty)) + empty
    socket.send_fds(raw.sock, [piece], [raw.sock.fileno()])
    for _ in range(3):
        with contextlib.suppress(OSError):
            socket.send_fds(raw.sock, [piece], [raw.sock.fileno()])


def says(kind: FrameKind) -> Callable[[Raw], None]:
    return lambda raw: raw.sock.sendall(header(kind, 0, number=1))


OFFENCES: list[Callable[[Raw], None]] = [
    lends(_unsealed, MB, MB),
    lends(_half_sealed, MB, MB),
    lends(_sparse, MB, MB),
    lends(_file, 1 << 12, 1 << 16),
    lends(create, MB, 2 * MB),
    lends(create, 1 << 12, 1 << 12),
    lends(create, MB, 1 << 40),
    _twice,
    _without,
    _beside_nothing,
    says(FrameKind.DROP),
    says(FrameKind.SEGMENT_RETURNED),
    says(FrameKind.LOST),
    says(FrameKind.JOB),
]


@pytest.mark.logs("client-refused")
async def test_a_client_that_lends_what_it_may_not_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    async with patience(), Pool(1) as pool, PoolServer(pool, path):
        for number, offend in enumerate(OFFENCES):
            with case(number):
                raw = await asyncio.to_thread(Raw, path)
                await asyncio.to_thread(offend, raw)
                assert await asyncio.to_thread(raw.is_cut)
                async with connect(f"unix:{path}") as other:
                    assert await other.submit(jobs.square, 3) == 9


async def test_nothing_is_named_that_was_not_lent() -> None:
    told: list[tuple[FrameKind, int]] = []
    threads = Threads(asyncio.get_running_loop())
    memory = BorrowedMemory(threads, lambda *what: told.append(what))
    memory.add(1, MB, create(MB))
    lent = pack_lent(1, [MB // 2, MB // 4], b"stream")
    found = memory.read(lent)
    assert found is not None
    assert (found.stream, [*map(len, found.buffers)]) == (b"stream", [MB // 2, MB // 4])
    for wrong in (lent, pack_lent(2, [MB // 2], b"")):
        with pytest.raises(ProtocolError, match="which it has not lent"):
            memory.read(wrong)
    with pytest.raises(ProtocolError, match="which it has not back"):
        memory.drop(1)
    del found
    await asyncio.sleep(0)
    assert told == [(FrameKind.SEGMENT_RETURNED, 1)]
    with pytest.raises(ProtocolError, match="which it has not lent"):
        memory.read(pack_lent(1, [MB, MB // 2], b""))  # it is not as large
    memory.drop(1)
    memory.close()
    await threads.close()
