"""What the pool sends to one worker: jobs, and ahead of them what the worker lacks for them."""

from __future__ import annotations

import sys
from collections.abc import Callable

from asyncpool._core.pickling.functions import Function, FunctionCache
from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._core.wire.frames import VERSION, FrameKind, header, pack_header
from asyncpool._runtime.channel.channel import Channel
from asyncpool._runtime.channel.large_buffers import BufferLoad, LargeBuffers

# Where the frame of a job ends that is not on the channel yet: no worker ever takes as much.
NOT_PUT = sys.maxsize


class Outbox:
    """Puts jobs on a worker's job channel, behind all that they need.

    Args:
        large_buffers: Puts large objects where the worker can see them.
    """

    def __init__(self, large_buffers: LargeBuffers) -> None:
        self._large_buffers = large_buffers
        self._memory = FunctionCache()
        self._context = b""  # the context that the worker has now
        self._load: BufferLoad | None = None
        self._channel: Channel | None = None

    def connect(self, channel: Channel) -> None:
        """Send on *channel* from now on."""
        self._channel = channel

    @property
    def taken(self) -> int:
        """How many bytes the worker has taken, counted as :meth:`put_job` does."""
        return self._channel.taken if self._channel is not None else 0

    @property
    def loading(self) -> bool:
        """Whether an out-of-band pickle is on its way to the worker."""
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
        """Put a job; the next flush sends it.

        A job with *credit* is a stream: *credit* is how many items the worker may send.

        Returns:
            Where the job's frame ends, in bytes since the first one.
        """
        assert self._channel is not None
        put, number = self._channel.put, function.number
        if context != self._context:
            self._context = context
            put(header(FrameKind.CONTEXT, len(context)), context)
        if number and number not in self._memory:
            self._memory.add(number)
            reference = function.payload
            put(header(FrameKind.FUNCTION, len(reference), tag=number), reference)
        kind = FrameKind.JOB
        if credit:
            kind = FrameKind.STREAM
            put(header(FrameKind.CREDIT, 0, tag=credit))
        # The same as header(), whose call takes 50 ns for each job.
        head = pack_header(VERSION, kind, attempt, number, job, len(payload))
        return put(head, payload)

    def load(self, pickled: OutOfBandPickle, send: Callable[[], None]) -> None:
        """Put *pickled* where the worker can see it, then have *send* put its job."""

        def sent() -> None:
            self._load = None
            send()

        load = self._large_buffers.load(pickled, sent)
        if not load.done:
            self._load = load

    def withdraw(self) -> bool:
        """Give up the load that is on its way; return whether there was one."""
        load, self._load = self._load, None
        return load is not None and load.withdraw()

    def flush(self) -> None:
        """Send what was put."""
        assert self._channel is not None
        self._channel.flush()

    def flush_soon(self) -> None:
        """Send, at the end of this turn of the loop, what was put until then."""
        assert self._channel is not None
        self._channel.flush_soon()
