"""What the user's ``serve(worker)`` has of the cluster that it belongs to."""

from __future__ import annotations

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator
    from io import IOBase
    from typing import Any

    from asyncpool._system.descriptors import ReceivedFile, ReceivedSocket
    from asyncpool._worker.cluster.connections import Connection
    from asyncpool._worker.cluster.server_worker import ServerWorker


class Worker:
    """One worker of a cluster, as its ``serve(worker)`` sees it.

    Only the worker's event loop may use it, but for :meth:`retire` and :meth:`request_replacement`.

    Attributes:
        id: Its slot.  Its replacement may have another one, and numbers may be missing.
        generation: Which worker of this slot it is, counting from 1.
        listening_sockets: The listening sockets, if workers accept for themselves (``spread`` is
            ``"shared"`` or ``"reuseport"``).  Use them or :meth:`connections`, not both.
            Who uses them closes them when it is to drain.
    """

    def __init__(self, slot: int, generation: int, server_worker: Any) -> None:
        self.id = slot
        self.generation = generation
        self.listening_sockets: list[socket.socket] = server_worker.listeners
        self._server_worker: ServerWorker = (
            server_worker  # nothing of the public interface
        )

    @property
    def drain_timeout(self) -> float:
        """How long it may drain, in seconds; another time if others serve meanwhile."""
        return self._server_worker.time.limit

    @property
    def is_draining(self) -> bool:
        """Whether it is to take no new connections, and to end when it has none."""
        return self._server_worker.draining.is_set()

    @property
    def can_give_back(self) -> bool:
        """Whether :meth:`give_back` does anything: other workers go on."""
        return self._server_worker.returning

    def ready(self) -> None:
        """Say that it is able to serve; further calls change nothing.

        It gets no connection before that, and the worker that it replaces serves on.
        """
        self._server_worker.ready()

    async def wait_draining(self) -> None:
        """Wait until it is to drain.

        **Cancellation:** safe.
        """
        await self._server_worker.draining.wait()

    def retire(self, reason: str = "") -> None:
        """Announce its end: it drains, and a replacement is started at once.

        Any thread may call it.  Further calls change nothing.

        Args:
            reason: What the log says.
        """
        self._server_worker.retire(reason)

    def request_replacement(self, reason: str = "") -> None:
        """Ask for a successor: it serves on until that is ready, and drains then.

        Any thread may call it, once it is ready.  Further calls change nothing.

        Args:
            reason: What the log says.
        """
        self._server_worker.replace(reason)

    def connections(self) -> AsyncIterator[Connection]:
        """Yield the connections that this worker is to serve, until it drains.

        Those that came before that are yielded still.  Take them fast, and serve each in
        a task of its own: one that nobody takes goes to another worker.
        """
        return self._server_worker.connections()

    def give_back(self, sock: socket.socket) -> bool:
        """Have another worker serve a connection, while this one drains.

        For a connection that is at rest between two requests: its client does not notice,
        and a request that is on its way right now is not lost, as it would be if the
        connection were closed.

        Args:
            sock: The connection; closed here, unless the answer is no.

        Returns:
            Whether there is another worker.  There is none if the whole cluster ends.

        Raises:
            OSError: If there is no descriptor left for it; it is not closed then.
        """
        return self._server_worker.give_back(sock)

    def opened(self) -> None:
        """Count a connection that did not come from :meth:`connections`."""
        self._server_worker.load.open_one()

    def closed(self) -> None:
        """Count the end of such a connection."""
        self._server_worker.load.close_one()

    def lost(self) -> None:
        """Count a connection that is closed, since :meth:`give_back` had no descriptor."""
        self._server_worker.load.lose_one()

    async def send(self, value: object) -> None:
        """Send a message to ``Cluster.messages()``; wait while too many are on their way.

        **Cancellation:** safe; the message is sent whole or not at all.

        Args:
            value: Anything that pickle takes.

        Raises:
            ValueError: If it is too large.
            BrokenPipeError: If the cluster takes no more messages.
        """
        await self._server_worker.queues.send(value)

    def messages(self) -> AsyncIterator[Any]:
        """Yield what ``Cluster.send()`` sends to this worker, until it drains."""
        return self._server_worker.queues.messages()

    async def send_socket(self, sock: socket.socket, value: object = None) -> None:
        """Send a copy of a socket to ``Cluster.sockets()``; wait until it has arrived.

        **Cancellation:** the socket may arrive nevertheless.

        Args:
            sock: A socket of any kind.
            value: What goes beside it, 64 KiB at the most when pickled.

        Raises:
            TypeError: If *sock* is no socket.
            ValueError: If *value* is too large.
            OSError: If the cluster has no descriptor left for it, or ends.
        """
        await self._server_worker.transfers.send_socket(sock, value)

    def incoming_sockets(self) -> AsyncIterator[ReceivedSocket]:
        """Yield what ``Cluster.send_socket()`` sends to this worker, until it drains.

        The attribute ``value`` of each is what it was sent with.
        """
        return self._server_worker.transfers.sockets()

    async def send_file(self, file: IOBase | int, value: object = None) -> None:
        """Send a copy of a file to ``Cluster.files()``; wait until it has arrived.

        **Cancellation:** the file may arrive nevertheless.

        Args:
            file: An open file or pipe, or any other descriptor but a socket's or a
                directory's.
            value: What goes beside it, 64 KiB at the most when pickled.

        Raises:
            TypeError: If *file* is no such thing.
            ValueError: If *value* is too large.
            OSError: If the cluster has no descriptor left for it, or ends.
        """
        await self._server_worker.transfers.send_file(file, value)

    def incoming_files(self) -> AsyncIterator[ReceivedFile]:
        """Yield what ``Cluster.send_file()`` sends to this worker, until it drains.

        They are raw binary files, and the attribute ``value`` of each is what it was sent
        with.
        """
        return self._server_worker.transfers.files()
