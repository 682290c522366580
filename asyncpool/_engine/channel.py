"""Frames over a socket, also with descriptors, without ever blocking the event loop.

Each worker has two channels of this kind: the job channel and the control channel.  In
one iteration of the loop the channel reads a bounded amount, and passes on a bounded number of
frames, so that a worker that sends without end takes no more than its share.  The channel
writes at once; only if the peer does not read does it keep the rest for later.

Descriptors arrive beside the bytes that they belong to: the kernel ends a read behind the bytes
that a descriptor came with.  So the descriptors arrive in the order of their frames.  If this
process may open no more descriptors, the kernel drops the descriptor, and says so in the result of
the read.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable
from typing import Any

from asyncpool._engine.loop import Alarm
from asyncpool._wire.frames import Frame, FrameDecoder
from asyncpool.errors import ProtocolError

# A frame may take two reads: the first leaves its descriptor here, and the second may bring the
# descriptor of the next frame.
_MOST_ARRIVED = 2

# Plain integers: to combine members of an enum takes more than 1 us of each read.
_CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_INT = array.array("i").itemsize
_ROOM = socket.CMSG_SPACE(_INT)
_CUT_OFF = int(socket.MSG_CTRUNC)


class DescriptorSocket(socket.socket):
    """A socket that keeps the descriptors which arrive with the bytes.

    Attributes:
        arrived: The descriptors that have arrived, the oldest first; ``None`` stands for one
            that the kernel has dropped.
        unwanted: Whether a descriptor has arrived that belongs to no frame.  From then on the
            socket closes each that arrives.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(fileno=sock.detach())
        self.arrived: deque[int | None] = deque()
        self.unwanted = False

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0) -> int:  # type: ignore[override]
        """Read into *buffer*, as a socket does, and keep the descriptors that arrive."""
        target = buffer[:nbytes] if nbytes else buffer
        size, ancillary, found, _ = self.recvmsg_into([target], _ROOM, flags | _CLOEXEC)
        if not ancillary and not found & _CUT_OFF:
            return size  # nearly always
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % _INT])
        if len(fds) > 1 or (fds and len(self.arrived) >= _MOST_ARRIVED):
            self.unwanted = True
        for fd in fds:
            if self.unwanted:
                os.close(fd)
            else:
                os.set_inheritable(fd, False)
                self.arrived.append(fd)
        if found & _CUT_OFF and not fds:
            self.arrived.append(None)
        return size

    def close(self) -> None:
        """Close the socket, and the descriptors that nobody has taken."""
        while self.arrived:
            fd = self.arrived.popleft()
            if fd is not None:
                os.close(fd)
        super().close()


# Seconds that a peer may be silent in the middle of a frame.  A worker that has lost its
# processor in the middle of a write goes on within a few seconds.
SILENCE = 60.0

# Errors that mean no more than that the peer is gone.  The reader notices that too, after it
# has read what is left.
_PEER_IS_GONE = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN}

# The channel joins frames up to this size, for one system call: given one by one to sendmsg(),
# they cost the kernel 1.7 us each.
SMALL = 65_536

# Seconds after which the channel sends a descriptor again that the kernel has refused since
# too many are on their way.  The kernel counts those of all processes of a user.
_TOO_MANY_PAUSE = 0.01


class _WithDescriptor(bytes):
    """A frame with a descriptor that travels with it."""

    fd: int
    owned: bool


# One read takes as much as a socket of this kind holds by default.
READ_SIZE = 262_144

# How many frames one iteration of the loop passes on.  A worker with one lane has no more jobs in
# flight, so only a flood has more in one read: 10 922 frames without payload fit, and took up to 194 ms.
MOST_FRAMES = 128


class Channel:
    """One end of a socketpair that carries frames.

    Args:
        loop: The loop that watches the socket.
        sock: The pool's end.  The channel owns and closes it.
        buffer: Where the channel reads into.  All channels of a loop may share one, since
            each needs it for the length of one call.  Allocating one for every read costs
            4 us.
        max_payload: The most bytes that a frame from the peer may carry.
        bare: Whether the frames are tuples without names; see :class:`FrameDecoder`.
        on_frames: Called with the frames of one read, in their order.
        on_end: Called once, when the peer is gone (``None``) or has broken the
            protocol (the error).  No frame comes after it.

    Attributes:
        small: The small frames that were put last, in pieces that are joined when they are sent.
            Whoever puts one there adds its size to *put_bytes*.
        put_bytes: How many bytes were put in all.
        sent_bytes: How many of them the peer's socket has taken.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        *,
        buffer: memoryview,
        max_payload: int,
        bare: bool = False,
        on_frames: Callable[[list[Frame]], None],
        on_end: Callable[[ProtocolError | None], None],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._fd = sock.fileno()
        self._buffer = buffer
        self._decoder = FrameDecoder(
            max_payload=max_payload, most=MOST_FRAMES, bare=bare
        )
        self._on_frames = on_frames
        self._on_end = on_end
        # What goes out before *small*: each entry by a system call of its own.  An entry is a
        # payload, a frame with its descriptor, or a list of small frames, which are joined.
        self._queue: deque[Any] = deque()
        self.small: list[bytes | memoryview] = []
        self.put_bytes = self.sent_bytes = 0
        self._flush_is_due = self._blocked = self._sending = self._half_closed = False
        self._retry = Alarm(loop, lambda _: self.flush())
        self._ended = self._paused = self._catching_up = self._silent = False
        self._silence_alarm = Alarm(loop, self._on_silence)
        sock.setblocking(False)
        loop.add_reader(self._fd, self.read)

    def allow(self, max_payload: int) -> None:
        """Let the frames from the peer carry *max_payload* bytes from now on."""
        self._decoder.max_payload = max_payload

    # To the peer.

    @property
    def unsent(self) -> int:
        """How many bytes the peer has not taken, including those that it never will."""
        return self.put_bytes - self.sent_bytes

    @property
    def unsent_descriptors(self) -> int:
        """How many descriptors the channel has not sent yet."""
        return sum(isinstance(piece, _WithDescriptor) for piece in self._queue)

    def put(self, head: bytes, payload: bytes | memoryview = b"") -> int:
        """Put a frame behind the others; the next flush sends it.

        Returns:
            Where the frame ends, in bytes since the first one.
        """
        size = len(payload)
        added = len(head) + size
        if size <= SMALL and type(payload) is not bytes:
            payload = bytes(payload)
        # No function is called below: a handler of SIGINT might put a frame into this one.
        if size <= SMALL:
            self.small += (head, payload)
        else:
            self._queue += ([*self.small, head], payload)
            self.small = []
        self.put_bytes = end = self.put_bytes + added
        return end

    def put_descriptor(self, frame: bytes, fd: int, *, keep: bool = False) -> None:
        """Put a small frame behind the others, and a descriptor that travels with it.

        The channel owns the descriptor from now on and closes it.  If *keep* is set, the
        caller keeps it, and must not close it before the channel has sent it.
        """
        piece = _WithDescriptor(frame)
        piece.fd, piece.owned = fd, not keep
        size = len(frame)
        self._queue += (self.small, piece) if self.small else (piece,)
        self.small = []
        self.put_bytes += size

    def flush_soon(self) -> None:
        """Flush in the next iteration of the loop, together with what is put until then."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what was put; what the socket does not take now goes out later.

        If the peer is gone, ``on_end`` reports it, and this method does not.
        """
        self._flush_is_due = False
        queue, small = self._queue, self.small
        if self._ended or self._blocked or not (small or queue):
            return
        if self._sending:  # this call interrupts a send: Ctrl-C has cancelled a job
            self.flush_soon()
            return
        self._sending = True
        try:
            piece: Any
            if queue:
                piece = queue.popleft()
                if type(piece) is list:
                    piece = b"".join(piece)
            else:
                self.small = []
                piece = b"".join(small)
            try:
                if type(piece) is _WithDescriptor:
                    # The kernel sends the descriptor with the first byte: if it took any, it took
                    # both.
                    sent = socket.send_fds(self._socket, [piece], [piece.fd])
                    if piece.owned:
                        os.close(piece.fd)
                else:
                    sent = self._socket.send(piece)
            except OSError as error:
                queue.appendleft(piece)
                if not self._on_send_error(error):
                    return
            else:
                self.sent_bytes = taken = self.sent_bytes + sent
                if taken == self.put_bytes and not self._half_closed:
                    return  # nearly always
                if sent < len(piece):
                    queue.appendleft(memoryview(piece)[sent:])
        finally:
            self._sending = False
        if queue or self.small:
            self._blocked = True
            self._loop.add_writer(self._fd, self._send_more)
        elif self._half_closed:
            self.half_close()

    def _on_send_error(self, error: OSError) -> bool:
        """Retry later, or give up what is unsent; return true if the socket is only full.

        The loop says when it takes more.
        """
        if isinstance(error, BlockingIOError | InterruptedError):
            return True
        if error.errno == errno.ETOOMANYREFS:
            if not self._retry.is_set:
                self._retry.set_in(_TOO_MANY_PAUSE)
            return False
        self._discard_unsent()
        # If the peer has left something unread, uvloop's reader does not notice its end any more.
        self._loop.call_soon(self.read_rest)
        if error.errno not in _PEER_IS_GONE:
            trouble = ProtocolError(f"nothing can be sent to it: {error}")
            self._loop.call_soon(self._end, trouble)
        return False

    def _send_more(self) -> None:
        self._blocked = False
        self.flush()
        if not self._blocked:
            self._loop.remove_writer(self._fd)

    def half_close(self) -> None:
        """Tell the peer, once all is sent, that nothing more comes."""
        self._half_closed = True
        if not self.unsent:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def _discard_unsent(self) -> None:
        for piece in self._queue:
            if isinstance(piece, _WithDescriptor) and piece.owned:
                os.close(piece.fd)
        self._queue.clear()
        self.small.clear()

    # From the peer.

    def read(self) -> int:
        """Read what has arrived, but no more than one iteration of the loop may take.

        Returns:
            How many bytes came; 0 if the peer is gone or has erred.
        """
        if self._ended:
            return 0
        decoder, size = self._decoder, 0
        frames: list[Frame] | None
        try:
            if decoder.is_empty or not (decoder.more or decoder.target):
                size = self._socket.recv_into(self._buffer)
                frames = decoder.feed(self._buffer[:size]) if size else None
            elif (target := decoder.target) is not None:
                size = self._socket.recv_into(target, min(READ_SIZE, len(target)))
                frames = decoder.fill(size) if size else None
            else:  # what came in an earlier read
                frames = decoder.feed(b"")
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            frames = None
        except ProtocolError as error:
            self._end(error)
            return 0
        if frames is None:
            self._end(None)
            return 0
        if frames:
            self._on_frames(frames)
        if decoder.is_empty:
            return size
        self._check_partial_frame()
        return size if decoder.error is None else 0

    def _check_partial_frame(self) -> None:
        """Handle what is left of the bytes that came: a part of a frame, or none, or too much for an iteration."""
        if self._ended:
            return
        if self._decoder.error is not None:
            self._end(self._decoder.error)
            return
        if self._decoder.more and not self._catching_up:
            self._loop.remove_reader(self._fd)
            self._catch_up_soon()
        self._silent = False
        if not self._silence_alarm.is_set:
            self._silence_alarm.set_in(SILENCE)

    def _catch_up_soon(self) -> None:
        self._catching_up = True
        self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._catching_up = False
        if self._decoder.more and not self._paused:
            self.read()
        if not (self._ended or self._paused or self._catching_up):
            self._loop.add_reader(self._fd, self.read)

    def _on_silence(self, _: float) -> None:
        """End a channel whose peer has begun a frame and then sends nothing.

        Otherwise what comes later would be taken for the rest of that frame, and a job whose
        outcome is in there would hang.  This notices it after one to two times :data:`SILENCE`.
        """
        was_silent, self._silent = self._silent, True
        if self._paused or self._catching_up:
            self._check_partial_frame()  # it is not the peer that keeps the rest back
        else:
            self.read()  # this process may have been stopped itself: what has arrived counts
        pending = 0 if self._ended else self._decoder.pending
        if pending and was_silent and self._silent:
            text = f"it began a frame, sent {pending} bytes of it, and then nothing for"
            self._end(ProtocolError(f"{text} {SILENCE:g} s"))
        elif pending and not self._silence_alarm.is_set:
            self._silence_alarm.set_in(SILENCE)

    def pause(self) -> None:
        """Stop reading until :meth:`resume`, so that the peer has to wait."""
        self._paused = True
        if not self._ended:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Read again, after :meth:`pause`."""
        self._paused = False
        if self._ended or self._catching_up:
            return
        if self._decoder.more:
            self._catch_up_soon()
        else:
            self._loop.add_reader(self._fd, self.read)

    def read_rest(self) -> None:
        """Read all that has arrived, when the peer has stopped writing.

        Another process may hold the peer's end of the socket too, and write without end.  So
        the channel reads only what has arrived by now, and what one more read finds.
        """
        self._pass_on_all()
        left = 0 if self._ended else _unread(self._socket)
        while left > 0 and (size := self.read()):
            left -= size
            self._pass_on_all()
        self.read()  # this also finds the end, if there is nothing else
        self._pass_on_all()

    def _pass_on_all(self) -> None:
        while self._decoder.more and not self._ended:
            self.read()

    # Its end.

    def ignore(self) -> None:
        """Read nothing more, and pass on nothing more; the peer is not trusted any longer."""
        if self._ended:
            return  # another channel may have the number of this one's descriptor by now
        self._ended = True
        self._silence_alarm.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)

    def close(self) -> None:
        """Close the socket; no callback comes after this."""
        self.ignore()
        self._discard_unsent()
        self._retry.cancel()
        self._socket.close()

    def _end(self, error: ProtocolError | None) -> None:
        if not self._ended:
            self.ignore()
            self._on_end(error)


def _unread(sock: socket.socket) -> int:
    """Return how many bytes have arrived that nobody has read yet."""
    try:
        data = fcntl.ioctl(sock, termios.FIONREAD, bytes(4))
    except OSError:
        return READ_SIZE
    return int.from_bytes(data, sys.byteorder)
