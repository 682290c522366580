"""What a worker that serves may tell its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncpool._runtime.cluster.link import WorkerLink


class LinkEvents(Protocol):
    """What a worker tells the cluster through its link, and the one question that the link asks.

    One class implements it: ``ServiceLinkEvents`` in ``service_link_events.py``.

    A method that reads what the worker has sent raises :exc:`ProtocolError` if it breaks the
    protocol.  The worker handle then trusts the worker no more.
    """

    # Sockets that the worker is sent.

    def on_taken(self, link: WorkerLink, number: int) -> None:
        """Hear that the worker has the handle with this number.

        Raises:
            ProtocolError: If the worker was not sent it.
        """
        ...

    def on_refused(self, link: WorkerLink, number: int) -> None:
        """Hear that the worker had no descriptor for the handle with this number.

        Raises:
            ProtocolError: If the worker was not sent it.
        """
        ...

    # What the worker sends.

    def on_socket(self, link: WorkerLink, fd: int, payload: bytes) -> bool:
        """Take a descriptor with its pickled value; return whether it is wanted.

        The link does not own the descriptor any more.
        """
        ...

    def on_message(self, link: WorkerLink, payload: bytes) -> None:
        """Take a pickled message."""
        ...

    # The worker's connections.

    def on_load(self, link: WorkerLink, opened: int, closed: int, cut: int) -> None:
        """Hear how many connections the worker has had, closed and cut off, in all.

        Raises:
            ProtocolError: If the numbers cannot be right.
        """
        ...

    def on_lost(self, link: WorkerLink, more: int) -> None:
        """Hear that *more* connections are lost: the worker, or this process, had no descriptor."""
        ...

    def on_returned(self, link: WorkerLink, fd: int) -> None:
        """Take a connection that the worker gives back.

        Raises:
            ProtocolError: If the worker cannot have had it.
        """
        ...

    def on_listens(self, link: WorkerLink) -> None:
        """Hear that the worker accepts for itself from now on, and takes handles too."""
        ...

    # The worker's end.

    def on_shut(self, link: WorkerLink) -> None:
        """Hear that nothing more is sent to the worker."""
        ...

    def others_serve(self) -> bool:
        """Return whether another worker can get what this one gives back."""
        ...
