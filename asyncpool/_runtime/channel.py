"""Frames over a socket, without ever blocking the event loop.

The job channel of a worker and its control channel are both of this kind.  Reading
is bounded per turn of the loop, so that a worker that sends without end takes no
more than its share; writing goes out at once and is kept back only for a peer that
does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import deque
from collections.abc import Callable

from asyncpool._core.frames import Frame, FrameDecoder
from asyncpool.errors import ProtocolError

__all__ = ["READ_SIZE", "Channel"]

# The reader hears of these as well, after what there is to read.
_PEER_IS_GONE = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN}

# One turn reads as much as a socket of this kind holds by default.
READ_SIZE = 262_144


class Channel:
    """One end of a socketpair that carries frames.

    Args:
        loop: The loop that watches the socket.
        sock: The pool's end; it is owned, and closed, by the channel.
        buffer: Where to read into.  All channels of a loop may share one, each for the
            length of one call; to allocate it anew for every read costs 4 us.
        max_payload: The most bytes that a frame from the peer may carry.
        on_frame: Called with each frame.
        on_end: Called once, when the peer is gone (``None``) or has broken the
            protocol (the error).  No frame comes after it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        *,
        buffer: memoryview,
        max_payload: int,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[ProtocolError | None], None],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._fd = sock.fileno()
        self._buffer = buffer
        self._decoder = FrameDecoder(max_payload=max_payload)
        self._on_frame = on_frame
        self._on_end = on_end
        self._unsent: deque[memoryview] = deque()
        self._half_closed = False
        self._ended = False
        sock.setblocking(False)
        loop.add_reader(self._fd, self._read_some)

    @property
    def unsent(self) -> bool:
        """Whether bytes are left that the peer has not taken yet."""
        return bool(self._unsent)

    def send(self, head: bytes, payload: bytes = b"") -> None:
        """Send a frame; what the socket does not take now goes out later.

        A peer that is gone is reported by ``on_end``, not here.
        """
        if self._unsent:
            self._unsent.append(memoryview(head))
            self._unsent.append(memoryview(payload))
            return
        try:
            sent = self._socket.sendmsg((head, payload))
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            if error.errno not in _PEER_IS_GONE:
                trouble = ProtocolError(f"nothing can be sent to it: {error}")
                self._loop.call_soon(self._end, trouble)
            return
        if sent == len(head) + len(payload):
            return
        if sent < len(head):
            self._unsent.append(memoryview(head)[sent:])
            sent = 0
        else:
            sent -= len(head)
        self._unsent.append(memoryview(payload)[sent:])
        self._loop.add_writer(self._fd, self._write_some)

    def half_close(self) -> None:
        """Tell the peer that nothing more comes, once all is sent."""
        self._half_closed = True
        if not self._unsent:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def drain(self) -> None:
        """Read all that is there to be read, for a peer that writes no more."""
        while not self._ended and self._read_some():
            pass

    def close(self) -> None:
        """Let go of the socket; no callback comes after this."""
        self._ended = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._unsent.clear()
        self._socket.close()

    def _read_some(self) -> bool:
        """Read once, and tell whether there was something."""
        try:
            size = self._socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            size = 0
        if not size:
            self._end(None)
            return False
        try:
            frames = self._decoder.feed(self._buffer[:size])
        except ProtocolError as error:
            self._end(error)
            return False
        for frame in frames:
            if self._ended:
                return False
            self._on_frame(frame)
        if self._decoder.error is not None:
            self._end(self._decoder.error)
            return False
        return True

    def _end(self, error: ProtocolError | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._on_end(error)

    def _write_some(self) -> None:
        try:
            sent = self._socket.sendmsg(list(self._unsent)[:8])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._unsent.clear()
            self._loop.remove_writer(self._fd)
            return
        while self._unsent and sent >= len(self._unsent[0]):
            sent -= len(self._unsent.popleft())
        if self._unsent:
            self._unsent[0] = self._unsent[0][sent:]
            return
        self._loop.remove_writer(self._fd)
        if self._half_closed:
            self.half_close()
