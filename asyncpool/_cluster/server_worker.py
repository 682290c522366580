"""What a worker that serves does with its pool: one method for each kind of frame."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from _thread import (
    get_ident,
)  # not threading, which imports more: see _worker/__init__.py

from asyncpool._cluster.acceptor import Acceptor, AcceptRequest
from asyncpool._cluster.connections import Connection, Load
from asyncpool._cluster.rules import DrainLimit, HandleTag, drain_limit
from asyncpool._cluster.worker_link import MasterLink
from asyncpool._cluster.worker_queues import (
    CreditedQueue,
    MessageQueues,
    SocketTransfers,
)
from asyncpool._wire import log_records as say
from asyncpool._wire.frames import Frame, FrameKind, header
from asyncpool._wire.messages import MAX_REASON, pack_numbers
from asyncpool._worker.channels import own_logger
from asyncpool.errors import ProtocolError

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from asyncpool._worker.channels import Control

# How many accepted connections wait here for the user's code.  The others wait in the backlog.
_MOST_WAITING = 16

# The tag of a RETIRE frame from a worker that goes on serving until there is another one.
_NOT_YET = 1


class DrainTime:
    """The time that a worker has from when it begins to drain.

    Args:
        at_end: Seconds, if the whole cluster ends.
        replaced: Seconds, if other workers go on serving.
    """

    def __init__(self, at_end: float, replaced: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._at_end, self._replaced = at_end, replaced
        self._began: float | None = None
        self._end_began: float | None = None
        self._others_serve = False
        self._bound: asyncio.Timeout | None = None

    @property
    def limit(self) -> float:
        """How many seconds it is, by what is known now."""
        return self._replaced if self._others_serve else self._at_end

    @property
    def applied(self) -> DrainLimit:
        """Which limit applies, by what is known now."""
        return drain_limit(
            self._loop.time() if self._began is None else self._began,
            self._end_began,
            others_serve=self._others_serve,
            at_end=self._at_end,
            replaced=self._replaced,
        )

    def begin(self) -> None:
        """Begin to drain, once."""
        if self._began is None:
            self._began = self._loop.time()

    def others_serve(self) -> None:
        """Note that other workers go on serving."""
        if self._end_began is None:
            self._others_serve = True
            self._reschedule()

    def cluster_ends(self) -> None:
        """Note that the whole cluster ends, so that less time may be left."""
        if self._end_began is None:
            self._end_began = self._loop.time()
            self._reschedule()

    async def bound(self, awaited: Awaitable[object]) -> None:
        """Wait for *awaited*, but no longer than the time, which has begun."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self.applied.over_at) as self._bound:
                await awaited
        self._bound = None

    def _reschedule(self) -> None:
        if self._bound is not None and not self._bound.expired():
            self._bound.reschedule(self.applied.over_at)


class ServerWorker:
    """The implementation of a :class:`Worker`.

    Args:
        jobs: The socket of the link.
        control: The control channel.
        accepts: Whether the worker accepts for itself, on sockets that come first.
        max_payload: The most bytes that a message may have.
        time: How long it may drain.

    Attributes:
        draining: Whether it drains.
        ended: Whether nothing more comes from the pool.
        error: How the pool has broken the protocol.
        time: As above.
        is_ready: Whether it has said that it is ready.
        idle: An event: whether no connection is open.
        returning: Whether connections may be given back.
    """

    def __init__(
        self,
        jobs: socket.socket,
        control: Control,
        *,
        accepts: bool,
        max_payload: int,
        time: DrainTime,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._control = control
        self.draining = asyncio.Event()
        self.ended = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.error: ProtocolError | None = None
        self.time = time
        self.is_ready = self.returning = self._retired = self._refusing = False
        self._is_worn = self._is_busy = False
        self.listeners: list[socket.socket] = []
        self._listening: asyncio.Future[None] = self._loop.create_future()
        if not accepts:
            self._listening.set_result(None)
        self._acceptor: Acceptor | None = None
        self._want = AcceptRequest()
        # The numbers of connections that need an acknowledgement, and their descriptors.
        self._came: CreditedQueue = CreditedQueue()
        self.load = Load(self._loop, self._tell_load)
        self.link = MasterLink(jobs, max_payload=max_payload, owner=self)
        self.queues = MessageQueues(self.link, max_payload)
        self.transfers = SocketTransfers(self.link)

    async def until_listening(self) -> None:
        """Wait for the sockets to listen on.

        Raises:
            OSError: If there is no descriptor for them.
            BrokenPipeError: If the pool ends before they come.
        """
        await self._listening
        if self.listeners:
            self._acceptor = Acceptor(self.listeners, self._accepted)

    def ready(self) -> None:
        if not self.is_ready:
            self._control.send_hello()
            self.is_ready = True

    def retire(self, reason: str) -> None:
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.retire, reason)
        elif not self._retired and not self.draining.is_set():
            self._retired = True
            say.RETIRE_CALLED.log(own_logger(), {"reason": reason})
            self._control.send(FrameKind.RETIRE, _packed(reason))
            self.drain()

    def replace(self, reason: str) -> None:
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.replace, reason)
        elif not self._retired and not self.draining.is_set():
            if not self._is_worn:
                self._is_worn = True
                say.REPLACEMENT_CALLED.log(own_logger(), {"reason": reason})
            # Sent each time: a cluster that gave up and recovers has forgotten who asked.
            self._control.send(FrameKind.RETIRE, _packed(reason), 0, 0, _NOT_YET)

    def drain(self) -> None:
        """Take no new connections except those that have been handed out already."""
        if not self.draining.is_set():
            self.time.begin()
            self.draining.set()
            # If a server accepts by itself, it has registered the sockets, and must close them.
            if self._acceptor is not None and self._acceptor.used:
                self._acceptor.close()
                self.listeners.clear()

    async def connections(self) -> AsyncIterator[Connection]:
        if self._acceptor is not None and not self.draining.is_set():
            self._acceptor.listen()
        async for number, descriptor in self._came:
            # Without a variable, so that it is freed as soon as the user drops it.
            yield await self._open(number, descriptor)

    def accept(self, *, wanted: bool) -> None:
        """Accept connections, or leave them to other workers, where workers accept themselves."""
        self._is_busy = not wanted
        if (
            self._acceptor is not None
            and self._acceptor.used
            and not self.draining.is_set()
        ):
            self._acceptor.listen() if wanted else self._acceptor.pause()

    def refuse_rest(self) -> None:
        """Give back what nobody here has taken, and what still comes."""
        self._refusing = True
        waiting = list(self._came.waiting)
        self._came.waiting.clear()
        for number, descriptor in waiting:
            self._refuse(number, descriptor)

    def give_back(self, sock: socket.socket) -> bool:
        if not self.returning:
            return False
        self.transfers.ship(os.dup(sock.fileno()), HandleTag.CONNECTION)
        sock.close()
        return True

    def close(self) -> None:
        """Close the link and all that has come on it."""
        self.drain()
        for sock in self.listeners:
            sock.close()
        self.refuse_rest()
        for _, descriptor in self._came.waiting:
            os.close(descriptor)
        self.transfers.close()
        self.link.close()

    async def _open(self, number: int, descriptor: int) -> Connection:
        """Acknowledge a connection, which from now on is for the user's code alone."""
        connection = Connection(self.load, descriptor)
        if number:
            self.link.put(header(FrameKind.TAKEN, 0, number))
            if self.link.unsent:
                # Wait until it is sent: if this process died before, another worker would
                # get a connection from which something has been read.
                try:
                    await self.link.flushed()
                except BaseException:
                    connection.close()
                    raise
        elif self._acceptor is not None and not (
            self._is_busy or self.draining.is_set()
        ):
            self._acceptor.listen()
        return connection

    def _accepted(self, descriptor: int) -> None:
        self._came.put((0, descriptor))
        if len(self._came.waiting) >= _MOST_WAITING and self._acceptor is not None:
            self._acceptor.pause()

    def _accept_rest(self) -> None:
        """Accept what waits in the kernel's queue, since the whole cluster ends."""
        acceptor = self._acceptor
        if acceptor is not None and acceptor.used and not self.draining.is_set():
            acceptor.accept_rest()

    def on_frame(self, frame: Frame, descriptor: int | None) -> None:
        """Take a frame from the link, and the descriptor that came with it.

        Raises:
            ProtocolError: If the frame breaks the protocol.
        """
        kind = frame.kind
        if kind is FrameKind.HANDLE:
            self._take_handle(frame, descriptor)
        elif kind is FrameKind.LISTEN:
            self._take_listener(frame, descriptor)
        elif kind is FrameKind.MESSAGE:
            self.queues.arrive(frame.payload)
        elif kind is FrameKind.ROOM:
            self.queues.make_room(frame.job)
        elif kind is FrameKind.TAKEN or kind is FrameKind.REFUSED:
            self.transfers.answer(frame.job, arrived=kind is FrameKind.TAKEN)
        elif kind is FrameKind.RETURN:
            self.returning = True
            self.time.others_serve()
            if self._refusing:
                self.refuse_rest()
        else:
            raise ProtocolError(f"the pool sent {kind.name}")

    def _take_handle(self, frame: Frame, descriptor: int | None) -> None:
        if descriptor is None:  # the kernel has dropped it
            self._want.tell(errno.EMFILE)
            self.link.put(header(FrameKind.REFUSED, 0, frame.job))
        elif frame.number == HandleTag.USER:
            self.transfers.arrive(frame.job, descriptor, frame.payload)
        elif self._refusing:
            self._refuse(frame.job, descriptor)
        else:
            self._came.put((frame.job, descriptor))

    def _take_listener(self, frame: Frame, descriptor: int | None) -> None:
        if self._listening.done():
            if descriptor is not None:
                os.close(descriptor)
            if self._listening.exception() is None:
                raise ProtocolError("the pool sent LISTEN too late")
        elif descriptor is None:
            text = "there is no descriptor left for a socket to listen on"
            self._listening.set_exception(OSError(errno.EMFILE, text))
        else:
            sock = socket.socket(fileno=descriptor)
            sock.setblocking(False)
            self.listeners.append(sock)
            if len(self.listeners) == frame.number:
                self._listening.set_result(None)

    def on_end(self, error: ProtocolError | None) -> None:
        """Note that nothing more comes from the pool."""
        self.error = error
        if not self._listening.done():
            text = "the pool has ended before this worker could listen"
            self._listening.set_exception(BrokenPipeError(text))
        if error is None and not self.returning:
            self._accept_rest()
        self._came.end()
        self.queues.end()
        self.transfers.end()
        self.drain()
        self.ended.set()

    def _refuse(self, number: int, descriptor: int) -> None:
        if number:
            os.close(descriptor)
            self.link.put(header(FrameKind.REFUSED, 0, number))
        elif self.returning:
            self.transfers.ship(descriptor, HandleTag.CONNECTION)
        else:  # no other worker can have it now, but perhaps one can soon
            self._came.put((number, descriptor))

    def report(self, figures: list[int]) -> None:
        """Tell the master what was counted of requests; the last report counts."""
        self.link.note(FrameKind.FIGURES, pack_numbers(figures))

    def _tell_load(self) -> None:
        load = self.load
        if load.open:
            self.idle.clear()
        else:
            self.idle.set()
        counts = pack_numbers((load.opened, load.closed, load.cut))
        self.link.note(FrameKind.LOAD, counts, load.lost)


def _packed(reason: str) -> bytes:
    return f"{reason}".encode(errors="replace")[:MAX_REASON]
