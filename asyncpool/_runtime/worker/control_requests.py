"""What the pool asks of one worker, on its control channel."""

from __future__ import annotations

from asyncpool._core.wire.frames import FrameKind, header
from asyncpool._core.wire.messages import pack_moment, pack_numbers
from asyncpool._runtime.channel.channel import Channel


class ControlRequests:
    """Sends requests to one worker, which it answers even while it runs a job.

    The answers come back through :class:`IncomingFrames`.
    """

    def __init__(self) -> None:
        self._channel: Channel | None = None

    def connect(self, channel: Channel) -> None:
        """Send everything on *channel* from now on."""
        self._channel = channel

    def revoke(self, sequences: tuple[int, ...]) -> None:
        """Ask the worker not to begin the jobs with these sequence numbers."""
        self._send(FrameKind.REVOKE, pack_numbers(sequences))

    def interrupt(self, sequence: int) -> None:
        """Ask the worker to interrupt the job with this sequence number, if it runs it."""
        self._send(FrameKind.INTERRUPT, pack_numbers((sequence,)))

    def fence(self, sequence: int, until: float) -> None:
        """Have the worker end itself at *until* if it still runs the job with this number.

        *until* is on the loop's clock, which all processes of a machine share.
        """
        self._send(FrameKind.FENCE, pack_moment(until), sequence)

    def give_credit(self, job: int, attempt: int, limit: int) -> None:
        """Allow the worker to send *limit* items of a stream in all."""
        self._send(FrameKind.CREDIT, b"", job, attempt, limit)

    def ask_for_stacks(self, job: int = 0, attempt: int = 0) -> None:
        """Ask the worker to write the stacks of its threads, and of *job*, on its page."""
        self._send(FrameKind.STACKS, b"", job, attempt)

    def begin_profile(self, number: int, request: bytes) -> None:
        """Ask the worker to sample its stacks; see ``ProfileRequest`` for *request*."""
        self._send(FrameKind.PROFILE, request, number)

    def end_profile(self, number: int) -> None:
        """Ask the worker to sample no more, and to send nothing."""
        self._send(FrameKind.PROFILE, b"", number)

    def ask_where(self, job: int) -> None:
        """Ask the worker where its jobs are, or where *job* is if that is not 0."""
        self._send(FrameKind.WHERE, b"", job)

    def ping(self) -> None:
        """Send the worker a ping."""
        self._send(FrameKind.PING, b"")

    def tell_of_close(self) -> None:
        """Tell a worker that drains that the whole cluster ends."""
        self._send(FrameKind.CLOSING, b"")

    def _send(self, kind: FrameKind, payload: bytes, *fields: int) -> None:
        assert self._channel is not None
        self._channel.put(header(kind, len(payload), *fields), payload)
        self._channel.flush()
