"""A worker that was started by hand, without any pool, and a door for its jobs.

This is the pool's side of the two channels, and the one place where the tests of workers learn
what goes over them.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from asyncpool._engine.machine import worker_command
from asyncpool._engine.page import WorkerPage
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._wire.log_records import read_record
from asyncpool._wire.memory import Memory, create
from asyncpool._wire.messages import (
    MAX_DETAILS,
    Failure,
    Identity,
    JobContext,
    WorkerConfig,
    pack_numbers,
    unpack_numbers,
)
from asyncpool._wire.page import STACKS_SIZE, Beat, PageLayout, unpack_beat
from asyncpool._wire.pickling import dumps, load_error, load_value, pack_job
from asyncpool._wire.posix import Handed, command_line, receive_fds
from tests.helpers.parcels import plain
from tests.helpers.patience import PATIENCE

__all__ = [
    "MAX_DETAILS",
    "STACKS_SIZE",
    "Door",
    "Failure",
    "Frame",
    "FrameDecoder",
    "FrameKind",
    "Handed",
    "Identity",
    "PageLayout",
    "Worker",
    "context_frame",
    "dumps",
    "encode",
    "function_frame",
    "header",
    "job_frame",
    "large_job",
    "pack_numbers",
    "read_record",
    "receive_fds",
    "send_segment",
    "unpack_numbers",
]

_SEGMENT = 400_000  # bytes


def encode(
    kind: FrameKind, payload: bytes, job: int = 0, attempt: int = 0, tag: int = 0
) -> bytes:
    return header(kind, len(payload), job, attempt, tag) + payload


def job_frame(
    job: int, function: Callable[..., object], *args: object, number: int = 0
) -> bytes:
    """Return a first attempt; with a *number* the function does not come along."""
    payload = plain_call(function, *args, number=number)
    return encode(FrameKind.JOB, payload, job, 1, number)


def plain_call(
    function: Callable[..., object], *args: object, number: int = 0
) -> bytes:
    return plain(pack_job(function, args, {}, number=number))


def large_job(
    job: int, function: Callable[..., object], *args: object
) -> tuple[list[bytes], bytes]:
    """Return what travels beside a job, and the frame of the job."""
    parcel = pack_job(function, args, {})
    assert isinstance(parcel, OutOfBandPickle)
    areas = [b"".join(pieces) for pieces in parcel.areas]
    return areas, encode(FrameKind.JOB, parcel.payload, job, 1)


def send_segment(worker: Worker, number: int, area: bytes = b"") -> Memory:
    """Share memory with an area in it, and return what the pool has of it."""
    fd = create(_SEGMENT)
    memory = Memory(fd, _SEGMENT)
    memory.write(0, [area])
    head = encode(FrameKind.SEGMENT, b"", job=_SEGMENT, tag=number)
    socket.send_fds(worker.control, [head], [fd])
    os.close(fd)
    return memory


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
        concurrency: int = 1,
        **options: Any,
    ) -> None:
        self.jobs, jobs_end = socket.socketpair()
        self.control, control_end = socket.socketpair()
        self.notes = WorkerPage(concurrency)
        self.page = self.notes.open()
        self._frames: dict[socket.socket, Iterator[Frame]] = {}
        with jobs_end, control_end:
            self.own = jobs_end.fileno()  # its own end, as it knows it
            fds = (self.own, control_end.fileno(), self.page)
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
            concurrency=concurrency,
            **options,
        )
        identity = Identity("by-hand-worker-0", 1, (os.getpid(), "main"), b"", None, ())
        who = encode(FrameKind.IDENTITY, pickle.dumps(identity))
        what = encode(FrameKind.CONFIG, pickle.dumps(config))
        self.control.sendall(who + ahead + what)

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
        self.told(FrameKind.HELLO)

    def result(self) -> tuple[int, Any]:
        frame = self.told(FrameKind.VALUE, self.jobs)
        assert frame.attempt == 1
        return frame.job, load_value(frame.payload)

    def results(self, count: int) -> list[tuple[int, Any]]:
        return [self.result() for _ in range(count)]

    def error(self) -> tuple[int, BaseException]:
        frame = self.told(FrameKind.ERROR, self.jobs)
        assert frame.attempt == 1
        return frame.job, load_error(frame.payload)

    def told(self, kind: FrameKind, sock: socket.socket | None = None) -> Frame:
        """Wait for the next frame, by default on the control channel; it is of this kind."""
        frame = self.heard(sock or self.control)
        assert frame is not None
        assert frame.kind is kind
        return frame

    def failure(self) -> Failure:
        return Failure.unpack(self.told(FrameKind.FAILED).payload)

    def record(self) -> dict[str, Any]:
        """Wait for what it logs next, and return the attributes of that record."""
        return read_record(self.told(FrameKind.RECORD).payload)[0]

    def last_beat(self) -> tuple[int, int, Any]:
        """Wait for the last heartbeat of a job, which comes ahead of its outcome."""
        frame = self.told(FrameKind.LAST_HEARTBEAT, self.jobs)
        beat = unpack_beat(frame.payload)
        assert beat is not None
        assert (beat.job, beat.attempt) == (frame.job, frame.attempt)
        return beat.job, beat.attempt, pickle.loads(beat.details)

    def beats(self) -> list[Beat]:
        """Return what it has noted of heartbeats."""
        return self.notes.beats()

    def revoke(self, *sequences: int) -> tuple[int, ...]:
        """Return those of *sequences* that it will not begin."""
        self.control.sendall(revoke_frame(*sequences))
        return self.revoked()

    def revoked(self) -> tuple[int, ...]:
        frame = self.told(FrameKind.REVOKED)
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
        self.notes.close()
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
