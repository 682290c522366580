"""A master by hand: a worker that serves, and the other end of its line."""

from __future__ import annotations

import os
import pickle
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.helpers.patience import PATIENCE
from tests.worker.by_hand import (
    Failure,
    Frame,
    FrameDecoder,
    FrameKind,
    Worker,
    encode,
    header,
    receive_fds,
    unpack_numbers,
)

__all__ = ["Master"]


class Master:
    """Starts a worker that serves, and speaks with it.

    Args:
        target: What it serves: a function, or its name.
        spread: How it gets connections.
        loop: Its event loop.
        drain_timeout: How long it may drain, in seconds.
        reload_drain_timeout: How long if others serve on; by default as long.
        options: Further ones of its configuration.
    """

    def __init__(
        self,
        target: Callable[..., object] | str,
        *,
        spread: str = "handoff",
        loop: str = "asyncio",
        drain_timeout: float = PATIENCE,
        reload_drain_timeout: float | None = None,
        **options: Any,
    ) -> None:
        packed = target if isinstance(target, str) else pickle.dumps(target)
        last, replaced = drain_timeout, reload_drain_timeout or drain_timeout
        serving = pickle.dumps((packed, spread, (last, replaced), 3, 7, (), None))
        self.worker = Worker(
            main=("asyncpool._cluster.worker", serving), loop=loop, **options
        )
        self.process = self.worker.process
        self._decoder = FrameDecoder(max_payload=1 << 24)
        self._frames: deque[Frame] = deque()
        self._numbers = 0
        self.descriptors: deque[int] = deque()
        self.taken: list[int] = []
        self.refused: list[int] = []
        self.lost = 0
        self.load = (0, 0)

    def ready(self) -> None:
        """Wait until the worker is."""
        self.worker.hello()

    def write(self, *frames: bytes) -> None:
        self.worker.jobs.sendall(b"".join(frames))

    def hand(self, sock: socket.socket) -> int:
        """Hand over a socket, which is closed here; return its number."""
        self._numbers += 1
        with sock:
            self.send(header(FrameKind.HANDLE, 0, self._numbers), sock)
        return self._numbers

    def send(self, frame: bytes, *sockets: socket.socket) -> None:
        """Send descriptors along with a frame."""
        fds = [sock.fileno() for sock in sockets]
        assert socket.send_fds(self.worker.jobs, [frame], fds) == len(frame)

    def connect(self) -> socket.socket:
        """Return a client whose connection the worker gets."""
        client, server = socket.socketpair()
        client.settimeout(PATIENCE)
        self.hand(server)
        return client

    def post(self, value: object) -> None:
        self.write(encode(FrameKind.MESSAGE, pickle.dumps(value)))

    def heard(self, *kinds: FrameKind) -> Frame | None:
        """Wait for a frame of one of these kinds; ``None`` is the end of the line."""
        while (frame := self._next()) is not None:
            if frame.kind is FrameKind.TAKEN:
                self.taken.append(frame.job)
            elif frame.kind is FrameKind.REFUSED:
                self.refused.append(frame.job)
            elif frame.kind is FrameKind.LOAD:
                opened, closed, _ = unpack_numbers(frame.payload)
                self.load, self.lost = (opened, closed), frame.job
            if frame.kind in kinds:
                return frame
        return None

    def message(self) -> Any:
        """Wait for the next message."""
        frame = self.heard(FrameKind.MESSAGE)
        assert frame is not None
        return pickle.loads(frame.payload)

    def given(self) -> socket.socket:
        """Wait for the next socket that the worker sends."""
        frame = self.heard(FrameKind.HANDLE)
        assert frame is not None
        return socket.socket(fileno=self.descriptors.popleft())

    def until_load(self, opened: int, closed: int) -> None:
        """Wait until it has opened and closed so many connections."""
        while self.load != (opened, closed):
            assert self.heard(FrameKind.LOAD) is not None, self.load

    def give_place(self) -> None:
        """Let it give connections back."""
        self.write(header(FrameKind.RETURN, 0))

    def drain(self) -> None:
        self.worker.jobs.shutdown(socket.SHUT_WR)

    def failure(self) -> Failure:
        """Wait until it announces its end."""
        return self.worker.failure()

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return its status and its stderr."""
        assert self.heard() is None
        return self.worker.ended()

    def close(self) -> None:
        self.worker.close()
        while self.descriptors:
            os.close(self.descriptors.popleft())

    def _next(self) -> Frame | None:
        while not self._frames:
            data, fds, lost = receive_fds(self.worker.jobs, 65_536, 1)
            assert not lost
            self.descriptors += fds
            if not data:
                return None
            self._frames += self._decoder.feed(data)
        return self._frames.popleft()
