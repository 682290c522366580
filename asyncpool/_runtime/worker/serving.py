"""What the workers of a supervisor do instead of jobs, if they serve.

The pool knows no more about a cluster than these protocols.  A cluster makes a
:class:`Serving` and hands it to the supervisor with the rest of the configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from asyncpool._core.wire.frames import Frame
    from asyncpool._runtime.channel.channel import Channel
    from asyncpool._runtime.worker.handle import WorkerHandle


class ServingLink(Protocol):
    """Reads and writes the job channel of a worker that serves."""

    def on_frames(self, frames: list[Frame]) -> None:
        """Take the frames that the worker has sent.

        Raises:
            ProtocolError: If a frame breaks the protocol.
        """
        ...

    def shut(self) -> None:
        """Send nothing more: the worker leaves, or is gone."""
        ...


class Serving(Protocol):
    """Knows what the workers do instead of jobs, and hears when they come and go."""

    def config(self, handle: WorkerHandle) -> bytes:
        """Return the configuration of a worker that is being started, packed."""
        ...

    def open_link(
        self,
        handle: WorkerHandle,
        sock: socket.socket,
        make_channel: Callable[[socket.socket], Channel],
    ) -> ServingLink:
        """Return the link of a worker that is being started.

        Args:
            handle: The worker.
            sock: The pool's end of the job channel; the link may wrap it in another socket.
            make_channel: Makes a channel of a socket; the handle closes it.

        Raises:
            OSError: If this process lacks the means.
        """
        ...

    def ready(self, handle: WorkerHandle) -> None:
        """Note that a worker is ready."""
        ...

    def ended(self, handle: WorkerHandle) -> bool:
        """Note that a worker is dead; return whether it has served anybody."""
        ...

    def stop(self) -> None:
        """Accept no more connections: the end has begun."""
        ...

    def close(self) -> None:
        """Close everything; there are no workers any more."""
        ...
