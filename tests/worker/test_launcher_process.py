"""The launcher's process, where no pool can make it do what it does once in a while."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator

import pytest

from asyncpool._core.wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._core.wire.messages import unpack_pid
from asyncpool._system.descriptors import receive_fds
from asyncpool._worker.launcher import launcher_process
from asyncpool._worker.launcher.launcher_process import LauncherProcess
from asyncpool._worker.launcher.reaper import Reaper

# No process has it.
PID = 2**22 + 4711


@pytest.fixture
def sigterm_exits() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    yield
    signal.signal(signal.SIGTERM, before)


def told(sock: socket.socket) -> tuple[list[Frame], list[int]]:
    """Return what a launcher has sent at once."""
    data, fds, _ = receive_fds(sock, 65_536, 2)
    return list(FrameDecoder(max_payload=1000).feed(data)), fds


def test_the_pool_hears_of_a_process_that_cannot_be_forked_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fork() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", fork)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        template = LauncherProcess(ours, Reaper())
        template._fork_spare()
        [frame], fds = told(theirs)
        assert (frame.kind, frame.payload, fds) == (FrameKind.SPARE, b"", [])
        for fd in (template._wake_out, template._wake_in):
            os.close(fd)


@pytest.mark.usefixtures("sigterm_exits")
def test_a_sigterm_while_it_forks_ahead_waits_until_the_pool_has_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else nobody would ever have it, and its socket would be left to the garbage."""

    def fork() -> int:
        signal.raise_signal(signal.SIGTERM)
        return PID

    monkeypatch.setattr(os, "fork", fork)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        template = LauncherProcess(ours, Reaper())
        with pytest.raises(SystemExit):
            template._fork_spare()
        [frame], [door] = told(theirs)
        assert (frame.kind, unpack_pid(frame.payload)) == (
            FrameKind.SPARE,
            (PID, False),
        )
        assert PID in template._reaper._workers
        with socket.socket(fileno=door) as way:
            assert way.recv(1) == b"", "nobody waits there, nor holds it open"
        for fd in (template._wake_out, template._wake_in):
            os.close(fd)


def test_a_spare_process_keeps_no_descriptors_of_another_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request may come in the same read as the one for a spare process."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        template = LauncherProcess(ours, Reaper())
        closed: list[list[int]] = []

        def fork_spare() -> None:
            held = [*template._held]
            template._prepare()  # as the new process does
            for fd in held:
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(fd)
            closed.append(held)

        def launch(_: Frame, fds: list[int], *, truncated: bool) -> None:
            assert closed == [fds]
            assert not truncated

        monkeypatch.setattr(launcher_process, "rehearse", lambda: None)
        monkeypatch.setattr(template, "_fork_spare", fork_spare)
        monkeypatch.setattr(template, "_launch", launch)
        requests = header(FrameKind.SPARE, 0) + header(FrameKind.LAUNCH, 0, 1)
        socket.send_fds(theirs, [requests], [theirs.fileno()])
        assert template._answer()
        assert len(closed) == 1
        assert len(closed[0]) == 1
        assert template._held == []
        for fd in (template._wake_out, template._wake_in):
            os.close(fd)
