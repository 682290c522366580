"""Accept connections, and hand them to workers.

``balancing.py`` decides which worker gets what.  The master accepts a connection only if a worker
can have it at once.  Other connections wait in the kernel's queue, which outlives this process.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncpool._cluster import log_messages as say
from asyncpool._cluster.balancing import ConnectionBalancing
from asyncpool._cluster.link import WorkerLink
from asyncpool._cluster.rules import EXHAUSTED, HandleTag
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.loop import Alarm
from asyncpool._engine.machine import is_scarce
from asyncpool.errors import NoWorkerError, ProtocolError

# How many connections are accepted before the rest of the loop has its turn.
_ACCEPTS_A_TURN = 64

# The same at the end: more than any kernel lets wait.  The limit is for clients that keep coming
# as fast as the master accepts.
_ACCEPTS_AT_END = 1 << 16

_PAUSE = 0.1  # seconds


@dataclass(slots=True, eq=False)
class SocketHandle:
    """A socket, or a user's file, that is to go to a worker.

    Attributes:
        fd: Its descriptor, which is closed when a worker has it.
        arrival: The future that the user who has sent it awaits; ``None`` for a connection.
        payload: The pickled value that travels with it.
        tried: The slots of the workers that it was sent to.
    """

    fd: int
    arrival: asyncio.Future[None] | None = None
    payload: bytes = b""
    tried: set[int] = field(default_factory=set)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


class ConnectionBalancer:
    """The connections of one cluster, and the sockets that its user sends to workers.

    Args:
        loop: The loop that watches the listening sockets.
        name: The cluster's name in logs.
        listeners: The listening sockets, if the master accepts connections.
        links: The links to the workers, by slot.

    Attributes:
        core: Decides which worker gets what.
        lost: How many connections of leaving workers were closed, since there were too few
            descriptors to hand them on.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        listeners: Sequence[socket.socket],
        links: dict[int, WorkerLink],
    ) -> None:
        self._loop = loop
        self._log = NamedLog(name, f"cluster {name}")
        self._listeners = list(listeners)
        self._links = links
        self._accepting = False
        self._ready: deque[socket.socket] = deque()
        self._pause = Alarm(loop, self._on_alarm)
        self._exhausted = self._stopped = False
        self._look = Alarm(loop, self._on_alarm)
        self._paused: set[WorkerLink] = set()
        self._late: set[int] = set()
        self.lost = 0
        self.core: ConnectionBalancing[SocketHandle] = ConnectionBalancing()

    # Events of workers.

    def joined(self, link: WorkerLink) -> None:
        """Give connections to a worker from now on."""
        self.core.join(link.slot)
        self.dispatch()

    def left(self, link: WorkerLink) -> None:
        """Give a worker nothing more."""
        self.core.leave(link.slot)
        self.dispatch()

    def gone(self, link: WorkerLink) -> None:
        """Give others what a dead worker has not taken."""
        self._paused.discard(link)
        if link.lost:
            extra = {"slot": link.slot, "lost": link.lost}
            self._log.now(say.CONNECTIONS_LOST, extra)
        for handle in self.core.gone(link.slot):
            self._try_another(handle)
        self.dispatch()

    def taken(self, link: WorkerLink, number: int) -> None:
        """Close what a worker has now.

        Raises:
            ProtocolError: If the worker was not sent it.
        """
        handle = self.core.taken(link.slot, number)
        handle.close()
        if handle.arrival is not None and not handle.arrival.done():
            handle.arrival.set_result(None)
        self.dispatch()

    def refused(self, link: WorkerLink, number: int) -> None:
        """Give another worker what this one could not receive.

        Raises:
            ProtocolError: If the worker was not sent it.
        """
        handle = self.core.refused_by(link.slot, number, self._loop.time())
        if handle is not None:
            self._try_another(handle)
        self.dispatch()

    def returned(self, link: WorkerLink, fd: int) -> None:
        """Give another worker a connection that a leaving worker has given back.

        While descriptors are scarce, the leaving worker gives back the next connection only
        when another worker has taken this one.

        Raises:
            ProtocolError: If the worker cannot have had that connection.
        """
        handle = SocketHandle(fd)
        try:
            self.core.returned(link.slot, handle)
        except ProtocolError:
            handle.close()
            raise
        self.dispatch()
        if is_scarce(fd) and not self._stopped:
            self._paused.add(link)
            link.pause()

    # What the user sends.

    async def send(self, worker: int, fd: int, payload: bytes) -> None:
        """Send a copy to a worker; or to another one, if the first cannot receive it.

        Raises:
            NoWorkerError: If there is no such worker, or no other one.
        """
        if not self.core.is_open(worker):
            raise NoWorkerError(worker)
        handle = SocketHandle(os.dup(fd), self._loop.create_future(), payload)
        self._send(worker, handle)
        assert handle.arrival is not None
        await handle.arrival

    def _send(self, worker: int, handle: SocketHandle) -> None:
        handle.tried.add(worker)
        now = self._loop.time()
        number = self.core.hand(worker, handle, now, connection=False)
        self._links[worker].hand(number, handle.fd, HandleTag.USER, handle.payload)

    def _try_another(self, handle: SocketHandle) -> None:
        assert handle.arrival is not None
        worker = self.core.choose(self._loop.time(), besides=handle.tried)
        if worker is not None and not handle.arrival.done():
            self._send(worker, handle)
            return
        handle.close()
        if not handle.arrival.done():
            handle.arrival.set_exception(NoWorkerError(None))

    # Connections.

    def is_late(self, slot: int) -> bool:
        """Tell whether a worker leaves lying what it got, and log that once."""
        now = self._loop.time()
        self._note_late(now)
        return slot in self._late

    def _note_late(self, now: float) -> None:
        late = self.core.late(now)
        for slot in late - self._late:
            self._log.now(say.WORKER_LATE, {"slot": slot})
        self._late = late

    def dispatch(self) -> None:
        """Hand on what can go to a worker now, and decide whether to accept more."""
        while self._paused:
            self._paused.pop().resume()
        if self._stopped:
            while self.core.waiting:
                self.core.waiting.popleft().close()
            return
        now, left = self._loop.time(), _ACCEPTS_A_TURN
        self._note_late(now)
        worker = self.core.choose(now)
        while worker is not None and (left or self.core.waiting):
            left -= not self.core.waiting
            handle = self._next()
            if handle is None:
                break
            self._hand(worker, handle, now)
            worker = self.core.choose(now)
        self._listen(wanted=worker is not None)
        if worker is None:
            self._look.set_at(self.core.next_check(now))

    def stop(self) -> None:
        """Accept no more; hand on what has come by now, to any worker that there is.

        A connection that a worker gives back later is closed.
        """
        self._listen(wanted=False)
        self._ready.extend(self._listeners)
        for _ in range(_ACCEPTS_AT_END):
            worker, handle = self.core.least_busy(), self._next()
            if handle is None:
                break
            if worker is None:
                handle.close()
                break
            self._hand(worker, handle, self._loop.time())
        self._pause.cancel()
        self._listeners.clear()
        self._ready.clear()
        self._stopped = True
        self.dispatch()

    def close(self) -> None:
        """Close everything; there are no workers any more."""
        self.stop()
        self._look.cancel()

    def _next(self) -> SocketHandle | None:
        return self.core.waiting.popleft() if self.core.waiting else self._accept()

    def _hand(self, worker: int, handle: SocketHandle, now: float) -> None:
        number = self.core.hand(worker, handle, now)
        self._links[worker].hand(number, handle.fd)

    def _accept(self) -> SocketHandle | None:
        """Return the next connection, if one waits at a socket that is ready."""
        while self._ready:
            listener = self._ready.popleft()
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._rest(error)
                    return None
                # The client has left already, or the error is that of this one connection.
                # The loop reports the socket again if another one waits.
                continue
            connection.settimeout(None)  # the program's default one is not the worker's
            self._ready.append(listener)
            self._exhausted = False
            return SocketHandle(connection.detach())
        return None

    def _on_ready(self, listener: socket.socket) -> None:
        if listener not in self._ready:
            self._ready.append(listener)
        self.dispatch()

    def _listen(self, *, wanted: bool) -> None:
        """Watch the listening sockets; or leave connections in the kernel's queues."""
        wanted = wanted and not self._pause.is_set
        if wanted is self._accepting:
            return
        self._accepting = wanted
        for listener in self._listeners:
            if wanted:
                self._loop.add_reader(listener.fileno(), self._on_ready, listener)
            else:
                self._loop.remove_reader(listener.fileno())

    def _rest(self, error: OSError) -> None:
        """Accept nothing for a moment, since there are no descriptors."""
        if not self._exhausted:
            self._log.now(say.TOO_FEW_DESCRIPTORS, why=error)
        self._exhausted = True
        self._ready.clear()
        if not self._pause.is_set:
            self._pause.set_in(_PAUSE)
        self._listen(wanted=False)

    def _on_alarm(self, _: float) -> None:
        self.dispatch()
