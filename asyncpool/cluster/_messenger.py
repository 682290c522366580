"""Messages, sockets and files between the master of a cluster and its workers."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Hashable
from io import IOBase

from asyncpool._core.pickling.out_of_band import dumps_call
from asyncpool._runtime.cluster.link import MAX_MESSAGE
from asyncpool._runtime.cluster.service import Service
from asyncpool._system.descriptors import (
    ReceivedFile,
    ReceivedSocket,
    check_beside,
    file_descriptor,
    socket_descriptor,
)
from asyncpool.cluster._messages import Message, Messages, SocketIterator
from asyncpool.errors import NoWorkerError


class Messenger(ABC):
    """Sends messages, sockets and files to workers, and receives those of workers."""

    name: str

    @abstractmethod
    def _service(self) -> Service:
        """Return the service, which knows the workers.

        Raises:
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
        """

    @abstractmethod
    def _service_here(self) -> Service:
        """Return the service, even if the cluster is closed.

        Raises:
            PoolClosedError: If the cluster was never started.
            RuntimeError: If it was started in another event loop.
        """

    async def send(self, worker: int, value: object) -> None:
        """Send a message to the worker in a slot; wait while it has too many unread ones.

        Raises:
            NoWorkerError: If no worker is ready there, or it ends before the message is sent.
            ValueError: If the message is too large (1 MiB).
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            Exception: Any error of pickling *value*.

        Cancellation:
            Safe: the message is sent whole, or not at all.
        """
        service = self._service()
        payload = _message(value)
        line = service.links.get(worker)
        if line is None or not await line.send(payload):
            raise NoWorkerError(worker)

    async def broadcast(self, value: object, *, key: Hashable = None) -> None:
        """Send a message to every worker, and to all later workers.

        Workers that are ready or starting find it among their ``worker.messages()``.  Workers that
        start later, as replacements or since the cluster grows, find it there before all
        other messages.  Draining workers get nothing.  The call waits while one of the workers has
        too many unread messages.

        Args:
            value: Anything that pickle takes.
            key: Of several broadcasts with the same key, such as a topic, only the last
                one is kept for later workers.  The messages that are kept for all keys
                have 64 MiB at the most.

        Raises:
            ValueError: If the message is too large (1 MiB), or too large to keep beside the others.
            TypeError: If *key* is not hashable.
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            Exception: Any error of pickling *value*.

        Cancellation:
            Some workers may get the message, and later workers do.
        """
        service = self._service()
        await service.broadcast(key, _message(value))

    def messages(self) -> AsyncIterator[Message]:
        """Return an iterator over the messages of workers, which waits for the next.

        If there are several iterators, each message goes to one of them.  A worker with 64
        unread messages waits before it sends another.  The iterator ends with the cluster.

        Raises:
            PoolClosedError: If the cluster was never started.
            RuntimeError: If it was started in another event loop.
        """
        return Messages(self._service_here().queues.messages, self.name)

    async def send_socket(
        self, worker: int, sock: socket.socket, value: object = None
    ) -> None:
        """Send a copy of a socket to the worker in a slot; return when it is there.

        If that worker dies before it has received the socket, or has no descriptor left, the
        cluster sends the socket to another worker.

        Args:
            worker: The slot.
            sock: A socket of any kind.
            value: Anything that pickle takes, 64 KiB at the most when pickled.  It becomes the
                attribute ``value`` of the socket that the worker receives.

        Raises:
            NoWorkerError: If the slot has no worker, or no other worker can take it.
            TypeError: If *sock* is no socket.
            OSError: If *sock* is closed, or this process has no descriptor left for a copy.
            ValueError: If *value* is too large.
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            Exception: Any error of pickling *value*.

        Cancellation:
            The socket may arrive nevertheless.
        """
        await self._send_descriptor(worker, socket_descriptor(sock), value)

    async def send_file(
        self, worker: int, file: IOBase | int, value: object = None
    ) -> None:
        """Send a copy of a file to the worker in a slot; return when it is there.

        The worker gets a raw binary file that shares its offset and flags with *file*.
        Everything else is as in :meth:`send_socket`.

        Args:
            worker: The slot.
            file: An open file or pipe, or any other descriptor but a socket's or a
                directory's.
            value: As in :meth:`send_socket`.

        Raises:
            NoWorkerError: If the slot has no worker, or no other worker can take it.
            TypeError: If *file* is none of these.
            OSError: If *file* is closed, or this process has no descriptor left for a copy.
            ValueError: If *value* is too large, or *file* a closed object.
            PoolClosedError: If the cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            Exception: Any error of pickling *value*.

        Cancellation:
            The file may arrive nevertheless.
        """
        await self._send_descriptor(worker, file_descriptor(file), value)

    async def _send_descriptor(self, worker: int, fd: int, value: object) -> None:
        service = self._service()
        payload = b"" if value is None else check_beside(dumps_call(value))
        await service.balancer.send(worker, fd, payload)

    def incoming_sockets(self) -> AsyncIterator[tuple[int, ReceivedSocket]]:
        """Return an iterator over the sockets that workers send, each with its slot.

        The attribute ``value`` of a socket is the value that the worker sent with it.  Sockets
        that are not taken are closed with the cluster.

        Raises:
            PoolClosedError: If the cluster was never started.
            RuntimeError: If it was started in another event loop.
        """
        return SocketIterator(self._service_here().queues.sockets, self.name)

    def incoming_files(self) -> AsyncIterator[tuple[int, ReceivedFile]]:
        """Return an iterator over the files that workers send, each with its slot.

        See :meth:`incoming_sockets`.

        Raises:
            PoolClosedError: If the cluster was never started.
            RuntimeError: If it was started in another event loop.
        """
        return SocketIterator(self._service_here().queues.files, self.name)


def _message(value: object) -> bytes:
    """Return a message, pickled.

    Raises:
        ValueError: If it is too large.
        Exception: Any error of pickling it.
    """
    payload = dumps_call(value)
    if len(payload) > MAX_MESSAGE:
        raise ValueError(
            f"a message of {len(payload)} bytes is longer than the {MAX_MESSAGE} that may "
            "be sent"
        )
    return payload
