"""The link to one worker that serves: sockets and messages, both ways.

It uses the worker's job channel.  Each frame with a descriptor is one message of the socket.
The descriptors of a :class:`DescriptorSocket` come in the order of the frames that carry one.

The worker answers each handle with *taken* or *refused* before it uses the socket.  Messages
are not answered; their number is limited, see :class:`MessageCredit`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from asyncpool._cluster.rules import MOST_MESSAGES, HandleTag, MessageCredit
from asyncpool._core.figures import MOST_NUMBERS, RequestFigures
from asyncpool._engine.channel import Channel, DescriptorSocket
from asyncpool._wire.frames import Frame, FrameKind, header
from asyncpool._wire.messages import unpack_numbers
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._cluster.service import Service

# The most bytes of a pickled message.
MAX_MESSAGE = 1 << 20

_MOST_FIGURES = 8 * MOST_NUMBERS  # bytes

# After how many messages the sender hears that they were taken: half of what it may send.
_TELL_EVERY = MOST_MESSAGES // 2

# A limit, since a worker can make the master queue answers to handles, and nothing else.
_MOST_UNSENT = 2 * MOST_MESSAGES * MAX_MESSAGE


class WorkerLink:
    """The pool's end of the link to one worker.

    Args:
        slot: The worker's slot.
        generation: Which worker of that slot it is, counting from 1.
        sock: The socket at which descriptors arrive.
        channel: The channel that reads frames from *sock*.
        service: Has what the worker sends to go to.

    Attributes:
        open: Whether the worker is ready, and may be sent something.
        lost: How many of its connections no other worker got, since there were too few
            descriptors.
        figures: What it has counted of its requests, as far as it has told.
    """

    def __init__(
        self,
        slot: int,
        generation: int,
        sock: DescriptorSocket,
        channel: Channel,
        service: Service,
    ) -> None:
        self.slot = slot
        self.generation = generation
        self.open = self._shut = False
        self.lost = self._lost_there = 0
        self.figures = RequestFigures()
        self._socket, self._channel = sock, channel
        self._service = service
        self._last = 0  # the number of the last handle that was put
        self._received = 0  # the number of the last handle that came
        self._credit = MessageCredit("it", _TELL_EVERY)
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()  # tasks send in the order in which they came

    # To the worker.

    def listen(self, sockets: list[socket.socket]) -> None:
        """Have the worker accept on these sockets; this must come before anything else."""
        head = header(FrameKind.LISTEN, 0, number=len(sockets))
        for sock in sockets:
            self._channel.put_descriptor(head, os.dup(sock.fileno()))
        self._channel.flush()

    def hand(
        self,
        number: int,
        fd: int,
        tag: HandleTag = HandleTag.CONNECTION,
        payload: bytes = b"",
    ) -> None:
        """Send a descriptor; the caller must not close it before the worker has answered."""
        self._last = number
        head = header(FrameKind.HANDLE, len(payload), number, number=tag)
        self._channel.put_descriptor(head + payload, fd, keep=True)
        self._channel.flush()

    async def send(self, payload: bytes, *, early: bool = False) -> bool:
        """Send a message when there is room for it; return false if the worker is gone.

        Args:
            payload: The message, pickled.
            early: Whether a worker may get it before it is ready.

        Cancellation:
            Safe: the message is not sent.
        """
        async with self._turn:
            while self._takes(early) and not self._credit.has_room:
                self._room.clear()
                await self._room.wait()
            if not self._takes(early):
                return False
            self._credit.send()
            self._channel.put(header(FrameKind.MESSAGE, len(payload)), payload)
            self._channel.flush()
            return True

    def _takes(self, early: bool) -> bool:  # noqa: FBT001 - handed on
        return not self._shut and (self.open or early)

    def consumed(self) -> None:
        """Note that the user has taken a message of the worker."""
        taken = self._credit.take()
        if taken is not None:
            self._answer(FrameKind.ROOM, taken)

    @property
    def is_shut(self) -> bool:
        """Whether nothing more is sent."""
        return self._shut

    def shut(self) -> None:
        """Send nothing more, and wake tasks that wait for room."""
        if self._shut:
            return
        self.open, self._shut = False, True
        self._room.set()
        if not self._service.stopped:
            self._channel.put(header(FrameKind.RETURN, 0))
            self._channel.flush()
        self._service.begin_drain(self)

    # From the worker.

    def pause(self) -> None:
        """If the worker is leaving, read nothing more until :meth:`resume`."""
        if self._shut:
            self._channel.pause()

    def resume(self) -> None:
        """Read again."""
        self._channel.resume()

    def on_frames(self, frames: list[Frame]) -> None:
        """Take the frames that the worker has sent.

        Raises:
            ProtocolError: If a frame breaks the protocol.
        """
        if self._socket.unwanted:
            raise ProtocolError("it sent descriptors with no handle")
        for frame in frames:
            self._on_frame(frame)

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind is FrameKind.TAKEN or frame.kind is FrameKind.REFUSED:
            if frame.job > self._last - self._channel.unsent_descriptors:
                raise ProtocolError(
                    f"it answered for handle {frame.job}, which was not sent"
                )
            if frame.kind is FrameKind.TAKEN:
                self._service.balancer.taken(self, frame.job)
            else:
                self._service.balancer.refused(self, frame.job)
        elif frame.kind is FrameKind.LOAD:
            self._on_load(frame)
        elif frame.kind is FrameKind.FIGURES:
            self._on_figures(frame)
        elif frame.kind is FrameKind.MESSAGE:
            self._on_message(frame)
        elif frame.kind is FrameKind.ROOM:
            self._credit.make_room(frame.job)
            self._room.set()
        elif frame.kind is FrameKind.HANDLE:
            self._on_handle(frame)
        else:
            raise ProtocolError(f"it sent {frame.kind.name} on its link")

    def _on_load(self, frame: Frame) -> None:
        numbers = unpack_numbers(frame.payload)
        if len(numbers) != 3:  # noqa: PLR2004 - opened, closed, cut off
            raise ProtocolError(f"its load has {len(numbers)} numbers")
        more = frame.job - self._lost_there
        if more < 0:
            raise ProtocolError(
                f"it lost {frame.job} connections, after {self._lost_there}"
            )
        self._service.count_load(self, *numbers)
        if more:
            self._lost_there = frame.job
            self._lose(more)

    def _on_figures(self, frame: Frame) -> None:
        if len(frame.payload) > _MOST_FIGURES:
            raise ProtocolError(f"its figures have {len(frame.payload)} bytes")
        numbers = unpack_numbers(frame.payload)
        self.figures = RequestFigures.unpack(numbers, self.figures)
        self._service.note_requests(self)

    def _on_message(self, frame: Frame) -> None:
        self._credit.receive()
        self._service.queues.take_message(self, bytes(frame.payload))

    def _on_handle(self, frame: Frame) -> None:
        if not self._socket.arrived:
            raise ProtocolError("it sent a handle without a descriptor")
        if frame.job != self._received + 1:
            raise ProtocolError(f"it sent handle {frame.job} after {self._received}")
        self._received = frame.job
        fd = self._socket.arrived.popleft()
        if frame.number != HandleTag.USER:
            # Not answered: the worker cannot read answers any more.
            if fd is None:
                self._lose(1)
            else:
                self._service.balancer.returned(self, fd)
            return
        wanted = fd is not None and self._service.queues.take_socket(
            self, fd, bytes(frame.payload)
        )
        self._answer(FrameKind.TAKEN if wanted else FrameKind.REFUSED, frame.job)

    def _lose(self, more: int) -> None:
        self.lost += more
        self._service.balancer.lost += more

    def _answer(self, kind: FrameKind, number: int) -> None:
        if self._channel.unsent > _MOST_UNSENT:
            raise ProtocolError("it does not read the answers to its handles")
        if not self._shut:
            self._channel.put(header(kind, 0, number))
            self._channel.flush()
