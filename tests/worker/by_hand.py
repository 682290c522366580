"""A worker that was started by hand, without any pool, and a door for its jobs."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from asyncpool._core.pickling.calls import dumps, load_value, pack_job
from asyncpool._core.pickling.errors import load_error
from asyncpool._core.wire.context import JobContext
from asyncpool._core.wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._core.wire.messages import WorkerConfig, pack_numbers, unpack_numbers
from asyncpool._core.wire.page import PAGE_SIZE
from asyncpool._runtime.launcher.interpreter import worker_command
from asyncpool._system.interpreter import command_line
from tests.helpers.parcels import plain
from tests.helpers.patience import PATIENCE

__all__ = [
    "Door",
    "Worker",
    "context_frame",
    "encode",
    "function_frame",
    "job_frame",
    "revoke_frame",
]


def encode(
    kind: FrameKind, payload: bytes, job: int = 0, attempt: int = 0, tag: int = 0
) -> bytes:
    return header(kind, len(payload), job, attempt, tag) + payload


def job_frame(
    job: int, function: Callable[..., object], *args: object, number: int = 0
) -> bytes:
    """Return a first attempt; with a *number* the function does not come along."""
    payload = plain(pack_job(function, args, {}, number=number))
    return encode(FrameKind.JOB, payload, job, 1, number)


def function_frame(number: int, function: object) -> bytes:
    return encode(FrameKind.FUNCTION, dumps(function), tag=number)


def context_frame(**parts: Any) -> bytes:
    return encode(FrameKind.CONTEXT, JobContext(**parts).pack())


def revoke_frame(*sequences: int) -> bytes:
    return encode(FrameKind.REVOKE, pack_numbers(sequences))


class Worker:
    """A worker, and the other ends of what it holds."""

    def __init__(
        self,
        initializer: Callable[..., object] | None = None,
        *,
        max_payload: int = 1 << 20,
        ahead: bytes = b"",
        **options: Any,
    ) -> None:
        self.jobs, jobs_end = socket.socketpair()
        self.control, control_end = socket.socketpair()
        self.page = os.memfd_create("page")
        os.ftruncate(self.page, PAGE_SIZE)
        self._frames: dict[socket.socket, Iterator[Frame]] = {}
        with jobs_end, control_end:
            fds = (jobs_end.fileno(), control_end.fileno(), self.page)
            self.process = subprocess.Popen(
                command_line(worker_command(), "worker", fds),
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        for sock in (self.jobs, self.control):
            sock.settimeout(PATIENCE)
        packed = None if initializer is None else dumps((initializer, ()))
        config = WorkerConfig(
            sys_path=tuple(sys.path),
            initializer=packed,
            max_payload=max_payload,
            **options,
        ).pack()
        self.control.sendall(ahead + encode(FrameKind.CONFIG, config))

    def send(self, job: int, function: Callable[..., object], *args: object) -> None:
        self.jobs.sendall(job_frame(job, function, *args))

    def write(self, *frames: bytes) -> None:
        """Send jobs and functions together."""
        self.jobs.sendall(b"".join(frames))

    def heard(self, sock: socket.socket) -> Frame | None:
        """Wait for the next frame on *sock*; ``None`` is its end."""
        frames = self._frames.setdefault(sock, _frames(sock))
        return next(frames, None)

    def hello(self) -> None:
        """Wait until it is ready."""
        frame = self.heard(self.control)
        assert frame is not None
        assert frame.kind is FrameKind.HELLO

    def result(self) -> tuple[int, Any]:
        frame = self.heard(self.jobs)
        assert frame is not None
        assert (frame.kind, frame.attempt) == (FrameKind.VALUE, 1)
        return frame.job, load_value(frame.payload)

    def error(self) -> tuple[int, BaseException]:
        frame = self.heard(self.jobs)
        assert frame is not None
        assert (frame.kind, frame.attempt) == (FrameKind.ERROR, 1)
        return frame.job, load_error(frame.payload)

    def revoke(self, *sequences: int) -> tuple[int, ...]:
        """Return those of *sequences* that it will not begin."""
        self.control.sendall(revoke_frame(*sequences))
        return self.revoked()

    def revoked(self) -> tuple[int, ...]:
        frame = self.heard(self.control)
        assert frame is not None
        assert frame.kind is FrameKind.REVOKED
        assert (frame.job, frame.attempt, frame.number) == (0, 0, 0)
        return unpack_numbers(frame.payload)

    def noted(self) -> int:
        return int.from_bytes(os.pread(self.page, 8, 0), sys.byteorder)

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return its status and its stderr."""
        _, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, err.decode()

    def last_words(self) -> tuple[Frame | None, int, str]:
        """Let it leave; return a further outcome, its status and its stderr."""
        self.jobs.shutdown(socket.SHUT_WR)
        return self.heard(self.jobs), *self.ended()

    def close(self) -> None:
        self.jobs.close()
        self.control.close()
        os.close(self.page)
        self.process.kill()
        self.process.communicate()


def _frames(sock: socket.socket) -> Iterator[Frame]:
    decoder = FrameDecoder(max_payload=1 << 24)
    try:
        while data := sock.recv(65_536):
            yield from decoder.feed(data)
    except ConnectionResetError:
        return


class Door:
    """Where jobs say that they have begun, without an event loop.

    See ``arrive()``, ``wait_at()`` and ``pass_by()`` in :mod:`tests.helpers.jobs`.
    """

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "door")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._listener.settimeout(PATIENCE)
        self._visitor: socket.socket | None = None

    def visitor(self) -> str:
        """Wait for the next visitor, and return what it says."""
        self._visitor, word = self._welcome()
        return word

    def release(self, answer: str = "go") -> None:
        """Let that visitor go on."""
        assert self._visitor is not None
        with self._visitor:
            self._visitor.sendall(answer.encode())

    def words(self) -> list[str]:
        """Return what everybody has said who has come by meanwhile."""
        found = []
        while select.select([self._listener], [], [], 0)[0]:
            passer_by, word = self._welcome()
            passer_by.close()
            found.append(word)
        return found

    def close(self) -> None:
        self._listener.close()
        if self._visitor is not None:
            self._visitor.close()

    def _welcome(self) -> tuple[socket.socket, str]:
        sock, _ = self._listener.accept()
        sock.settimeout(PATIENCE)
        with sock.makefile() as reader:
            word, _, _ = reader.readline().rpartition(" ")
        return sock, word
