"""The wire format of the channels between a pool and its workers.

A channel carries a sequence of frames and nothing else.  A frame is a fixed
header and a payload that this module does not look into::

    0        1        2                 4                                8
    +--------+--------+-----------------+--------------------------------+
    | version|  kind  |     attempt     |              tag               |
    +--------+--------+-----------------+--------------------------------+
    |                           job id (8 bytes)                         |
    +--------------------------------------------------------------------+
    |                       payload length (8 bytes)                     |
    +--------------------------------------------------------------------+
    |  payload ...

Integers are unsigned and big-endian.  What *tag* means depends on the kind; it,
*attempt* and *job id* are zero where they mean nothing.  Both ends always run the
same version of asyncpool, and *version* only turns a mistake in that assumption into
an error instead of a hang.
"""

from __future__ import annotations

import enum
import functools
import struct

from asyncpool._core.base.records import Record
from asyncpool.errors import ProtocolError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from mmap import mmap
    from typing import Any

VERSION = 2

_HEADER = struct.Struct("!BBHIQQ")
HEADER_SIZE = _HEADER.size

# What fits in the header's fields.
MAX_ATTEMPTS = 0xFFFF
MAX_NUMBER = 0xFFFF_FFFF

# What no object's size exceeds.
MAX_PAYLOAD = (1 << 63) - 1

# A longer payload is received where it stays, instead of being put together.
_LONG = 1 << 20


class FrameKind(enum.IntEnum):
    """What a frame means."""

    # Control channels, of workers and of the launcher.
    CONFIG = 1  # pool: how to begin
    HELLO = 2  # worker, launcher: ready
    FAILED = 3  # worker, launcher: something outside any job went wrong
    # The launcher's channel; *job* is the number of the request.
    LAUNCH = 4  # pool: start a worker on the descriptors that come with this
    LAUNCHED = 5  # launcher: it has this pid
    EXITED = 6  # launcher: it ended, with this status
    # Job channels.
    JOB = 7  # pool: run this; *tag* is the function's number, or 0 if it comes along
    VALUE = 8  # worker: what the job returned; *tag* is how long it took, in us
    ERROR = 9  # worker: what the job raised; *tag* as above
    FUNCTION = 10  # pool: remember this function as number *tag*
    CONTEXT = 25  # pool: the context of the jobs that follow
    STREAM = 34  # pool: run this, as a JOB, and send what it yields
    ITEM = 35  # worker: the next thing that the job has yielded
    CREDIT = 36  # pool: the next stream may send *tag* items
    LAST_HEARTBEAT = 33  # worker: the last beat of the job whose outcome is next
    # Control channels of workers again.
    IDENTITY = 46  # pool: who you are; ahead of the CONFIG
    HANDED = 47  # pool: a descriptor for the initializer is along; ahead of the CONFIG
    REVOKE = 11  # pool: do not begin the jobs that came in these places
    REVOKED = 12  # worker: these of them will not begin
    INTERRUPT = 23  # pool: end the job that came in this place, if it is running
    # pool: if what came in place *job* runs at this moment, its lease has lapsed
    FENCE = 48
    STACKS = 24  # pool: write down where your threads are; worker: I have
    CLOSING = 50  # pool: you drain, and now the whole cluster ends
    RETIRE = 27  # worker: I begin no other job; if there is a *tag*, not yet
    RECORD = 26  # worker: a logger has recorded this
    HEARTBEAT = 30  # worker: there is a new beat on my page
    # CREDIT = 36, pool: the stream that runs may send *tag* items in all
    PING = 31  # pool: are you there?
    PONG = 32  # worker: I am
    # The launcher's channel again.
    SWEEP = 13  # pool: say when nothing is left of dead workers
    SWEPT = 14  # launcher: nothing is
    # launcher: this process becomes a worker when descriptors come through the socket that
    SPARE = 45  # is along; pool: that one did, have another ready
    # Large objects.  On control channels of workers:
    SEGMENT = 15  # pool: here is segment *tag*, of *job* bytes; its descriptor is along
    GRANT = 16  # pool: put your next outcome into segment *tag*, or, if 0, into frames
    DROP = 17  # pool: forget segment *tag*
    # On job channels, before the job or the outcome that they belong to:
    LENT = 18  # its areas are in segment *tag*, and have these sizes
    AREA = 19  # this is one of them
    # And by themselves:
    WANT = 20  # worker: I have an outcome of *job* bytes
    SEGMENT_RETURNED = 21  # worker: I have no view of segment *tag* any more
    LOST = 22  # worker: I cannot get at segment *tag*
    # The line of a worker of a cluster, which is its job channel.
    LISTEN = 37  # pool: accept on this, socket *job* of *tag*; its descriptor is along
    # worker: I do
    HANDLE = 38  # both: socket number *job*, along with this; *tag* says what for
    TAKEN = 39  # both: handle *job* is here
    REFUSED = 40  # both: handle *job* did not get here, for want of descriptors
    MESSAGE = 41  # both: an object for the user
    ROOM = 42  # both: so many messages were taken, in all
    LOAD = 43  # worker: so many connections were opened, closed and cut off, in all
    RETURN = 44  # pool: what you give back now (HANDLE, tag 0) finds another worker


_KINDS = {int(kind): kind for kind in FrameKind}


class Frame(Record):
    """One message on a channel."""

    kind: FrameKind
    job: int
    attempt: int
    number: int
    payload: Any  # bytes; a view, if there are many; a Bundle, if some came before


# What Frame(...) does, in half of the time.
_frame = functools.partial(tuple.__new__, Frame)  # pyright: ignore[reportUnknownMemberType] - of a bare tuple


def header(
    kind: FrameKind, size: int, job: int = 0, attempt: int = 0, tag: int = 0
) -> bytes:
    """Return the header of a frame whose payload has *size* bytes."""
    return _HEADER.pack(VERSION, kind, attempt, tag, job, size)


class FrameDecoder:
    """Turn a stream of bytes, cut anywhere, back into frames.

    After a :exc:`ProtocolError` the stream has no known frame boundary any more:
    close the channel, do not feed it again.

    A long payload is not for :meth:`feed`: as long as there is a *target*, what comes
    next belongs there, and :meth:`fill` takes note of it.

    Args:
        max_payload: Largest payload to accept, in bytes.  It is checked against
            the header, before any of the payload is kept.
        allocate: What makes room for a long payload, without touching it.

    Attributes:
        error: What is wrong with the stream behind the frames returned so far.
        target: Where to read the rest of a long payload, and nothing else.
    """

    def __init__(
        self,
        *,
        max_payload: int,
        allocate: Callable[[int], bytearray | mmap] = bytearray,
    ) -> None:
        self._rest = bytearray()
        self._max_payload = max_payload
        self._allocate = allocate
        self._long: Frame | None = None
        self.target: memoryview | None = None
        self._need = HEADER_SIZE  # bytes without which there is nothing to parse
        self.error: ProtocolError | None = None

    @property
    def pending(self) -> int:
        """Bytes received that do not form a whole frame yet."""
        if self._long is None or self.target is None:
            return len(self._rest)
        return HEADER_SIZE + len(self._long.payload) - len(self.target)

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take *data* and return the frames that it completes, oldest first.

        Raises:
            ProtocolError: If the peer speaks another version, sends an unknown
                kind of frame, or announces a payload above the limit.  Whole frames
                before that are returned first, however the stream was cut.
        """
        self._check()
        if not self._rest:
            frames, end = self._split(bytes(data))
            self._rest += data[end:]
        else:
            self._rest += data
            if len(self._rest) < self._need:
                return []
            frames, end = self._split(bytes(self._rest))
            del self._rest[:end]
        if not frames:
            self._check()
        return frames

    def fill(self, size: int) -> list[Frame]:
        """Take note of *size* bytes in the target; return the frame if it is whole."""
        assert self.target is not None
        self.target = self.target[size:]
        if self.target:
            return []
        assert self._long is not None
        frames, self._long, self.target = [self._long], None, None
        return frames

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def _split(self, data: bytes) -> tuple[list[Frame], int]:
        """Return the whole frames in *data*, and where they end."""
        # Every job passes here twice, so this loop calls nothing that it can avoid.
        frames: list[Frame] = []
        unpack, limit, size = _HEADER.unpack_from, self._max_payload, len(data)
        start, body = 0, HEADER_SIZE
        while body <= size:
            version, code, attempt, tag, job, length = unpack(data, start)
            kind = _KINDS.get(code)
            if version != VERSION or kind is None or length > limit:
                self.error = self._explain(version, code, length)
                break
            end = body + length
            if end > size:
                if length > _LONG:
                    frame = _frame((kind, job, attempt, tag, b""))
                    if self._begin_long(frame, length, data[body:]):
                        start = size
                    break
                self._need = end - start
                return frames, start
            frames.append(_frame((kind, job, attempt, tag, data[body:end])))
            start, body = end, end + HEADER_SIZE
        self._need = HEADER_SIZE
        return frames, start

    def _begin_long(self, frame: Frame, length: int, begun: bytes) -> bool:
        try:
            payload = memoryview(self._allocate(length))
        except (OSError, MemoryError) as error:
            self.error = ProtocolError(
                f"there is no memory for a payload of {length} bytes: {error}"
            )
            return False
        payload[: len(begun)] = begun
        self._long = frame._replace(payload=payload)
        self.target = payload[len(begun) :]
        return True

    def _explain(self, version: int, code: int, length: int) -> ProtocolError:
        if version != VERSION:
            return ProtocolError(f"the peer speaks version {version}, not {VERSION}")
        if code not in _KINDS:
            return ProtocolError(f"unknown kind of frame: {code}")
        return ProtocolError(
            f"a payload of {length} bytes exceeds the limit of {self._max_payload}"
        )
