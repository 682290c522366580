"""Frames over a socket, without ever blocking the event loop.

Each worker has two channels of this kind: the job channel and the control channel.  In
one turn of the loop the channel reads a bounded amount, and passes on a bounded number of
frames, so that a worker that sends without end takes no more than its share.  The channel
writes at once; only if the peer does not read does it keep the rest for later.
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

# A frame that a peer has begun and does not finish.

# Seconds that a peer may be silent in the middle of a frame.  A worker that has lost its
# processor in the middle of a write goes on within a few seconds.
SILENCE = 60.0


class FrameWatch:
    """Ends a channel whose peer has begun a frame and then sends nothing.

    Otherwise what comes later would be taken for the rest of that frame, and a job whose
    outcome is in there would hang.  The watch notices it after one to two times
    :data:`SILENCE`.

    Args:
        loop: The loop of the channel.
        read: Reads what has arrived, if the channel reads at all now, and returns how many
            bytes are part of an unfinished frame.
        end: Called with what is wrong.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        read: Callable[[], int],
        end: Callable[[ProtocolError], None],
    ) -> None:
        self._read = read
        self._end = end
        self._alarm = Alarm(loop, self._ask)
        self._silent = False

    def go_on(self) -> None:
        """Note that something has come, and that there is an unfinished frame now."""
        self._silent = False
        if not self._alarm.is_set:
            self._alarm.set_in(SILENCE)

    def stop(self) -> None:
        """Watch no more."""
        self._alarm.cancel()

    def _ask(self, _: float) -> None:
        was_silent, self._silent = self._silent, True
        # This process may have been stopped itself, so what has arrived meanwhile counts.
        pending = self._read()
        if not pending:
            return
        if was_silent and self._silent:
            text = f"it began a frame, sent {pending} bytes of it, and then nothing for"
            self._end(ProtocolError(f"{text} {SILENCE:g} s"))
        elif not self._alarm.is_set:
            self._alarm.set_in(SILENCE)


# Errors that mean no more than that the peer is gone.  The reader notices that too, after it
# has read what is left.
_PEER_IS_GONE = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN}

# The channel copies frames up to this size together, for one system call: given one by one
# to sendmsg(), they cost the kernel 1.7 us each.
_SMALL = 65_536

# Seconds after which the channel sends a descriptor again that the kernel has refused since
# too many are on their way.  The kernel counts those of all processes of a user.
_TOO_MANY_PAUSE = 0.01


class _WithDescriptor(bytes):
    """A frame with a descriptor that travels with it."""

    fd: int
    owned: bool


# One turn reads as much as a socket of this kind holds by default.
READ_SIZE = 262_144

# How many frames one turn passes on.  A worker has no more than that many jobs in flight, so
# only a flood has more in one read: 10 922 frames without payload fit, and took up to 194 ms.
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
        # The kernel gives such memory only as it is written, so a long payload costs memory
        # as its parts arrive, and not when its header announces it.
        self._decoder = FrameDecoder(
            max_payload=max_payload,
            allocate=lambda size: mmap.mmap(-1, size),
            most=MOST_FRAMES,
        )
        self._on_frames = on_frames
        self._on_end = on_end
        self._put = 0  # how many bytes were put in all
        self._unsent: deque[bytes | bytearray | memoryview] = deque()
        self._small = bytearray()  # small frames, which follow those in self._unsent
        self._never_sent = 0
        self._flushing = self._blocked = self._sending = False
        self._half_closed = False
        self._ended = self._paused = self._catching_up = False
        self._retry = Alarm(loop, self._send_again)
        self._frame_watch = FrameWatch(loop, self._read_rest, self._end)
        sock.setblocking(False)
        loop.add_reader(self._fd, self._read_some)

    def allow(self, max_payload: int) -> None:
        """Let the frames from the peer carry *max_payload* bytes from now on."""
        self._decoder.max_payload = max_payload

    @property
    def unsent(self) -> int:
        """How many bytes the peer has not taken, including those that it never will."""
        return self._never_sent + len(self._small) + sum(map(len, self._unsent))

    @property
    def taken(self) -> int:
        """How many bytes the peer has taken, counted as :meth:`put` does."""
        return self._put - self.unsent

    def put(self, head: bytes, payload: bytes | memoryview = b"") -> int:
        """Put a frame behind the others; the next flush sends it.

        Returns:
            Where the frame ends, in bytes since the first one.
        """
        self._small += head
        if len(payload) <= _SMALL:
            self._small += payload
        else:
            self._close_small()
            self._unsent.append(payload)
        self._put = end = self._put + len(head) + len(payload)
        return end

    @property
    def unsent_descriptors(self) -> int:
        """How many descriptors the channel has not sent yet."""
        return sum(isinstance(piece, _WithDescriptor) for piece in self._unsent)

    def put_descriptor(self, frame: bytes, fd: int, *, keep: bool = False) -> None:
        """Put a small frame behind the others, and a descriptor that travels with it.

        The channel owns the descriptor from now on and closes it.  If *keep* is set, the
        caller keeps it, and must not close it before the channel has sent it.
        """
        piece = _WithDescriptor(frame)
        piece.fd, piece.owned = fd, not keep
        self._close_small()
        self._unsent.append(piece)
        self._put += len(frame)

    def flush_soon(self) -> None:
        """Flush in the next turn of the loop, together with what is put until then."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_now)

    def flush(self) -> None:
        """Send what was put; what the socket does not take now goes out later.

        If the peer is gone, ``on_end`` reports it, and this method does not.
        """
        if self._ended or self._blocked:
            return
        if self._sending:  # this call interrupts a send: Ctrl-C has cancelled a job
            self.flush_soon()
        elif self._send_some():
            self._blocked = True
            self._loop.add_writer(self._fd, self._write_some)

    def half_close(self) -> None:
        """Tell the peer, once all is sent, that nothing more comes."""
        self._half_closed = True
        if not self.unsent:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def read(self) -> None:
        """Read what has arrived, but no more than one turn of the loop may take."""
        if self._ended:
            return
        if self._decoder.more:
            self._pass_on_more()
        else:
            self._read_some()

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
            self._loop.add_reader(self._fd, self._read_some)

    def ignore(self) -> None:
        """Read nothing more, and pass on nothing more; the peer is not trusted any longer."""
        if self._ended:
            return  # another channel may have the number of this one's descriptor by now
        self._ended = True
        self._frame_watch.stop()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)

    def drain(self) -> None:
        """Read all that has arrived, when the peer has stopped writing.

        Another process may hold the peer's end of the socket too, and write without end.  So
        the channel reads only what has arrived by now, and what one more read finds.
        """
        self._pass_on_all()
        left = 0 if self._ended else _unread(self._socket)
        while left > 0 and not self._ended and (size := self._read_some()):
            left -= size
            self._pass_on_all()
        self.read()  # this also finds the end, if there is nothing else
        self._pass_on_all()

    def close(self) -> None:
        """Close the socket; no callback comes after this."""
        self.ignore()
        self._give_up_sending()
        self._retry.cancel()
        self._socket.close()

    def _read_some(self) -> int:
        """Read once; return how many bytes came, or 0 if the peer is gone or has erred."""
        decoder = self._decoder
        target = decoder.target
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
                frames = decoder.feed(self._buffer[:size])
            else:
                frames = decoder.fill(size)
        except ProtocolError as error:
            self._end(error)
            return 0
        self._pass_on(frames)
        return size if decoder.error is None else 0

    def _pass_on(self, frames: list[Frame]) -> None:
        decoder = self._decoder
        if frames:
            self._on_frames(frames)
        if decoder.error is not None:
            self._end(decoder.error)
        elif decoder.rest or decoder.target is not None:
            self._wait_for_rest()

    # What has arrived, and is no frame yet, or one too many for this turn.

    def _wait_for_rest(self) -> None:
        if self._ended:
            return
        if self._decoder.more and not self._catching_up:
            self._loop.remove_reader(self._fd)
            self._catch_up_soon()
        self._frame_watch.go_on()

    def _catch_up_soon(self) -> None:
        self._catching_up = True
        self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._catching_up = False
        if not (self._ended or self._paused):
            self._pass_on_more()
            self._read_on()

    def _read_on(self) -> None:
        if not (self._ended or self._paused or self._catching_up):
            self._loop.add_reader(self._fd, self._read_some)

    def _pass_on_more(self) -> None:
        """Pass on what came in an earlier read, but no more than one turn may take."""
        if not self._decoder.more:
            return
        try:
            frames = self._decoder.feed(b"")
        except ProtocolError as error:
            self._end(error)
            return
        self._pass_on(frames)

    def _pass_on_all(self) -> None:
        while self._decoder.more and not self._ended:
            self._pass_on_more()

    def _read_rest(self) -> int:
        """Read for the watch; return how many bytes are of a frame that is not whole."""
        if self._paused or self._catching_up:
            self._frame_watch.go_on()  # it is not the peer that keeps the rest back
        else:
            self.read()
        return 0 if self._ended else self._decoder.pending

    def _end(self, error: ProtocolError | None) -> None:
        if self._ended:
            return
        self.ignore()
        self._on_end(error)

    def _give_up_sending(self) -> None:
        self._never_sent = self.unsent
        for piece in self._unsent:
            if isinstance(piece, _WithDescriptor) and piece.owned:
                os.close(piece.fd)
        self._unsent.clear()
        self._small.clear()

    def _close_small(self) -> None:
        """Close the run of small frames, so that what follows takes a system call of its own."""
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
        """Send once; return whether there is more to send."""
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
        # The kernel sends the descriptor with the first byte: if it took any, it took both.
        sent = socket.send_fds(self._socket, [data], [data.fd])
        if data.owned:
            os.close(data.fd)
        return sent


def _unread(sock: socket.socket) -> int:
    """Return how many bytes have arrived that nobody has read yet."""
    try:
        data = fcntl.ioctl(sock, termios.FIONREAD, bytes(4))
    except OSError:
        return READ_SIZE
    return int.from_bytes(data, sys.byteorder)
