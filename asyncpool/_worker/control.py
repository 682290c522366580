"""The worker's end of the control channel, and the thread that reads it.

The thread computes nothing and holds nothing.  It is there to notice, also while
the main thread computes or sleeps, that the pool wants a job back, or is gone: the
control channel then ends, and so does the worker, with its whole process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from types import TracebackType

from asyncpool._core.frames import Frame, FrameDecoder, Kind, header
from asyncpool._core.messages import (
    MAX_CONFIG,
    Failure,
    pack_places,
    unpack_places,
)
from asyncpool._worker.turns import Turns
from asyncpool.errors import ProtocolError

__all__ = ["Control"]


class Control:
    """The worker's end of the control channel.

    Args:
        sock: The socket.
        turns: What a revoked job is taken from.
    """

    def __init__(self, sock: socket.socket, turns: Turns) -> None:
        self._socket = sock
        self._turns = turns
        self._lock = threading.Lock()
        self._decoder = FrameDecoder(max_payload=MAX_CONFIG)

    def receive_config(self) -> Frame:
        """Wait for the first frame, the configuration.

        Raises:
            SystemExit: If the pool is gone before it comes.
        """
        while data := self._socket.recv(65536):
            for frame in self._decoder.feed(data):
                return frame
        raise SystemExit(0)

    def start(self) -> None:
        """Start to watch the channel, and the other threads of this process."""
        threading.excepthook = self._report_thread
        threading.Thread(
            target=self._watch, name="asyncpool-control", daemon=True
        ).start()

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Send a frame; if the pool is gone, the watching thread acts on that."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(header(kind, len(payload)) + payload)

    def close(self) -> None:
        """Let go of the descriptor, in a process that is not the worker."""
        self._socket.close()

    def _watch(self) -> None:
        with contextlib.suppress(OSError, ProtocolError):
            while data := self._socket.recv(65536):
                for frame in self._decoder.feed(data):
                    self._answer(frame)
        if self._socket.fileno() >= 0:
            end_group()

    def _answer(self, frame: Frame) -> None:
        if frame.kind is not Kind.REVOKE:
            raise ProtocolError(f"the pool sent {frame.kind.name}")
        won = self._turns.revoke(unpack_places(frame.payload))
        self.send(Kind.REVOKED, pack_places(won))

    def _report_thread(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        threading.__excepthook__(args)
        name = args.thread.name if args.thread is not None else "a thread"
        summary = f"{args.exc_type.__qualname__} in thread {name!r}: {args.exc_value}"
        self.send(Kind.FAILED, Failure("thread", summary, _format(args)).pack())


def _format(args: threading.ExceptHookArgs) -> str:
    tb: TracebackType | None = args.exc_traceback
    return "".join(traceback.format_exception(args.exc_type, args.exc_value, tb))


def end_group() -> None:
    """End this process and all that it has started, at once."""
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    # The worker leads a process group of its own, so this hits nobody else.
    os.killpg(0, signal.SIGKILL)
