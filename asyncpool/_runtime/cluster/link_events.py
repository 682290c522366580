"""What a worker that serves may tell its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncpool._runtime.cluster.link import WorkerLink


class LinkEvents(Protocol):
    """What a worker tells the cluster through its link, and the one thing that the link asks.

    There is one: ``ServiceLinkEvents`` in ``service_link_events.py``.

    A method that reads what the worker has sent raises :exc:`ProtocolError` if no worker says
    that.  The handle then accuses the worker.
    """

    # Sockets that it is sent.

    def on_taken(self, link: WorkerLink, number: int) -> None:
        """Hear that the worker has the handle of this number.

        Raises:
            ProtocolError: If it was not sent that.
        """
        ...

    def on_refused(self, link: WorkerLink, number: int) -> None:
        """Hear that the worker had no descriptor for the handle of this number.

        Raises:
            ProtocolError: If it was not sent that.
        """
        ...

    # What it sends.

    def on_socket(self, link: WorkerLink, fd: int, payload: bytes) -> bool:
        """Take a descriptor, with a pickled value, and tell whether it is wanted.

        The link does not own the descriptor any more.
        """
        ...

    def on_message(self, link: WorkerLink, payload: bytes) -> None:
        """Take a pickled message."""
        ...

    # Its connections.

    def on_load(self, link: WorkerLink, opened: int, closed: int, cut: int) -> None:
        """Hear how many connections the worker has had, closed and cut off, in all.

        Raises:
            ProtocolError: If that cannot be.
        """
        ...

    def on_lost(self, link: WorkerLink, more: int) -> None:
        """Hear of *more* connections for which it, or this process, had no descriptor."""
        ...

    def on_returned(self, link: WorkerLink, fd: int) -> None:
        """Take a connection that the worker gives back.

        Raises:
            ProtocolError: If it cannot have had that.
        """
        ...

    def on_listens(self, link: WorkerLink) -> None:
        """Hear that the worker accepts by itself from now on, and takes what is handed to it."""
        ...

    # Its end.

    def on_shut(self, link: WorkerLink) -> None:
        """Hear that nothing more is sent to the worker."""
        ...

    def others_serve(self) -> bool:
        """Tell whether what the worker gives back finds another one."""
        ...
