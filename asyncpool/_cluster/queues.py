"""What the workers of a cluster have sent to its master, until its user takes it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Self, TypeVar

from asyncpool._cluster import log_messages as say
from asyncpool._cluster.link import WorkerLink
from asyncpool._cluster.rules import MOST_MESSAGES
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.loop import check_loop
from asyncpool._wire.posix import ReceivedFile, ReceivedSocket, received

# The most sockets that are kept here; the same for files.  One more is refused, as if there were
# no descriptors.
_MOST_SOCKETS = 64

T = TypeVar("T")
H = TypeVar("H", bound=ReceivedSocket | ReceivedFile)


class Inbox(Generic[T]):
    """Things in the order in which they came; an async iterator, for any number of tasks.

    After the end of the cluster, the iterator yields what is still here, and then ends.
    """

    def __init__(self) -> None:
        self._home = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._news = asyncio.Event()
        self._ended = False

    def __len__(self) -> int:
        return len(self._items)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Wait for the next thing.

        Raises:
            RuntimeError: In another event loop than the cluster's.

        Cancellation:
            Safe: nothing is lost.
        """
        check_loop(self._home, "what comes from the workers of a cluster")
        while not self._items:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._items.popleft()

    def put(self, item: T) -> None:
        """Add something."""
        self._items.append(item)
        self._news.set()

    def end(self) -> None:
        """End the iterations after what is still here."""
        self._ended = True
        self._news.set()

    def clear(self) -> list[T]:
        """Take all that is left."""
        items = list(self._items)
        self._items.clear()
        return items


class MessageQueues:
    """What came from the workers of one cluster.

    Args:
        name: The cluster's name in logs.

    Attributes:
        messages: Pickled messages, each with the link that it came on.
        sockets: Sockets: each is a tuple of the slot of its worker, the socket, and the pickled
            value that came with it.
        files: Files, in the same form.
    """

    def __init__(self, name: str) -> None:
        self._log = NamedLog(name, f"cluster {name}")
        self._dropping = self._told = False
        self.messages: Inbox[tuple[WorkerLink, bytes]] = Inbox()
        self.sockets: Inbox[tuple[int, ReceivedSocket, bytes]] = Inbox()
        self.files: Inbox[tuple[int, ReceivedFile, bytes]] = Inbox()

    def take_message(self, link: WorkerLink, payload: bytes) -> None:
        """Keep a message, if code can read it here."""
        if self._dropping:
            self._drop(link)
        else:
            self.messages.put((link, payload))

    def drop_messages(self) -> None:
        """Drop all messages from now on, since no code can read them."""
        self._dropping = True
        for link, _ in self.messages.clear():
            self._drop(link)

    def drop_worker(self, link: WorkerLink) -> None:
        """Keep no more messages of a slot's dead workers than one living worker may have here.

        The oldest messages go.
        """
        items = self.messages.clear()
        theirs = [item for item in items if item[0].slot == link.slot]
        too_many = len(theirs) - MOST_MESSAGES
        for item in items:
            if item[0].slot == link.slot and too_many > 0:
                too_many -= 1
            else:
                self.messages.put(item)
        if len(theirs) > MOST_MESSAGES:
            extra = {"slot": link.slot, "messages": len(theirs) - MOST_MESSAGES}
            self._log.now(say.MESSAGES_DROPPED, extra)

    def _drop(self, link: WorkerLink) -> None:
        link.consumed()
        if not self._told:
            self._told = True
            self._log.now(say.MESSAGES_UNREAD, {"slot": link.slot})

    def take_socket(self, link: WorkerLink, fd: int, payload: bytes) -> bool:
        """Keep a socket or a file; return false if it is neither, or not wanted."""
        try:
            thing = received(fd)
        except OSError:
            return False
        if isinstance(thing, ReceivedSocket):
            return self._keep(self.sockets, link, thing, payload)
        return self._keep(self.files, link, thing, payload)

    @staticmethod
    def _keep(
        inbox: Inbox[tuple[int, H, bytes]], link: WorkerLink, thing: H, payload: bytes
    ) -> bool:
        if len(inbox) >= _MOST_SOCKETS:
            thing.close()
            return False
        inbox.put((link.slot, thing, payload))
        return True

    def close(self) -> None:
        """End the iterations, and close what nobody has taken."""
        self.messages.end()
        self.sockets.end()
        self.files.end()
        for _, sock, _ in self.sockets.clear():
            sock.close()
        for _, file, _ in self.files.clear():
            file.close()
