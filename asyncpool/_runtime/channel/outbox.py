"""The way of jobs to one worker: what it knows already, and what must go ahead of them."""

from __future__ import annotations

from collections.abc import Callable

from asyncpool._core.pickling.functions import Function, FunctionCache
from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._core.wire.frames import FrameKind, header
from asyncpool._runtime.channel.channel import Channel
from asyncpool._runtime.channel.large_buffers import BufferLoad, LargeBuffers


class Outbox:
    """Puts jobs on a worker's job channel, behind all that they need.

    Args:
        large_buffers: What brings large objects to where the worker sees them.
    """

    def __init__(self, large_buffers: LargeBuffers) -> None:
        self._large_buffers = large_buffers
        self._memory = FunctionCache()
        self._context = b""  # the last that was put
        self._load: BufferLoad | None = None
        self._channel: Channel | None = None

    def connect(self, channel: Channel) -> None:
        """Use *channel*."""
        self._channel = channel

    @property
    def unsent(self) -> int:
        """How many bytes of its jobs it has not taken."""
        return self._channel.unsent if self._channel is not None else 0

    @property
    def loading(self) -> bool:
        """Whether an out-of-band pickle is on its way to where it can see it."""
        return self._load is not None

    def put_job(
        self,
        job: int,
        attempt: int,
        function: Function,
        payload: bytes,
        context: bytes,
        *,
        credit: int = 0,
    ) -> int:
        """Have a job sent by the next flush.

        With *credit* for its items it is a stream.

        Returns:
            How many bytes go ahead of it, of what the worker does not know yet.
        """
        assert self._channel is not None
        number, ahead = function.number, 0
        if context != self._context:
            self._context = context
            ahead = self._put(header(FrameKind.CONTEXT, len(context)), context)
        if number and number not in self._memory:
            self._memory.add(number)
            reference = function.payload
            head = header(FrameKind.FUNCTION, len(reference), tag=number)
            ahead += self._put(head, reference)
        kind = FrameKind.JOB
        if credit:
            kind = FrameKind.STREAM
            ahead += self._put(header(FrameKind.CREDIT, 0, tag=credit), b"")
        head = header(kind, len(payload), job, attempt, number)
        self._channel.put(head, payload)
        return ahead

    def load(self, pickled: OutOfBandPickle, send: Callable[[], None]) -> None:
        """Put *pickled* where the worker sees it, then have *send* put its job."""

        def sent() -> None:
            self._load = None
            send()

        load = self._large_buffers.load(pickled, sent)
        if not load.done:
            self._load = load

    def withdraw(self) -> bool:
        """Give up a load, and tell whether there was one."""
        load, self._load = self._load, None
        return load is not None and load.withdraw()

    def flush(self) -> None:
        """Send what was put."""
        assert self._channel is not None
        self._channel.flush()

    def flush_soon(self) -> None:
        """Send what was put, and what is put until the end of this turn."""
        assert self._channel is not None
        self._channel.flush_soon()

    def _put(self, head: bytes, payload: bytes) -> int:
        assert self._channel is not None
        self._channel.put(head, payload)
        return len(head) + len(payload)
