"""The process that was forked ahead: whose it is, from its announcement to its end.

The launcher is played by the test, so that everything comes in the order that is wanted.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from asyncpool._core.wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._core.wire.messages import LauncherConfig, pack_exit, pack_pid
from asyncpool._runtime.launcher import launcher_process as template
from asyncpool._runtime.launcher.process import Process
from asyncpool._system.descriptors import receive_fds
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

CONFIG = LauncherConfig(sys_path=(), fork=True, preload=(), command=())

LATE = 3600.0

# No process has them.
WORKER, SPARE = 2**22 + 1, 2**22 + 2


class Launcher:
    """The launcher's end of a template's channel; its processes are only numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def start(theirs: socket.socket, _: object) -> SimpleNamespace:
            self._channel = theirs.dup()
            self._channel.setblocking(False)
            popen = subprocess.Popen(["true"])
            return SimpleNamespace(popen=popen, patience=None, hear=bytes)

        monkeypatch.setattr(template, "NewLauncher", start)
        self.template = template.LauncherProcess(asyncio.get_running_loop(), CONFIG)
        self._decoder = FrameDecoder(max_payload=1 << 16)
        self._heard: list[Frame] = []
        self.say(FrameKind.HELLO)

    def say(
        self, kind: FrameKind, payload: bytes = b"", job: int = 0, *fds: int
    ) -> None:
        data = header(kind, len(payload), job) + payload
        socket.send_fds(self._channel, [data], fds)

    async def hear(self) -> Frame:
        """Return the next that the template says, but for how to begin."""
        while not self._heard:
            data, fds = await received(self._channel)
            for fd in fds:
                os.close(fd)
            frames = self._decoder.feed(data)
            self._heard += [
                frame for frame in frames if frame.kind is not FrameKind.CONFIG
            ]
        return self._heard.pop(0)

    async def announce(self, pid: int = SPARE) -> socket.socket:
        """Say that there is a spare process; return where it waits, when this is known."""
        door, inside = socket.socketpair()
        inside.setblocking(False)
        pidfd = os.pidfd_open(os.getpid())  # anybody's
        self.say(FrameKind.SPARE, pack_pid(pid, held=True), 0, door.fileno(), pidfd)
        door.close()
        os.close(pidfd)
        await self.settled()
        return inside

    async def settled(self) -> None:
        """Wait until the template has read all."""
        await self.template.ready
        sweep = asyncio.ensure_future(self.template.sweep())
        assert (await self.hear()).kind is FrameKind.SWEEP
        self.say(FrameKind.SWEPT)
        await sweep

    async def start_worker(self) -> Process:
        """Start the worker that the template asks for."""
        launching = asyncio.ensure_future(launch(self.template))
        asked = await self.hear()
        assert asked.kind is FrameKind.LAUNCH
        self.say(FrameKind.LAUNCHED, pack_pid(WORKER, held=False), asked.job)
        return await launching

    def close(self) -> None:
        self._channel.close()


@asynccontextmanager
async def a_launcher(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Launcher]:
    # A test that wants to be asked for a spare process says so, or a slow one would be
    # asked while it expects something else.
    monkeypatch.setattr(template, "_QUIET", LATE)
    launcher = Launcher(monkeypatch)
    try:
        async with patience():
            yield launcher
    finally:
        launcher.close()
        await launcher.template.close()


async def received(sock: socket.socket) -> tuple[bytes, list[int]]:
    while True:
        try:
            data, fds, _ = receive_fds(sock, 65_536, 16)
        except BlockingIOError:
            await asyncio.sleep(0)
        else:
            return data, fds


async def launch(starter: template.LauncherProcess) -> Process:
    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        return await starter.launch([fd])
    finally:
        os.close(fd)


async def assert_ends(inside: socket.socket) -> None:
    """Check that whoever waits there is told that nobody wants it."""
    with inside:
        assert await received(inside) == (b"", [])


async def test_the_descriptors_go_straight_to_it_and_another_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_launcher(monkeypatch) as launcher:
        monkeypatch.setattr(template, "_QUIET", 0.0)
        with await launcher.announce() as inside:
            process = await launch(launcher.template)
            assert process.pid == SPARE
            data, [fd] = await received(inside)
            assert data == b"."
            os.close(fd)
            assert await received(inside) == (b"", []), "once is all"
        assert (await launcher.hear()).kind is FrameKind.SPARE
        assert (await launcher.start_worker()).pid == WORKER
        launcher.say(FrameKind.EXITED, pack_exit(SPARE, 3, 0))
        assert await process.wait() == 3
        process.close()


async def test_one_that_does_not_listen_any_more_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_launcher(monkeypatch) as launcher:
        (await launcher.announce()).close()
        assert (await launcher.start_worker()).pid == WORKER
        # Of its end nobody wants to hear.
        launcher.say(FrameKind.EXITED, pack_exit(SPARE, 3, 0))
        await launcher.settled()


async def test_one_that_has_ended_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_launcher(monkeypatch) as launcher:
        inside = await launcher.announce()
        launcher.say(FrameKind.EXITED, pack_exit(SPARE, 3, 0))
        await assert_ends(inside)
        assert (await launcher.start_worker()).pid == WORKER
        # The next one is as good as the first.
        with await launcher.announce(SPARE + 1):
            process = await launch(launcher.template)
            assert process.pid == SPARE + 1
        process.close()


async def test_a_second_one_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_launcher(monkeypatch) as launcher:
        with await launcher.announce():
            await assert_ends(await launcher.announce(SPARE + 1))
            process = await launch(launcher.template)
            assert process.pid == SPARE
        process.close()


async def test_one_whose_door_is_lost_on_the_way_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Descriptors are lost if this process may open no more; which ones, nobody knows."""

    def receive(
        sock: socket.socket, size: int, most: int
    ) -> tuple[bytes, list[int], bool]:
        data, fds, _ = receive_fds(sock, size, most)
        for fd in fds[1:]:
            os.close(fd)
        return data, fds[:1], len(fds) > 1

    monkeypatch.setattr(template, "receive_fds", receive)
    async with a_launcher(monkeypatch) as launcher:
        await assert_ends(await launcher.announce())
        assert (await launcher.start_worker()).pid == WORKER
        launcher.say(FrameKind.EXITED, pack_exit(SPARE, 0, 0))
        await launcher.settled()


async def test_it_ends_with_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_launcher(monkeypatch) as launcher:
        inside = await launcher.announce()
        launcher.close()
        await assert_ends(inside)


async def test_none_is_asked_for_while_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may come after another start, while the template waits once more."""
    async with a_launcher(monkeypatch) as launcher:
        launcher.template._ask_for_spare()
        assert (await launcher.hear()).kind is FrameKind.SPARE
        launcher.template._ask_for_spare()  # while the first one is on its way
        await launcher.settled()
        with await launcher.announce():
            launcher.template._ask_for_spare()
            await launcher.settled()


async def test_another_one_is_asked_for_after_one_that_could_not_be_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_launcher(monkeypatch) as launcher:
        launcher.template._ask_for_spare()
        assert (await launcher.hear()).kind is FrameKind.SPARE
        launcher.say(FrameKind.SPARE)
        await launcher.settled()
        launcher.template._ask_for_spare()
        assert (await launcher.hear()).kind is FrameKind.SPARE
