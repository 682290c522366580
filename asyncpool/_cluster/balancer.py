"""Accept connections, and hand them to workers.

``balancing.py`` decides which worker gets what.  The master accepts a connection only if a worker
can have it at once.  Other connections wait in the kernel's queue, which outlives this process.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from asyncpool._cluster import log_messages as say
from asyncpool._cluster.acceptor import Acceptor, Want
from asyncpool._cluster.balancing import ConnectionBalancing
from asyncpool._cluster.link import HandleTag
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.loop import Alarm
from asyncpool._engine.machine import is_scarce
from asyncpool.errors import NoWorkerError, ProtocolError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping

    from asyncpool._cluster.service import WorkerLink

# How many connections are accepted before the rest of the loop has its turn.
_ACCEPTS_A_TURN = 64


class ConnectionBalancer:
    """The connections of one cluster.

    Args:
        log: The cluster's log.
        listeners: The listening sockets, if the master accepts connections.
        links: The links to the workers, by slot.

    Attributes:
        core: Decides which worker gets what.
        lost: How many connections of leaving workers were closed, since there were too few
            descriptors to hand them on.
    """

    def __init__(
        self,
        log: NamedLog,
        listeners: list[socket.socket],
        links: Mapping[int, WorkerLink],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._links = links
        want = Want(lambda why: log.now(say.TOO_FEW_DESCRIPTORS, why=why))
        self._acceptor = Acceptor(listeners, self.dispatch, want)
        self._look = Alarm(self._loop, lambda _: self.dispatch())
        self._stopped = False
        self._paused: set[WorkerLink] = set()
        self._late: set[int] = set()
        self.lost = 0
        self.core: ConnectionBalancing[int] = ConnectionBalancing()

    # Events of workers.

    def open(self, link: WorkerLink, *, is_open: bool) -> None:
        """Give connections to a worker from now on, or nothing more."""
        self.core.shares[link.slot].open = is_open
        self.dispatch()

    def gone(self, link: WorkerLink) -> None:
        """Give others what a dead worker has not taken."""
        self._paused.discard(link)
        if link.lost:
            extra = {"slot": link.slot, "lost": link.lost}
            self._log.now(say.CONNECTIONS_LOST, extra)
        self.core.gone(link.slot)
        self.dispatch()

    def answered(
        self, link: WorkerLink, number: int, *, taken: bool, users: bool
    ) -> None:
        """Close what a worker has now; give another worker what this one could not receive.

        What is a user's is with :meth:`send`.

        Raises:
            ProtocolError: If the worker was not sent it.
        """
        if not taken:
            self.core.pass_over(link.slot, self._loop.time())
        if not users:
            fd = self.core.settle(link.slot, number, taken=taken)
            if taken:
                os.close(fd)
        self.dispatch()

    def returned(self, link: WorkerLink, fd: int) -> None:
        """Give another worker a connection that a leaving worker has given back.

        While descriptors are scarce, the leaving worker gives back the next connection only
        when another worker has taken this one.

        Raises:
            ProtocolError: If the worker cannot have had that connection.
        """
        try:
            self.core.returned(link.slot, fd)
        except ProtocolError:
            os.close(fd)
            raise
        self.dispatch()
        if link.is_shut and is_scarce(fd) and not self._stopped:
            self._paused.add(link)
            link.channel.pause()

    async def send(self, worker: int, fd: int, payload: bytes) -> None:
        """Send a user's copy to a worker; or to another one, if the first cannot receive it.

        Raises:
            NoWorkerError: If there is no such worker, or no other one.
        """
        slot: int | None = worker
        if worker not in self._links or not self._links[worker].open:
            raise NoWorkerError(worker)
        kept, tried = os.dup(fd), set[int]()
        try:
            while slot is not None:
                tried.add(slot)
                if await self._links[slot].ship(os.dup(kept), payload):
                    return
                slot = self.core.choose(self._loop.time(), besides=tried)
        finally:
            os.close(kept)
        raise NoWorkerError(None)

    # Connections.

    def is_late(self, slot: int) -> bool:
        """Tell whether a worker leaves lying what it got, and log that once."""
        self._note_late(self._loop.time())
        return slot in self._late

    def _note_late(self, now: float) -> None:
        late = {slot for slot, it in self.core.shares.items() if it.is_late(now)}
        for slot in late - self._late:
            self._log.now(say.WORKER_LATE, {"slot": slot})
        self._late = late

    def dispatch(self) -> None:
        """Hand on what can go to a worker now, and decide whether to accept more."""
        while self._paused:
            self._paused.pop().channel.resume()
        waiting = self.core.waiting
        if self._stopped:
            while waiting:
                os.close(waiting.popleft())
            return
        now, left = self._loop.time(), _ACCEPTS_A_TURN
        self._note_late(now)
        worker = self.core.choose(now)
        while worker is not None and (left or waiting):
            left -= not waiting
            fd = waiting.popleft() if waiting else self._acceptor.accept()
            if fd is None:
                break
            self._hand(worker, fd, now)
            worker = self.core.choose(now)
        self._acceptor.listen(wanted=worker is not None)
        if worker is None:
            self._look.set_at(self.core.next_check(now))

    def _hand(self, worker: int, fd: int, now: float) -> None:
        number = self._links[worker].hand(fd, HandleTag.CONNECTION, keep=True)
        self.core.hand(worker, number, fd, now)

    def stop(self) -> None:
        """Accept no more; hand on what has come by now, to any worker that there is.

        A connection that a worker gives back later is closed.
        """
        if self._stopped:
            return
        for fd in self._rest():
            worker = self.core.least_busy()
            if worker is None:
                os.close(fd)
                break
            self._hand(worker, fd, self._loop.time())
        self._acceptor.close()
        self._stopped = True
        self.dispatch()

    def _rest(self) -> Iterator[int]:
        while self.core.waiting:
            yield self.core.waiting.popleft()
        yield from self._acceptor.rest()

    def close(self) -> None:
        """Close everything; there are no workers any more."""
        self.stop()
        self._look.cancel()
