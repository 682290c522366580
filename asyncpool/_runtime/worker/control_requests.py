"""What the pool asks of one worker, on its control channel."""

from __future__ import annotations

from asyncpool._core.wire.frames import FrameKind, header
from asyncpool._core.wire.messages import pack_moment, pack_numbers
from asyncpool._runtime.channel.channel import Channel


class ControlRequests:
    """Asks one worker for something, also while it runs a job.

    The answers come back through :class:`IncomingFrames`.
    """

    def __init__(self) -> None:
        self._channel: Channel | None = None

    def connect(self, channel: Channel) -> None:
        """Send everything on *channel* from now on."""
        self._channel = channel

    def revoke(self, sequences: tuple[int, ...]) -> None:
        """Ask it not to begin what it got in these places."""
        self._send(FrameKind.REVOKE, pack_numbers(sequences))

    def interrupt(self, sequence: int) -> None:
        """Ask it to end what it got in this place, if that is what it runs."""
        self._send(FrameKind.INTERRUPT, pack_numbers((sequence,)))

    def fence(self, sequence: int, until: float) -> None:
        """Have it end itself at *until* if it runs what it got in this place then.

        The loop's clock is the one that all processes of a machine share.
        """
        self._send(FrameKind.FENCE, pack_moment(until), sequence)

    def give_credit(self, job: int, attempt: int, limit: int) -> None:
        """Let it send so many items of a stream in all."""
        self._send(FrameKind.CREDIT, b"", job, attempt, limit)

    def ask_for_stacks(self, job: int = 0, attempt: int = 0) -> None:
        """Have it write down on its page where its threads are, and that job, if any."""
        self._send(FrameKind.STACKS, b"", job, attempt)

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._send(FrameKind.PING, b"")

    def tell_of_close(self) -> None:
        """Tell it that the whole cluster ends, while it drains."""
        self._send(FrameKind.CLOSING, b"")

    def _send(self, kind: FrameKind, payload: bytes, *fields: int) -> None:
        assert self._channel is not None
        self._channel.put(header(kind, len(payload), *fields), payload)
        self._channel.flush()
