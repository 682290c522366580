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
import fcntl
import mmap
import os
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable

from asyncpool._core.wire.frames import Frame, FrameDecoder
from asyncpool._runtime.base.alarm import Alarm
from asyncpool.errors import ProtocolError

# The reader hears of these as well, after what there is to read.
_PEER_IS_GONE = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN}

# Frames up to this size are copied together, for one system call: given one by one to
# sendmsg(), they cost the kernel 1.7 us each.
_SMALL = 65_536

# Seconds after which a descriptor is sent once more, if too many are on their way already:
# the kernel counts those of all processes of a user.
_TOO_MANY_PAUSE = 0.01


class _WithDescriptor(bytes):
    """A frame that a descriptor goes along with."""

    fd: int
    owned: bool


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
        on_frames: Called with the frames of one read, in their order.
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
        on_frames: Callable[[list[Frame]], None],
        on_end: Callable[[ProtocolError | None], None],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._fd = sock.fileno()
        self._buffer = buffer
        # Of such memory only what is written to exists, so a long payload costs no
        # more than the turn of the loop in which a part of it comes.
        self._decoder = FrameDecoder(
            max_payload=max_payload, allocate=lambda size: mmap.mmap(-1, size)
        )
        self._on_frames = on_frames
        self._on_end = on_end
        self._unsent: deque[bytes | bytearray | memoryview] = deque()
        self._small = bytearray()  # frames behind those
        self._never_sent = 0
        self._flushing = self._blocked = self._sending = False
        self._half_closed = False
        self._ended = False
        self._retry = Alarm(loop, self._send_again)
        sock.setblocking(False)
        loop.add_reader(self._fd, self._read_some)

    @property
    def unsent(self) -> int:
        """How many bytes are left that the peer has not taken, or never took."""
        return self._never_sent + len(self._small) + sum(map(len, self._unsent))

    def put(self, head: bytes, payload: bytes | memoryview = b"") -> None:
        """Have a frame sent by the next flush, behind what was put before."""
        self._small += head
        if len(payload) <= _SMALL:
            self._small += payload
        else:
            self._close_small()
            self._unsent.append(payload)

    @property
    def unsent_descriptors(self) -> int:
        """How many descriptors are left that were not sent."""
        return sum(isinstance(piece, _WithDescriptor) for piece in self._unsent)

    def put_descriptor(self, frame: bytes, fd: int, *, keep: bool = False) -> None:
        """Have a small frame sent, and a descriptor with it.

        It is owned, and closed, by the channel from now on; unless the caller *keeps* it,
        and does not close it before it is sent.
        """
        piece = _WithDescriptor(frame)
        piece.fd, piece.owned = fd, not keep
        self._close_small()
        self._unsent.append(piece)

    def flush_soon(self) -> None:
        """Flush in the next turn of the loop, with what is put until then."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_now)

    def flush(self) -> None:
        """Send what was put; what the socket does not take now goes out later.

        A peer that is gone is reported by ``on_end``, not here.
        """
        if self._ended or self._blocked:
            return
        if self._sending:  # Ctrl-C has cancelled a job in the middle of it
            self.flush_soon()
        elif self._send_some():
            self._blocked = True
            self._loop.add_writer(self._fd, self._write_some)

    def half_close(self) -> None:
        """Tell the peer that nothing more comes, once all is sent."""
        self._half_closed = True
        if not self.unsent:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def read(self) -> None:
        """Read what is there by now, as much of it as one turn of the loop may take."""
        if not self._ended:
            self._read_some()

    def pause(self) -> None:
        """Read no more, so that the peer has to wait, until :meth:`resume`."""
        if not self._ended:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Read on."""
        if not self._ended:
            self._loop.add_reader(self._fd, self._read_some)

    def drain(self) -> None:
        """Read all that is there by now, for a peer that writes no more.

        Somebody may have its end of the socket too, and write without end: what comes from
        now on is not read, but for what one more look finds.
        """
        left = 0 if self._ended else _unread(self._socket)
        while left > 0 and not self._ended and (size := self._read_some()):
            left -= size
        self.read()  # there may be nothing but the end

    def close(self) -> None:
        """Let go of the socket; no callback comes after this."""
        self._ended = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._give_up_sending()
        self._retry.cancel()
        self._socket.close()

    def _read_some(self) -> int:
        """Read once, and return how many bytes there were; 0 behind what was wrong."""
        target = self._decoder.target
        try:
            if target is None:
                size = self._socket.recv_into(self._buffer)
            else:
                size = self._socket.recv_into(target, min(READ_SIZE, len(target)))
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            size = 0
        if not size:
            self._end(None)
            return 0
        try:
            if target is None:
                frames = self._decoder.feed(self._buffer[:size])
            else:
                frames = self._decoder.fill(size)
        except ProtocolError as error:
            self._end(error)
            return 0
        if frames:
            self._on_frames(frames)
        if self._decoder.error is not None:
            self._end(self._decoder.error)
            return 0
        return size

    def _end(self, error: ProtocolError | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._on_end(error)

    def _give_up_sending(self) -> None:
        self._never_sent = self.unsent
        for piece in self._unsent:
            if isinstance(piece, _WithDescriptor) and piece.owned:
                os.close(piece.fd)
        self._unsent.clear()
        self._small.clear()

    def _close_small(self) -> None:
        """Have what is put from now on follow in another system call."""
        if self._small:
            self._unsent.append(self._small)
            self._small = bytearray()

    def _flush_now(self) -> None:
        self._flushing = False
        self.flush()

    def _write_some(self) -> None:
        if not self._send_some():
            self._blocked = False
            self._loop.remove_writer(self._fd)

    def _send_some(self) -> bool:
        """Send once, and tell whether there is more."""
        self._sending = True
        try:
            return self._send_first()
        finally:
            self._sending = False

    def _send_first(self) -> bool:
        unsent = self._unsent
        self._close_small()
        if not unsent:
            return False
        try:
            sent = self._send(unsent[0])
        except (BlockingIOError, InterruptedError):
            return True
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                if not self._retry.is_set:
                    self._retry.set_in(_TOO_MANY_PAUSE)
                return False
            self._give_up_sending()
            if error.errno not in _PEER_IS_GONE:
                trouble = ProtocolError(f"nothing can be sent to it: {error}")
                self._loop.call_soon(self._end, trouble)
            return False
        if sent < len(unsent[0]):
            unsent[0] = memoryview(unsent[0])[sent:]
        else:
            unsent.popleft()
        if unsent:
            return True
        if self._half_closed:
            self.half_close()
        return False

    def _send_again(self, _: float) -> None:
        self.flush()

    def _send(self, data: bytes | bytearray | memoryview) -> int:
        if not isinstance(data, _WithDescriptor):
            return self._socket.send(data)
        # The descriptor goes with the first byte, and has gone if any was taken.
        sent = socket.send_fds(self._socket, [data], [data.fd])
        if data.owned:
            os.close(data.fd)
        return sent


def _unread(sock: socket.socket) -> int:
    """Return how many bytes have arrived and were not read."""
    try:
        data = fcntl.ioctl(sock, termios.FIONREAD, bytes(4))
    except OSError:
        return READ_SIZE
    return int.from_bytes(data, sys.byteorder)
