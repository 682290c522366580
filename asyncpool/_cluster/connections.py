"""The connections of a cluster's worker.  Each counts as open until its socket is closed."""

from __future__ import annotations

import os
import socket
from _thread import get_ident  # threading would do, see _worker/__init__.py
from weakref import WeakSet

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Self

# More addresses are too many for a line in a log.
_MOST_SHOWN = 10


class Load:
    """How many connections were opened and closed, in all.

    Args:
        loop: The loop in which they are counted.
        changed: Called in it after each change.

    Attributes:
        sockets: The sockets that were opened here and still exist; some may be closed.
        cut: How many connections were cut off, because the worker's time to drain was over.
        lost: How many could not go to another worker, because no descriptor was left.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]
    ) -> None:
        self.opened = self.closed = self.cut = self.lost = 0
        self.sockets: WeakSet[socket.socket] = WeakSet()
        self._loop, self._changed = loop, changed
        self._thread = get_ident()

    @property
    def open(self) -> int:
        """How many are open."""
        return self.opened - self.closed

    def tell_who(self) -> str:
        """Tell whose connections are open, as far as that is known."""
        names = [name for sock in list(self.sockets) if (name := _peer_of(sock))]
        shown = sorted(names)[:_MOST_SHOWN]
        left = self.open - len(shown)
        return ", ".join(shown) + (f" and {left} more" if left and shown else "")

    def open_one(self) -> None:
        """Count one more."""
        self.opened += 1
        self.cut += self.cut > 0
        self._changed()

    def cut_off(self) -> None:
        """Count all open connections as cut off."""
        self.cut = self.open
        self._changed()

    def lose_one(self) -> None:
        """Count a connection that was closed instead of going to another worker."""
        self.lost += 1
        self._changed()

    def close_one(self) -> None:
        """Count one less.  Any thread may call it, for example in a garbage collection."""
        if get_ident() == self._thread:
            self._count_closed()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._count_closed)

    def _count_closed(self) -> None:
        self.closed += 1
        self._changed()


class _CountedSocket(socket.socket):
    """A socket that reports its end: it was closed, detached or collected as garbage."""

    __slots__ = ("_load",)

    def __init__(self, load: Load, descriptor: int) -> None:
        self._load: Load | None = None
        super().__init__(fileno=descriptor)
        self._load = load
        load.sockets.add(self)
        load.open_one()

    def close(self) -> None:
        super().close()
        if self.fileno() < 0:  # no file made of it is left
            self._count()

    def dup(self) -> socket.socket:  # type: ignore[override]
        # The copy is another socket, which nobody counts.
        descriptor = os.dup(self.fileno())
        return socket.socket(self.family, self.type, self.proto, fileno=descriptor)

    def detach(self) -> int:
        descriptor = super().detach()
        self._count()
        return descriptor

    def __del__(self) -> None:
        finalize: Any = getattr(super(), "__del__", None)
        if finalize is not None:
            finalize()  # warns, and closes it
        self._count()

    def _count(self) -> None:
        load, self._load = self._load, None
        if load is not None:
            load.close_one()


class Connection:
    """A connection that this worker is to serve.

    It counts as open until its socket is closed: by :meth:`close`, by a transport that uses
    the socket, or by the garbage collector.

    Attributes:
        socket: The socket, which does not block.
    """

    __slots__ = ("__weakref__", "_detached", "socket")

    def __init__(self, load: Any, descriptor: int) -> None:
        self.socket: socket.socket = _CountedSocket(load, descriptor)
        self.socket.setblocking(False)
        self._detached = False

    @property
    def address(self) -> Any:
        """The address of the other side; ``None`` if it is gone by now."""
        return _address_of(self.socket)

    def detach(self) -> socket.socket:
        """Return the socket.  The caller must close it, or pass it to a transport."""
        self._detached = True
        return self.socket

    def close(self) -> None:
        """Close the socket, unless it was detached."""
        if not self._detached:
            self.socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def _address_of(sock: socket.socket) -> Any:
    try:
        return sock.getpeername()
    except OSError:
        return None


def _peer_of(sock: socket.socket) -> str:
    """Return where a connection comes from; nothing if it is closed, or has no name."""
    match _address_of(sock):
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return ""
