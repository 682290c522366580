"""Where the things go that workers tell their cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncpool._runtime.cluster.link import WorkerLink
from asyncpool._runtime.cluster.link_events import LinkEvents

if TYPE_CHECKING:
    from asyncpool._runtime.cluster.service import Service


class ServiceLinkEvents(LinkEvents):
    """Passes each thing that a worker tells its cluster to the part that is responsible.

    Args:
        service: Has these parts.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def on_taken(self, link: WorkerLink, number: int) -> None:
        """Close what a worker has now."""
        self._service.balancer.taken(link, number)

    def on_refused(self, link: WorkerLink, number: int) -> None:
        """Give another worker what this one could not receive."""
        self._service.balancer.refused(link, number)

    def on_socket(self, link: WorkerLink, fd: int, payload: bytes) -> bool:
        """Keep a socket for the user."""
        return self._service.queues.take_socket(link, fd, payload)

    def on_message(self, link: WorkerLink, payload: bytes) -> None:
        """Keep a message for the user."""
        self._service.queues.take_message(link, payload)

    def on_load(self, link: WorkerLink, opened: int, closed: int, cut: int) -> None:
        """Note how many connections a worker has had."""
        self._service.count_load(link, opened, closed, cut)

    def on_lost(self, link: WorkerLink, more: int) -> None:
        """Count connections that no other worker gets."""
        self._service.balancer.lose(link, more)

    def on_returned(self, link: WorkerLink, fd: int) -> None:
        """Give a connection that a leaving worker has given back to another one."""
        self._service.balancer.returned(link, fd)

    def on_listens(self, link: WorkerLink) -> None:  # noqa: ARG002 - whichever it is
        """Accept for others in place of a worker that takes handles."""
        self._service.groups.fill_in()

    def on_shut(self, link: WorkerLink) -> None:
        """Give a worker nothing more."""
        self._service.begin_drain(link)

    def others_serve(self) -> bool:
        """Return whether the cluster goes on."""
        return not self._service.stopped
