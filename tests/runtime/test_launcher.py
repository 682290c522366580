"""The contract of the launcher: births, deaths, and its own end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from asyncpool._core.pickling.calls import load_value, pack_job
from asyncpool._core.wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._core.wire.messages import WorkerConfig
from asyncpool._core.wire.page import PAGE_SIZE
from asyncpool._runtime.launcher import interpreter
from asyncpool._runtime.launcher.launcher import Launcher
from asyncpool._runtime.launcher.launcher_process import LaunchError, Process
from tests.helpers import faults, jobs
from tests.helpers.guards import marked_processes
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.parcels import plain
from tests.helpers.patience import patience

pytestmark = [
    BOTH_LOOPS,
    pytest.mark.parametrize("fork", [True, False], ids=["forkserver", "spawn"]),
]


class Ends:
    """The pool's ends of what a worker gets, without a pool."""

    def __init__(self) -> None:
        self.jobs, self._jobs = socket.socketpair()
        self.control, self._control = socket.socketpair()
        self.page = os.memfd_create("page")
        os.ftruncate(self.page, PAGE_SIZE)
        self.out, self._out = os.pipe()
        for sock in (self.jobs, self.control):
            sock.setblocking(False)
        config = WorkerConfig(
            sys_path=tuple(sys.path), initializer=None, max_payload=1 << 20
        )
        self._config = config.pack()

    @property
    def theirs(self) -> list[int]:
        jobs_fd, control_fd = self._jobs.fileno(), self._control.fileno()
        return [jobs_fd, control_fd, self.page, self._out, self._out]

    def sent(self) -> None:
        """Let go of the worker's ends, and tell it how to begin."""
        self._jobs.close()
        self._control.close()
        os.close(self._out)
        self._out = -1
        self.control.send(header(FrameKind.CONFIG, len(self._config)) + self._config)

    async def frame(self, sock: socket.socket) -> Frame | None:
        """Wait for one frame, or the end."""
        decoder = FrameDecoder(max_payload=1 << 20)
        with suppress(ConnectionResetError):  # it died before it read everything
            while data := await asyncio.get_running_loop().sock_recv(sock, 65536):
                for frame in decoder.feed(data):
                    return frame
        return None

    def close(self) -> None:
        for sock in (self.jobs, self._jobs, self.control, self._control):
            sock.close()
        for fd in (self.page, self.out, self._out):
            if fd >= 0:
                os.close(fd)


@contextmanager
def ends() -> Iterator[Ends]:
    found = Ends()
    try:
        yield found
    finally:
        found.close()


@asynccontextmanager
async def launcher(*, fork: bool, **options: Any) -> AsyncIterator[Launcher]:
    found = Launcher(
        asyncio.get_running_loop(), fork=fork, **{"preload": (), **options}
    )
    try:
        async with patience():
            yield found
    finally:
        await found.close()


async def start(launcher: Launcher, ends: Ends) -> Process:
    process = await launcher.launch(ends.theirs)
    ends.sent()
    hello = await ends.frame(ends.control)
    assert hello is not None
    assert hello.kind is FrameKind.HELLO
    return process


async def test_a_worker_lives_until_its_channel_ends(*, fork: bool) -> None:
    with ends() as own:
        async with launcher(fork=fork) as found:
            process = await start(found, own)
            payload = plain(pack_job(jobs.pid, (), {}))
            own.jobs.send(header(FrameKind.JOB, len(payload), 7, 2) + payload)
            outcome = await own.frame(own.jobs)
            assert outcome is not None
            assert (outcome.kind, outcome.job, outcome.attempt) == (
                FrameKind.VALUE,
                7,
                2,
            )
            assert load_value(outcome.payload) == process.pid
            own.jobs.shutdown(socket.SHUT_WR)
            assert await process.wait() == 0
            process.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_reaches_the_worker_and_its_end_is_told(
    number: signal.Signals, *, fork: bool
) -> None:
    with ends() as own:
        async with launcher(fork=fork) as found:
            process = await start(found, own)
            process.signal(number)
            assert await process.wait() == -number
            process.signal(number)  # too late, and harmless
            process.close()


async def test_a_worker_whose_pool_is_gone_leaves_at_once(*, fork: bool) -> None:
    with ends() as own:
        async with launcher(fork=fork) as found:
            process = await start(found, own)
            own.control.close()
            assert await process.wait() == -signal.SIGKILL
            process.close()


async def test_a_cancelled_wait_does_not_touch_the_process(*, fork: bool) -> None:
    with ends() as own:
        async with launcher(fork=fork) as found:
            process = await start(found, own)
            waiting = asyncio.create_task(process.wait())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            process.signal(signal.SIGTERM)
            assert await process.wait() == -signal.SIGTERM
            process.close()


async def test_a_request_with_too_few_descriptors_is_refused(*, fork: bool) -> None:
    with ends() as own:
        async with launcher(fork=fork) as found:
            with pytest.raises(LaunchError, match="descriptors"):
                await found.launch(own.theirs[:3])
            # It is none the worse for it.
            process = await start(found, own)
            process.close()


async def test_closing_ends_the_workers_too(*, fork: bool) -> None:
    with ends() as own:
        async with launcher(fork=fork) as found:
            process = await start(found, own)
            payload = plain(pack_job(faults.linger, (), {}))
            own.jobs.send(header(FrameKind.JOB, len(payload), 1, 1) + payload)
            await found.close()
            assert await own.frame(own.jobs) is None
            await process.wait()
            process.close()


async def test_workers_go_on_without_their_launcher(*, fork: bool) -> None:
    with ends() as first, ends() as second:
        async with launcher(fork=fork) as found:
            process = await start(found, first)
            assert found._process is not None
            found._process.abort()
            payload = plain(pack_job(jobs.square, (5,), {}))
            first.jobs.send(header(FrameKind.JOB, len(payload), 1, 1) + payload)
            outcome = await first.frame(first.jobs)
            assert outcome is not None
            assert load_value(outcome.payload) == 25
            # The next one comes from a new launcher.
            other = await start(found, second)
            first.jobs.shutdown(socket.SHUT_WR)
            assert await process.wait() is None  # nobody knows its status
            for ended in (process, other):
                ended.close()


async def test_a_launch_that_nobody_waits_for_leaves_no_worker(*, fork: bool) -> None:
    with ends() as own:
        async with launcher(fork=fork) as found:
            launch = asyncio.create_task(found.launch(own.theirs))
            await asyncio.sleep(0)
            launch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await launch


BABBLER = """
import signal, socket, sys
socket.socket(fileno=int(sys.argv[-1])).sendall(b"?" * 64)
signal.pause()
"""


async def test_a_launcher_that_breaks_the_protocol_is_killed(
    monkeypatch: pytest.MonkeyPatch, *, fork: bool
) -> None:
    """It may not end by itself, though its channel has ended."""
    monkeypatch.setattr(interpreter, "_BOOTSTRAP", BABBLER)
    before = marked_processes()
    async with launcher(fork=fork) as found:
        with ends() as worker, pytest.raises(LaunchError, match="version 63"):
            await found.launch(worker.theirs)
        await found.close()
        assert marked_processes() == before
