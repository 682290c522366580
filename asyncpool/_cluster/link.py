"""The link between a master and one of its workers: messages, sockets and files, both ways.

It uses the worker's job channel.  Each end is a :class:`Link`; what only one end sends or hears is in
``service.py`` and ``worker.py``.  Each frame with a descriptor is one message of the socket, and the
descriptors of a :class:`DescriptorSocket` come in the order of the frames that carry one.

A handle, which is such a frame, is answered with *taken* or *refused*, but for the connections that a
leaving worker gives back.  A message is not answered.  It waits at the other end until the user's
code takes it.  So the sender counts: at most :data:`MOST_MESSAGES` of its messages may be untaken,
and the next one waits.  The receiver says now and then how many its user has taken in all.  Neither
end trusts the other's count.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from asyncpool._engine.loop import Alarm, ItemStream
from asyncpool._wire.frames import Frame, FrameKind, header
from asyncpool._wire.posix import ReceivedSocket, received
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncpool._engine.channel import Channel, DescriptorSocket
    from asyncpool._wire.posix import ReceivedFile

# The most bytes of a pickled message.
MAX_MESSAGE = 1 << 20

# The most messages, in each direction, that were sent and not taken.
MOST_MESSAGES = 64

# Seconds after which counts are sent that had to wait, since the other end did not read.
_LATER = 0.01

T = TypeVar("T")
R = TypeVar("R")


class Inbox(ItemStream[T]):
    """What has come from the other end."""

    def __init__(self) -> None:
        super().__init__("what comes from the workers of a cluster")

    def __len__(self) -> int:
        return len(self._items)

    def clear(self) -> list[T]:
        """Take all that is left."""
        items = list(self._items)
        self._items.clear()
        return items


class Received(Generic[T, R]):
    """An async iterator over what comes from the other end, as the user gets it.

    What cannot be read is dropped: the code there may be older or newer.

    Args:
        inbox: What has come.
        read: Returns what the user gets.
        tell: Logs what could not be read, and why.
    """

    def __init__(
        self,
        inbox: Inbox[T],
        read: Callable[[T], R],
        tell: Callable[[T, Exception], object],
    ) -> None:
        self._inbox, self._read, self._tell = inbox, read, tell

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        while True:
            item = await anext(self._inbox)
            try:
                return self._read(item)
            except Exception as error:
                self._tell(item, error)


def check_message(payload: bytes) -> bytes:
    """Return a pickled message, if it may be sent.

    Raises:
        ValueError: If it is too large.
    """
    if len(payload) > MAX_MESSAGE:
        raise ValueError(
            f"a message of {len(payload)} bytes is longer than the {MAX_MESSAGE} that may "
            "be sent"
        )
    return payload


def message_of(item: tuple[Any, bytes]) -> Any:
    """Return a message of a :class:`Mail`, which the user takes."""
    link, payload = item
    if link is not None:
        link.consumed()
    return pickle.loads(payload)


def thing_of(item: tuple[Any, Any, bytes]) -> Any:
    """Return a socket or a file of one, with its value; if that cannot be read, close it."""
    _, thing, payload = item
    try:
        thing.value = pickle.loads(payload) if payload else None
    except BaseException:
        thing.close()
        raise
    return thing


class Mail:
    """What has come for the user of one end.

    Args:
        most: How many sockets are kept that nobody has taken; the same for files.  One more is
            refused, as if there were no descriptors.

    Attributes:
        messages: Pickled messages, each with its link; ``None`` if none is to hear that it was taken.
        sockets: Sockets, each with its link and the pickled value that came with it.
        files: Files, in the same form.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self.messages: Inbox[tuple[Any, bytes]] = Inbox()
        self.sockets: Inbox[tuple[Any, ReceivedSocket, bytes]] = Inbox()
        self.files: Inbox[tuple[Any, ReceivedFile, bytes]] = Inbox()

    def take_message(self, link: Any, payload: bytes) -> None:
        """Keep a message."""
        self.messages.put((link, payload))

    def take_descriptor(self, link: Any, fd: int, payload: bytes) -> bool:
        """Keep a socket or a file; return false if it is neither, or not wanted."""
        try:
            thing = received(fd)
        except OSError:
            return False
        inbox: Any = self.sockets if isinstance(thing, ReceivedSocket) else self.files
        if len(inbox) >= self._most:
            thing.close()
            return False
        inbox.put((link, thing, payload))
        return True

    def end(self) -> None:
        """End the iterations."""
        self.messages.end()
        self.sockets.end()
        self.files.end()

    def close(self) -> None:
        """End the iterations, and close what nobody has taken."""
        self.end()
        inboxes: tuple[Inbox[Any], ...] = self.sockets, self.files
        for inbox in inboxes:
            for _, thing, _ in inbox.clear():
                thing.close()


class Link:
    """One end.

    Args:
        sock: The socket at which descriptors arrive.
        channel: The channel that reads frames from *sock*.
        mail: What comes for the user.
        peer: The name of the other end in errors.

    Attributes:
        is_shut: Whether nothing more is sent.
    """

    def __init__(
        self, sock: DescriptorSocket, channel: Channel, mail: Mail, peer: str
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, self.channel, self.mail, self._peer = sock, channel, mail, peer
        self.is_shut = False
        self._sent = self._received = 0  # the numbers of the last handles
        self._arrivals: dict[int, asyncio.Future[bool]] = {}
        # Messages: those sent, and how many of them were taken there; the same of those received.
        self._told = self._taken_there = self._heard = self._taken_here = 0
        self._room, self._has_ended = asyncio.Event(), False
        self._turn = asyncio.Lock()  # tasks send in the order in which they came
        self._totals: dict[FrameKind, bytes] = {}
        self._is_blocked = False
        self._later = Alarm(self._loop, lambda _: self.send_totals())

    # To the other end.

    def put(self, kind: FrameKind, job: int = 0, payload: bytes = b"") -> None:
        """Send a frame, in this iteration of the loop if the socket takes it, and the counts with it."""
        if not self.is_shut:
            self.channel.put(header(kind, len(payload), job), payload)
            self.send_totals()

    def note(self, kind: FrameKind, job: int = 0, payload: bytes = b"") -> None:
        """Send counts, once in this turn; of several of a kind, only the last ones are sent."""
        if not self._totals:
            self._loop.call_soon(self.send_totals)
        self._totals[kind] = header(kind, len(payload), job) + payload

    def send_totals(self) -> None:
        """Send the counts now, unless the other end does not read: they would be old by then."""
        if self._totals and not self.is_shut:
            if self._is_blocked:
                self._later.set_in(_LATER)
            else:
                self.channel.put(b"".join(self._totals.values()))
                self._totals.clear()
        self.channel.flush()
        self._is_blocked = self.channel.unsent > 0

    def hand(
        self, fd: int, payload: bytes = b"", *, users: bool = False, keep: bool = False
    ) -> int:
        """Send a descriptor, and return its number.

        Args:
            fd: It; it is closed when it was sent.
            payload: What travels with it.
            users: Whether it is for the user, and no connection.
            keep: Whether the caller keeps it, who must not close it before there is an answer.
        """
        self._sent += 1
        head = header(FrameKind.HANDLE, len(payload), self._sent, number=int(users))
        self.channel.put_descriptor(head + payload, fd, keep=keep)
        self.channel.flush()
        return self._sent

    async def ship(self, fd: int, payload: bytes) -> bool:
        """Send a descriptor to the user there; return whether it has arrived.

        Cancellation:
            It may arrive nevertheless.
        """
        arrival: asyncio.Future[bool] = self._loop.create_future()
        self._arrivals[self.hand(fd, payload, users=True)] = arrival
        return await arrival

    async def send(self, payload: bytes) -> bool:
        """Send a message when there is room for it; return false if nobody will read it.

        Cancellation:
            Safe: the message is not sent.
        """
        async with self._turn:
            while not (self._has_room or self.is_shut or self._has_ended):
                self._room.clear()
                await self._room.wait()
            if self.is_shut or not self._has_room:
                return False
            self._told += 1
            self.put(FrameKind.MESSAGE, payload=payload)
            return True

    @property
    def _has_room(self) -> bool:
        return self._told - self._taken_there < MOST_MESSAGES

    def consumed(self) -> None:
        """Note that the user has taken a message."""
        self._taken_here += 1
        self.note(FrameKind.ROOM, self._taken_here)

    def shut(self) -> None:
        """Send nothing more, and wake tasks that wait for room."""
        self.is_shut = True
        self._later.cancel()
        self._room.set()

    def end(self) -> None:
        """Note that nothing more comes: no answer, and no word of room."""
        self._has_ended = True
        self._room.set()
        for arrival in self._arrivals.values():
            if not arrival.done():
                arrival.set_result(False)

    # From the other end.

    def on_frames(self, frames: list[Frame]) -> None:
        """Take the frames that the other end has sent.

        Raises:
            ProtocolError: If a frame breaks the protocol.
        """
        if self._socket.unwanted:
            raise ProtocolError(f"{self._peer} sent descriptors with no handle")
        for frame in frames:
            kind = frame.kind
            if kind is FrameKind.TAKEN or kind is FrameKind.REFUSED:
                self._on_answer(frame.job, taken=kind is FrameKind.TAKEN)
            elif kind is FrameKind.HANDLE:
                self._on_handle(frame)
            elif kind is FrameKind.MESSAGE:
                self._heard += 1
                if self._heard - self._taken_here > MOST_MESSAGES:
                    raise ProtocolError(
                        f"{self._peer} sent a message beyond the {MOST_MESSAGES} for which "
                        "there is room"
                    )
                self.mail.take_message(self, bytes(frame.payload))
            elif kind is FrameKind.ROOM:
                if not self._taken_there <= frame.job <= self._told:
                    raise ProtocolError(
                        f"{self._peer} took {frame.job} messages, after {self._taken_there} "
                        f"of {self._told}"
                    )
                self._taken_there = frame.job
                self._room.set()
            else:
                self.on_frame(frame)

    def _on_answer(self, number: int, *, taken: bool) -> None:
        if number > self._sent - self.channel.unsent_descriptors:
            raise ProtocolError(
                f"{self._peer} answered for handle {number}, which was not sent"
            )
        arrival = self._arrivals.pop(number, None)
        if arrival is not None and not arrival.done():
            arrival.set_result(taken)
        self.on_answer(number, taken=taken, users=arrival is not None)

    def _on_handle(self, frame: Frame) -> None:
        number = frame.job
        if not self._socket.arrived:
            raise ProtocolError(f"{self._peer} sent a handle without a descriptor")
        if number != self._received + 1:
            raise ProtocolError(
                f"{self._peer} sent handle {number} after {self._received}"
            )
        # None if this process may open no more.
        self._received, fd = number, self._socket.arrived.popleft()
        if not frame.number:  # it is no user's
            self.on_connection(number, fd)
            return
        kept = fd is not None and self.mail.take_descriptor(
            self, fd, bytes(frame.payload)
        )
        self.put(FrameKind.TAKEN if kept else FrameKind.REFUSED, number)

    def on_answer(self, number: int, *, taken: bool, users: bool) -> None:
        """Note what became of a connection, or a user's descriptor.

        Raises:
            ProtocolError: If the other end was not sent it.
        """
        raise NotImplementedError

    def on_connection(self, number: int, fd: int | None) -> None:
        """Take a connection, whose descriptor the kernel may have dropped.

        Raises:
            ProtocolError: If the other end cannot have had it.
        """
        raise NotImplementedError

    def on_frame(self, frame: Frame) -> None:
        """Take a frame that only this end gets.

        Raises:
            ProtocolError: If it breaks the protocol.
        """
        raise NotImplementedError
