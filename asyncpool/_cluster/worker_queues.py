"""What travels between the user's code in the master and in a worker that serves.

A message is acknowledged when the other side takes it out of its queue.  So code that sends faster
than the other side takes has to wait.  A socket or a file is acknowledged when it arrives.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections import deque

from asyncpool._cluster.rules import HandleTag, MessageCredit
from asyncpool._wire import log_records as say
from asyncpool._wire.frames import FrameKind, header
from asyncpool._wire.posix import (
    ReceivedFile,
    ReceivedSocket,
    check_beside,
    file_descriptor,
    received,
    socket_descriptor,
)
from asyncpool._worker.channels import own_logger

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterable
    from io import IOBase
    from typing import Any

    from asyncpool._cluster.worker_link import MasterLink


class MessageQueues:
    """Messages, both ways.

    Args:
        link: The link on which they travel.
        max_payload: The most bytes of a pickled message.
    """

    def __init__(self, link: MasterLink, max_payload: int) -> None:
        self._link = link
        self._max_payload = max_payload
        self._came: CreditedQueue = CreditedQueue()
        self._early = 0  # how many of the messages came before there was a link
        self._credit = MessageCredit("the pool")
        self._turn = asyncio.Lock()  # tasks send in the order in which they came
        self._room = asyncio.Event()

    async def send(self, value: object) -> None:
        """Send a message; wait while too many are on their way.

        Raises:
            ValueError: If it is larger than the pool accepts.
            BrokenPipeError: If the pool accepts no more messages.
        """
        payload = pickle.dumps(value, 5)
        if len(payload) > self._max_payload:
            raise ValueError(
                f"a message of {len(payload)} bytes is longer than the "
                f"{self._max_payload} that may be sent"
            )
        async with self._turn:
            while not self._credit.has_room:
                if self._link.ended:
                    raise BrokenPipeError("the pool takes no more messages")
                self._room.clear()
                await self._room.wait()
            await self._link.until_sent()
            self._credit.send()
            self._link.put(header(FrameKind.MESSAGE, len(payload)) + payload)

    async def messages(self) -> AsyncIterator[Any]:
        """Yield the messages from the pool, until it sends no more.

        A message that cannot be unpickled is dropped: this code may be older or newer.
        """
        async for payload in self._came:
            if self._early:
                self._early -= 1
            elif (taken := self._credit.take()) is not None:
                self._link.note(FrameKind.ROOM, job=taken)
            try:
                value = pickle.loads(payload)
            except Exception as error:
                _tell_dropped("a message", error)
                continue
            yield value

    def begin_with(self, payloads: Iterable[bytes]) -> None:
        """Put messages into the queue before those that come on the link."""
        for payload in payloads:
            self._early += 1
            self._came.put(payload)

    def arrive(self, payload: bytes) -> None:
        """Take a message from the link.

        Raises:
            ProtocolError: If the pool has not waited for room.
        """
        self._credit.receive()
        self._came.put(payload)

    def make_room(self, consumed: int) -> None:
        """Note how many messages the pool's user has taken, in all.

        Raises:
            ProtocolError: If the number cannot be right.
        """
        self._credit.make_room(consumed)
        self._room.set()

    def end(self) -> None:
        """End both ways: the pool sends nothing more, and takes nothing more."""
        self._came.end()
        self._room.set()


class SocketTransfers:
    """Sockets and files for the user's code, both ways.

    Args:
        link: The link on which they travel.
    """

    def __init__(self, link: MasterLink) -> None:
        self._link = link
        # Each with the pickled value that came with it.
        self._sockets: CreditedQueue = CreditedQueue()
        self._files: CreditedQueue = CreditedQueue()
        self._sent = 0
        self._unanswered: dict[int, asyncio.Future[bool]] = {}

    async def send_socket(self, sock: socket.socket, value: object) -> None:
        """Send a copy of *sock*, and wait until it has arrived.

        Raises:
            TypeError: If it is no socket.
            ValueError: If *value* is too large.
            OSError: If the pool has no descriptor left for it, or is gone.
        """
        await self._send(socket_descriptor(sock), value, "socket")

    async def send_file(self, file: IOBase | int, value: object) -> None:
        """Send a copy of *file*, and wait until it has arrived.

        Raises:
            TypeError: If it is no file, or a socket or a directory.
            ValueError: If *value* is too large.
            OSError: If the pool has no descriptor left for it, or is gone.
        """
        await self._send(file_descriptor(file), value, "file")

    async def _send(self, descriptor: int, value: object, what: str) -> None:
        payload = b"" if value is None else check_beside(pickle.dumps(value, 5))
        if self._link.ended:
            raise BrokenPipeError(f"the pool takes no more {what}s")
        answer = asyncio.get_running_loop().create_future()
        self.ship(os.dup(descriptor), HandleTag.USER, payload)
        number = self._sent
        self._unanswered[number] = answer
        try:
            arrived = await answer
        finally:
            self._unanswered.pop(number, None)
        if not arrived:
            raise OSError(f"the pool could not take the {what}")

    def ship(self, descriptor: int, tag: HandleTag, payload: bytes = b"") -> None:
        """Send a descriptor, which the link owns from now on."""
        self._sent += 1
        head = header(FrameKind.HANDLE, len(payload), self._sent, 0, tag)
        self._link.put(head + payload, descriptor)

    async def sockets(self) -> AsyncIterator[ReceivedSocket]:
        """Yield the sockets from the pool, until it sends no more."""
        async for sock, payload in self._sockets:
            if _label(sock, payload, "a socket"):
                yield sock

    async def files(self) -> AsyncIterator[ReceivedFile]:
        """Yield the files from the pool, until it sends no more."""
        async for file, payload in self._files:
            if _label(file, payload, "a file"):
                yield file

    def arrive(self, number: int, descriptor: int, payload: bytes) -> None:
        """Take a socket or a file from the link; refuse a descriptor that is neither."""
        try:
            thing = received(descriptor)
        except OSError:
            self._link.put(header(FrameKind.REFUSED, 0, number))
            return
        self._link.put(header(FrameKind.TAKEN, 0, number))
        came = self._sockets if isinstance(thing, ReceivedSocket) else self._files
        came.put((thing, payload))

    def answer(self, number: int, *, arrived: bool) -> None:
        """Note whether a socket or a file has arrived at the pool."""
        answer = self._unanswered.get(number)
        if answer is not None and not answer.done():
            answer.set_result(arrived)

    def end(self) -> None:
        """End both ways: nothing more arrives or is sent."""
        self._sockets.end()
        self._files.end()
        for answer in self._unanswered.values():
            if not answer.done():
                answer.set_result(False)

    def close(self) -> None:
        """Close what nobody has taken."""
        for came in (self._sockets, self._files):
            while came.waiting:
                came.waiting.popleft()[0].close()


def _label(thing: ReceivedSocket | ReceivedFile, payload: bytes, what: str) -> bool:
    """Give a thing its value; if that cannot be unpickled, close the thing and return false."""
    try:
        thing.value = pickle.loads(payload) if payload else None
    except Exception as error:
        thing.close()
        _tell_dropped(f"the value of {what}", error)
        return False
    return True


def _tell_dropped(what: str, error: Exception) -> None:
    """Log what could not be unpickled: this code may be older or newer."""
    say.VALUE_UNREADABLE.log(own_logger(), {}, error=error, what=what)


class CreditedQueue:
    """A queue that can end; iterations over it end then.

    Attributes:
        waiting: What nobody has taken yet.
        ended: Whether nothing more arrives.
    """

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.ended = False
        self._takers: deque[asyncio.Future[None]] = deque()

    def put(self, item: Any) -> None:
        """Add *item*."""
        self.waiting.append(item)
        self._wake(1)

    def end(self) -> None:
        """End the queue: nothing more arrives."""
        self.ended = True
        self._wake(len(self._takers))

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            while not self.waiting:
                if self.ended:
                    return
                taker = asyncio.get_running_loop().create_future()
                self._takers.append(taker)
                try:
                    await taker
                except BaseException:
                    # It was woken in the turn in which it was cancelled: wake another one.
                    if taker in self._takers:
                        self._takers.remove(taker)
                    elif self.waiting:
                        self._wake(1)
                    raise
            yield self.waiting.popleft()

    def _wake(self, count: int) -> None:
        while count and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1
