"""What the workers of a supervisor do instead of jobs, if they serve.

The pool knows no more of a cluster than this: who makes a :class:`Serving` hands it to the
supervisor with the rest of the configuration.
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
    """What reads and writes the job channel of a worker that serves."""

    def on_frames(self, frames: list[Frame]) -> None:
        """Take what the worker says.

        Raises:
            ProtocolError: If no worker says that.
        """
        ...

    def shut(self) -> None:
        """Send nothing more: the worker leaves, or is gone."""
        ...


class Serving(Protocol):
    """What the workers do instead of jobs, and what hears of their life."""

    def config(self, handle: WorkerHandle) -> bytes:
        """Return what a worker is told when it is started, packed."""
        ...

    def open_link(
        self,
        handle: WorkerHandle,
        sock: socket.socket,
        make_channel: Callable[[socket.socket], Channel],
    ) -> ServingLink:
        """Return what reads the job channel of a worker that is being started.

        Args:
            handle: The worker.
            sock: The pool's end; it may be replaced by one that does more.
            make_channel: What makes the channel of a socket; the handle closes it.

        Raises:
            OSError: If this process lacks the means.
        """
        ...

    def ready(self, handle: WorkerHandle) -> None:
        """Take note that a worker is ready."""
        ...

    def ended(self, handle: WorkerHandle) -> bool:
        """Take note that a worker is dead; tell whether it has served anybody."""
        ...

    def stop(self) -> None:
        """Let nobody come any more: the end has begun."""
        ...

    def close(self) -> None:
        """Let go of everything; there are no workers any more."""
        ...
