"""The client's end of a control socket, which the commands use."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any, Self

from asyncpool._observe.control.protocol import MAX_REPLY, Request, unpack_line
from asyncpool._observe.control.socket_files import (
    closed_on_error,
    peer_pid,
    peer_uid,
)
from asyncpool._wire.text import printable, printable_block
from asyncpool.errors import ProtocolError

_TIMEVAL = struct.Struct("ll")  # seconds, microseconds


class ControlClient:
    """A connection to a pool or a cluster; a context manager.  Its calls block.

    Args:
        path: The control socket.
        within: The seconds that connecting may take.

    Attributes:
        pid: The process that listens there; ``None`` if the system does not say.

    Raises:
        TimeoutError: If too many clients wait there already.
        OSError: If nobody listens there.
        PermissionError: If another user's process listens there.
    """

    def __init__(self, path: str, *, within: float) -> None:
        sock = self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with closed_on_error(sock):
            # A limit by settimeout() would not help, nor may the program's default one be set: a
            # full socket refuses a non-blocking connect at once.
            sock.settimeout(None)
            limit = _TIMEVAL.pack(int(within), int(within % 1 * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            try:
                sock.connect(path)
            except BlockingIOError:
                raise TimeoutError(
                    f"too many clients wait at {path}, and none is accepted"
                ) from None
            check_listener(sock, path)
            self.pid = peer_pid(sock)
            self._lines = sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._sock.close()

    def ask(self, request: Request, *, within: float | None = None) -> dict[str, Any]:
        """Return the answer to a request.

        Args:
            request: The request.
            within: The seconds that the other side has to answer.  If they are over, this
                connection cannot be used any more.

        Raises:
            TimeoutError: If it does not answer in time.
            OSError: If the other side has ended before it answered.
            ProtocolError: If it cannot be read, or is an error; the text is the other side's.
        """
        self._sock.settimeout(within)
        # Who is turned away finds the reason, although nobody takes what it sends.
        with contextlib.suppress(BrokenPipeError):
            self._sock.sendall(request.pack())
        return self._next_reply()

    def watch(self, request: Request) -> Iterator[dict[str, Any]]:
        """Yield one answer after the other to a request to watch; there is no time limit.

        Raises:
            ProtocolError: As :meth:`ask` does.
            OSError: If the other side has ended.
        """
        yield self.ask(request)
        while True:
            yield self._next_reply()

    def _next_reply(self) -> dict[str, Any]:
        line = self._lines.readline(MAX_REPLY + 1)
        return reply_of(_harmless(unpack_line(line)) if line else None)

    def wait_for_end(self) -> None:
        """Wait until the other process closes its socket, which a cluster's does last."""
        with contextlib.suppress(OSError):
            while self._sock.recv(4096):
                pass


def check_listener(sock: socket.socket, path: str) -> None:
    """Check that it is this user's process which listens at *path*.

    Raises:
        PermissionError: If it is not.
    """
    if (uid := peer_uid(sock)) != os.geteuid():
        raise PermissionError(f"user {uid} listens at {path}")


def reply_of(told: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the other side has told, if it is an answer.

    Raises:
        ProtocolError: If it is an error; the text is the other side's.
        ConnectionResetError: If it is nothing: the other side has ended.
    """
    if told is None:
        raise ConnectionResetError("it has ended")
    if "error" in told:
        raise ProtocolError(str(told["error"]))
    return told


def _harmless(value: Any) -> Any:
    """Return what the other side says without characters that control a terminal."""
    if isinstance(value, str):
        return printable_block(value)
    if isinstance(value, list):
        return [_harmless(each) for each in value]
    if isinstance(value, dict):
        return {printable(name): _harmless(each) for name, each in value.items()}
    return value
