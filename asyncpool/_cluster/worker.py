"""The object through which the user's ``serve(worker)`` uses its cluster."""

from __future__ import annotations

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator
    from io import IOBase
    from typing import Any

    from asyncpool._cluster.connections import Connection
    from asyncpool._cluster.server_worker import ServerWorker
    from asyncpool._wire.posix import ReceivedFile, ReceivedSocket


class Worker:
    """A worker of a cluster, for its ``serve(worker)``.

    Only the worker's event loop may use it, but for :meth:`retire` and :meth:`request_replacement`.

    Attributes:
        id: Its slot.  Its replacement may have another slot, and numbers may be missing.
        generation: Which worker of this slot it is, counting from 1.
        listening_sockets: The listening sockets, if workers accept connections themselves
            (``spread`` is ``"shared"``).  Use them or :meth:`connections`, not both.  If
            you use them, close them when the worker drains.
    """

    def __init__(self, slot: int, generation: int, server_worker: Any) -> None:
        self.id = slot
        self.generation = generation
        self.listening_sockets: list[socket.socket] = server_worker.listeners
        self._server_worker: ServerWorker = (
            server_worker  # private: only asyncpool makes workers
        )

    @property
    def drain_timeout(self) -> float:
        """Seconds that the worker has to drain; it depends on whether others serve meanwhile."""
        return self._server_worker.time.limit

    @property
    def is_draining(self) -> bool:
        """Whether the worker drains: it takes no new connections, and ends when it has none."""
        return self._server_worker.draining.is_set()

    @property
    def can_give_back(self) -> bool:
        """Whether :meth:`give_back` works: there are other workers that continue to serve."""
        return self._server_worker.returning

    def ready(self) -> None:
        """Say that the worker can serve.  Further calls change nothing.

        Until then it gets no connection, and the worker that it replaces continues to serve.
        """
        self._server_worker.ready()

    async def wait_draining(self) -> None:
        """Wait until the worker is to drain.

        **Cancellation:** safe.
        """
        await self._server_worker.draining.wait()

    def retire(self, reason: str = "") -> None:
        """Announce the worker's end: it drains, and the master starts a replacement at once.

        Any thread may call it.  Further calls change nothing.

        Args:
            reason: What the log says.
        """
        self._server_worker.retire(reason)

    def request_replacement(self, reason: str = "") -> None:
        """Ask for a replacement: the worker serves until that is ready, and then drains.

        Any thread may call it, once the worker is ready.  Further calls change nothing.

        Args:
            reason: What the log says.
        """
        self._server_worker.replace(reason)

    def connections(self) -> AsyncIterator[Connection]:
        """Yield the connections that this worker is to serve, until it drains.

        It also yields the connections that arrived before that.  Take them fast, and serve
        each in a task of its own: a connection that you do not take goes to another worker.
        """
        return self._server_worker.connections()

    def give_back(self, sock: socket.socket) -> bool:
        """Give a connection to another worker, while this one drains.

        Use it for a connection that is idle between two requests.  Its client does not
        notice, and does not lose a request that it is just sending, as it would if this
        worker closed the connection.

        Args:
            sock: The connection.  It is closed here if the result is true.

        Returns:
            Whether there is another worker.  There is none if the whole cluster ends.

        Raises:
            OSError: If there is no descriptor left for it.  It is not closed then.
        """
        return self._server_worker.give_back(sock)

    def opened(self) -> None:
        """Count a connection that did not come from :meth:`connections`."""
        self._server_worker.load.open_one()

    def closed(self) -> None:
        """Count the end of such a connection."""
        self._server_worker.load.close_one()

    def lost(self) -> None:
        """Count a connection that was closed because :meth:`give_back` had no descriptor."""
        self._server_worker.load.lose_one()

    async def send(self, value: object) -> None:
        """Send a message to ``Cluster.messages()``; wait while too many are on their way.

        **Cancellation:** safe; the message is sent whole or not at all.

        Args:
            value: Any object that can be pickled.

        Raises:
            ValueError: If it is too large.
            BrokenPipeError: If the cluster takes no more messages.
        """
        await self._server_worker.queues.send(value)

    def messages(self) -> AsyncIterator[Any]:
        """Yield the messages of ``Cluster.send()`` to this worker, until it drains."""
        return self._server_worker.queues.messages()

    async def send_socket(self, sock: socket.socket, value: object = None) -> None:
        """Send a copy of a socket to ``Cluster.incoming_sockets()``; wait until it arrives.

        **Cancellation:** the socket may still arrive.

        Args:
            sock: A socket of any kind.
            value: An object that travels with it, of up to 64 KiB when pickled.

        Raises:
            TypeError: If *sock* is no socket.
            ValueError: If *value* is too large.
            OSError: If the cluster has no descriptor left for it, or ends.
        """
        await self._server_worker.transfers.send_socket(sock, value)

    def incoming_sockets(self) -> AsyncIterator[ReceivedSocket]:
        """Yield the sockets of ``Cluster.send_socket()`` to this worker, until it drains.

        The attribute ``value`` of each is the object that was sent with it.
        """
        return self._server_worker.transfers.sockets()

    async def send_file(self, file: IOBase | int, value: object = None) -> None:
        """Send a copy of a file to ``Cluster.incoming_files()``; wait until it arrives.

        **Cancellation:** the file may still arrive.

        Args:
            file: An open file, a pipe, or another object with a descriptor, but no socket
                or directory.
            value: An object that travels with it, of up to 64 KiB when pickled.

        Raises:
            TypeError: If *file* is no such object.
            ValueError: If *value* is too large.
            OSError: If the cluster has no descriptor left for it, or ends.
        """
        await self._server_worker.transfers.send_file(file, value)

    def incoming_files(self) -> AsyncIterator[ReceivedFile]:
        """Yield the files of ``Cluster.send_file()`` to this worker, until it drains.

        They are raw binary files.  The attribute ``value`` of each is the object that was
        sent with it.
        """
        return self._server_worker.transfers.files()
