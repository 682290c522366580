"""The wire format of the channels between a pool and its workers.

A channel carries a sequence of frames and nothing else.  A frame is a fixed
header and a payload that this module does not look into::

    0        1        2                 4                                8
    +--------+--------+-----------------+--------------------------------+
    | version|  kind  |     attempt     |             number             |
    +--------+--------+-----------------+--------------------------------+
    |                           job id (8 bytes)                         |
    +--------------------------------------------------------------------+
    |                       payload length (8 bytes)                     |
    +--------------------------------------------------------------------+
    |  payload ...

Integers are unsigned and big-endian.  What *number* means depends on the kind.
*number*, *attempt* and *job id* are zero where they mean nothing.  Both ends always run
the same version of asyncpool.  If by mistake they do not, *version* makes this an error
instead of a hang.  In this docstring *job* is the job id, which some kinds use for another
number.
"""

from __future__ import annotations

import enum
import functools
import struct
from mmap import mmap

from asyncpool._wire.records import Record
from asyncpool.errors import ProtocolError

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from typing import Any

VERSION = 2

_HEADER = struct.Struct("!BBHIQQ")
HEADER_SIZE = _HEADER.size
# Takes version and kind as one number, since every frame is checked for both.
_unpack_header = struct.Struct("!HHIQQ").unpack_from

# What fits in the header's fields.
MAX_ATTEMPTS = 0xFFFF
MAX_NUMBER = 0xFFFF_FFFF

# More than the size of any object.
MAX_PAYLOAD = (1 << 63) - 1

# A longer payload is received directly into its place, and not put together from parts.
_LONG = 1 << 20


class FrameKind(enum.IntEnum):
    """What a frame means."""

    # Control channels, of workers and of the launcher.
    CONFIG = 1  # pool: how to begin
    HELLO = 2  # worker, launcher: ready
    FAILED = 3  # worker, launcher: something outside any job went wrong
    # The launcher's channel.  What they say is JSON, and requests are answered in their order.
    LAUNCH = 4  # pool: start a worker on these descriptors, with these variables
    LAUNCHED = 5  # launcher: the worker's pid, and whether its pidfd comes along
    EXITED = 6  # launcher: a worker's pid, its status and CPU time in microseconds
    # Job channels.
    JOB = 7  # pool: run this; *number* is the function's, or 0 if that comes along
    VALUE = 8  # worker: what the job returned; *number* is how long it took, in us
    ERROR = 9  # worker: what the job raised; *number* as above
    FUNCTION = 10  # pool: remember this function under *number*
    CONTEXT = 25  # pool: the context of the jobs that follow
    STREAM = 34  # pool: run this like a JOB, and send what it yields
    ITEM = 35  # worker: the next thing that the job has yielded
    CREDIT = 36  # pool: the next stream may send *number* items
    LAST_HEARTBEAT = 33  # worker: the last heartbeat of the job whose outcome is next
    # Control channels of workers again.
    IDENTITY = 46  # pool: who the worker is; ahead of the CONFIG
    # pool: with a descriptor for the initializer, or of a server's; ahead of the CONFIG
    HANDED = 47
    REVOKE = 11  # pool: do not begin the jobs with these sequence numbers
    REVOKED = 12  # worker: these of them will not begin
    INTERRUPT = 23  # pool: end the job with this sequence number, if it is running
    # pool: until when the job with sequence number *job* may run; then its lease lapses
    FENCE = 48
    STACKS = 24  # pool: write the stacks of your threads; worker: I have
    PROFILE = 51  # pool: begin with profile *job*; end it if there is no payload
    # worker: what it has found for profile *job*; with a *number*: that was the last of it
    SAMPLES = 52
    WHERE = 53  # pool: where are your jobs, or is *job*; worker: there
    CLOSING = 50  # pool: while the worker drains: now the whole cluster ends
    # worker: I begin no other job; with a *number*: as soon as I am replaced
    RETIRE = 27
    # worker: lend me the program's resource tracker; pool: here, with its descriptor, or none
    TRACKER = 55
    RECORD = 26  # worker: a logger has recorded this
    HEARTBEAT = 30  # worker: there is a new heartbeat on my page
    # CREDIT = 36, pool: the running stream may send *number* items in all
    PING = 31  # pool: answer this
    PONG = 32  # worker: the answer to a PING
    # The launcher's channel again.
    SWEEP = 13  # pool: tell me when nothing is left of dead workers
    SWEPT = 14  # launcher: nothing is left of them
    # Large objects.  On control channels of workers:
    SEGMENT = 15  # pool: segment *number*, of *job* bytes, with its descriptor
    GRANT = 16  # pool: put the next outcome into segment *number*; into frames if 0
    DROP = 17  # pool: forget segment *number*
    # On job channels, before the job or the outcome that they belong to:
    LENT = 18  # its areas are in segment *number*, and have these sizes
    AREA = 19  # this is one of them
    # And by themselves:
    WANT = 20  # worker: I have an outcome of *job* bytes
    SEGMENT_RETURNED = 21  # worker: I have no view of segment *number* any more
    LOST = 22  # worker: I cannot map segment *number*
    # The link of a worker of a cluster, which is its job channel.
    HANDLE = 38  # both: with descriptor *job*; *number* is 0 for a connection, 1 for a user's
    TAKEN = 39  # both: handle *job* is here
    REFUSED = 40  # both: handle *job* did not get here: no descriptor was left
    MESSAGE = 41  # both: an object for the user
    ROOM = 42  # both: how many messages were taken, in all
    LOAD = 43  # worker: how many connections were opened, closed, cut off, in all
    FIGURES = 49  # worker: what it has counted of its requests, in all
    # pool: what you give back now (HANDLE, number 0) goes to another worker
    RETURN = 44
    # Between a client and an agent of one machine, besides SEGMENT, DROP, SEGMENT_RETURNED and LOST.
    BATCH = 54  # both: what the other end gets as one piece


# By the number that the version and the kind make together.
_kind_of = {VERSION << 8 | kind: kind for kind in FrameKind}.get


class Frame(Record):
    """One message on a channel."""

    kind: FrameKind
    job: int
    attempt: int
    number: int
    payload: Any  # bytes; a view, if they are many; a ReceivedPickle, if parts of it came before


# What Frame(...) does, in half of the time.
_frame = functools.partial(tuple.__new__, Frame)  # pyright: ignore[reportUnknownMemberType] - of a bare tuple


# Takes the fields of a header, in their order.
pack_header = _HEADER.pack


def header(
    kind: FrameKind, size: int, job: int = 0, attempt: int = 0, number: int = 0
) -> bytes:
    """Return the header of a frame whose payload has *size* bytes."""
    return pack_header(VERSION, kind, attempt, number, job, size)


class FrameDecoder:
    """Turn a stream of bytes, cut anywhere, back into frames.

    After a :exc:`ProtocolError` nobody knows where the next frame of the stream
    begins.  Close the channel, and do not call :meth:`feed` again.

    A long payload does not go through :meth:`feed`.  As long as there is a *target*,
    read the next bytes directly into it, and then call :meth:`fill`.

    Args:
        max_payload: The largest payload to accept, in bytes.  The decoder checks it
            as soon as it has the header, before it keeps any of the payload.
        most: How many frames one call of :meth:`feed` may return.  If there is *more*, feed
            it nothing, ``b""``.
        bare: Whether the frames may be tuples without names, which take 0.1 us less each.

    Attributes:
        max_payload: As above; it may be changed between two frames.
        error: What is wrong with the stream after the frames that were returned.
        more: Whether bytes wait that may hold more whole frames.
        rest: What has come and is in no frame yet, except for a long payload.
        target: Where to read the rest of a long payload, and no more than that.
        is_empty: Whether nothing of the stream is left in here.
    """

    def __init__(
        self, *, max_payload: int, most: int = MAX_PAYLOAD, bare: bool = False
    ) -> None:
        self.max_payload, self._frame_range, self._bare = max_payload, range(most), bare
        self.rest, self.is_empty, self.more = bytearray(), True, False
        # How many bytes are needed before there is anything to parse.
        self._need = HEADER_SIZE
        self._long: list[Frame] = []
        self.target: memoryview | None = None
        self.error: ProtocolError | None = None

    @property
    def pending(self) -> int:
        """How many received bytes do not form a whole frame yet."""
        if self.target is None:
            return len(self.rest)
        return HEADER_SIZE + len(self._long[0].payload) - len(self.target)

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take *data* and return the frames that it completes, oldest first.

        Raises:
            ProtocolError: If the peer speaks another version, sends an unknown
                kind of frame, or announces a payload above the limit.  Whole frames
                before that are returned first, however the stream was cut.
        """
        # Every job passes here twice, so this calls no function that it can avoid.
        if self.is_empty:
            data = bytes(data)
        else:
            if self.error is not None:
                raise self.error
            rest = self.rest
            rest += data
            if len(rest) < self._need:
                return []
            data = bytes(rest)
        frames: list[Any] = []
        unpack, limit, size = _unpack_header, self.max_payload, len(data)
        start, body = 0, HEADER_SIZE
        for _ in self._frame_range:
            if body > size:
                break
            code, attempt, number, job, length = unpack(data, start)
            kind = _kind_of(code)
            if kind is None or length > limit:
                break
            end = body + length
            if end > size:
                break
            frames.append((kind, job, attempt, number, data[body:end]))
            start, body = end, end + HEADER_SIZE
        if start < size or not self.is_empty:
            self._keep(data[start:], more=len(frames) == len(self._frame_range))
            if self.error is not None and not frames:
                raise self.error
        return frames if self._bare else [*map(_frame, frames)]

    def _keep(self, rest: bytes, *, more: bool) -> None:
        """Keep what is left behind the last whole frame; there may be *more* of those."""
        size = len(rest)
        self.more, self._need = more and size >= HEADER_SIZE, HEADER_SIZE
        if not more and size >= HEADER_SIZE:
            code, attempt, number, job, length = _unpack_header(rest, 0)
            kind = _kind_of(code)
            if kind is None or length > self.max_payload:
                self.error = self._explain(code, length)
            elif length <= _LONG:
                self._need = HEADER_SIZE + length
            else:
                # The kernel gives memory only as this is written: it costs some as parts of the
                # payload arrive, and not when the header announces it.
                try:
                    payload = memoryview(mmap(-1, length))
                except (OSError, MemoryError) as error:
                    text = f"there is no memory for a payload of {length} bytes"
                    self.error = ProtocolError(f"{text}: {error}")
                else:
                    begun = size - HEADER_SIZE
                    payload[:begun], self.target = rest[HEADER_SIZE:], payload[begun:]
                    self._long = [Frame(kind, job, attempt, number, payload)]
                    rest = b""
        self.rest[:] = rest
        self.is_empty = not rest and self.target is None

    def fill(self, size: int) -> list[Frame]:
        """Record that *size* bytes were read into the target; return the frame if it is whole."""
        assert self.target is not None
        self.target = self.target[size:] or None
        if self.target is not None:
            return []
        self.is_empty = True
        frames, self._long = self._long, []
        return frames

    def _explain(self, code: int, length: int) -> ProtocolError:
        version, kind = divmod(code, 256)
        text = f"a payload of {length} bytes exceeds the limit of {self.max_payload}"
        if version != VERSION:
            text = f"the peer speaks version {version}, not {VERSION}"
        elif _kind_of(code) is None:
            text = f"unknown kind of frame: {kind}"
        return ProtocolError(text)
