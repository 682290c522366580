"""Drain the connections of uvicorn, so that no request is lost.

A client may send its next request at any time, also just when its keep-alive connection is
closed: that request is lost.  So a connection at rest is not closed, but given to another
worker: the socket stays open, and what is on its way arrives there.  Where that cannot be,
the next response says that it is the last one, which leaves the client to open another
connection, and only what stays at rest for long is closed.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import sys
import termios

from asyncpool._core.logs import worker_messages as say

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Any

    import uvicorn
    from uvicorn.server import ServerState

    from asyncpool._worker.cluster.worker import Worker

# How often connections are looked at, besides the moments when a response is complete.
_INTERVAL = 0.02  # seconds

# How long a connection stays open for a last request, if the worker has the time.
_PATIENCE = 1.0  # seconds

_CLOSE = (b"connection", b"close")

# Those of uvicorn's protocols of which it is known when they are at rest.
_KNOWN = {
    "uvicorn.protocols.http.h11_impl.H11Protocol",
    "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol",
}


class Drain:
    """The end of all connections of one server.

    Args:
        worker: The worker, which drains.
        config: The configuration of the server.
        state: What the server knows of its connections.
    """

    def __init__(
        self, worker: Worker, config: uvicorn.Config, state: ServerState
    ) -> None:
        self._worker = worker
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._patience = min(_PATIENCE, worker.drain_timeout / 2)
        self._headers = state.default_headers
        kind = config.http_protocol_class
        is_known = f"{kind.__module__}.{kind.__name__}" in _KNOWN
        self._can_move = config.ssl is None and is_known
        self._lacks = False  # descriptors
        self._watched: set[Any] = set()
        self._lost: set[Any] = set()
        # Since when each is at rest, and the timer that tells one rest from another.
        self._resting: dict[Any, tuple[object, float]] = {}

    async def run(self, connecting: asyncio.Task[None]) -> None:
        """Wait until no connection and no request is left.

        Args:
            connecting: What brings new connections, as long as it runs.
        """
        while True:
            self._set_headers()
            connections = self._state.connections
            self._watched &= connections
            self._lost &= connections
            self._resting = {
                protocol: rest
                for protocol, rest in self._resting.items()
                if protocol in connections
            }
            for protocol in list(connections):
                self._visit(protocol)
            if connecting.done() and not connections and not self._state.tasks:
                return
            await asyncio.sleep(_INTERVAL)

    def _set_headers(self) -> None:
        """Have responses that are begun from now on be the last ones of their connections.

        Unless another worker may go on with these.
        """
        closing = [] if self._moves else [_CLOSE]
        self._state.default_headers = [*self._headers, *closing]

    @property
    def _moves(self) -> bool:
        return self._can_move and self._worker.can_give_back

    def _visit(self, protocol: Any) -> None:
        is_new = protocol not in self._watched
        if not hasattr(protocol, "cycle"):  # a WebSocket, or HTTP/2
            # In the middle of its handshake it would be told that the server has failed.
            if is_new and _is_open(protocol):
                self._watched.add(protocol)
                protocol.shutdown()
            return
        if is_new:
            self._watched.add(protocol)
            self._watch(protocol)
        if protocol.transport.is_closing() or self._move(protocol):
            return
        if self._lacks and protocol not in self._lost:
            self._lost.add(protocol)
            self._worker.lost()
        cycle = protocol.cycle
        if cycle is not None and not cycle.response_complete:
            if not self._moves and not cycle.response_started:
                cycle.default_headers = self._state.default_headers
        elif self._has_rested(protocol):
            protocol.shutdown()

    def _watch(self, protocol: Any) -> None:
        """Look at a connection as soon as its response is complete, too."""
        complete = protocol.on_response_complete

        def on_response_complete() -> None:
            complete()
            if not protocol.transport.is_closing():
                self._move(protocol)

        protocol.on_response_complete = on_response_complete
        cycle = protocol.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.on_response = on_response_complete

    def _move(self, protocol: Any) -> bool:
        """Have another worker go on with a connection, if it is at rest."""
        transport = protocol.transport
        if (
            not self._moves
            or transport.get_write_buffer_size()
            or not _is_at_rest(protocol)
        ):
            return False
        # The copy outlives the transport, which closes without a word to the client.
        transport.pause_reading()
        try:
            self._give_back(transport.get_extra_info("socket").fileno())
        except OSError as error:
            self._can_move, self._lacks = False, True
            self._set_headers()
            transport.resume_reading()
            logger, extra = logging.getLogger("asyncpool"), {"seconds": self._patience}
            say.NOT_HANDED_ON.log(logger, extra, why=error.strerror)
            return False
        transport.abort()
        return True

    def _give_back(self, descriptor: int) -> None:
        copy = socket.socket(fileno=os.dup(descriptor))
        try:
            self._worker.give_back(copy)
        except OSError:
            copy.close()
            raise

    def _has_rested(self, protocol: Any) -> bool:
        """Tell whether it has been at rest for long, with nothing to be read."""
        timer = protocol.timeout_keep_alive_task
        if timer is None and protocol.scope is not None:
            return False  # in the middle of a request
        now = self._loop.time()
        known, since = self._resting.setdefault(protocol, (timer, now))
        if known is not timer:
            self._resting[protocol] = timer, now
            return False
        if now - since < self._patience:
            return False
        sock = protocol.transport.get_extra_info("socket")
        unread = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
        return not int.from_bytes(unread, sys.byteorder)


def _is_at_rest(protocol: Any) -> bool:
    """Tell whether nothing of a request was read that is not answered."""
    cycle, conn = protocol.cycle, getattr(protocol, "conn", None)
    if cycle is not None and protocol.timeout_keep_alive_task is None:
        return False
    if conn is not None:  # of h11
        states = {str(state) for state in conn.states.values()}
        return states == {"IDLE"} and not conn.trailing_data[0]
    if cycle is None:
        return protocol.scope is None
    return (
        cycle.response_complete
        and not cycle.more_body
        and not protocol.pipeline
        and protocol.scope is cycle.scope
    )


def _is_open(protocol: Any) -> bool:
    """Tell whether the handshake of a WebSocket is over."""
    event = getattr(protocol, "handshake_completed_event", None)
    if event is not None:
        return bool(event.is_set())
    return bool(getattr(protocol, "handshake_complete", True))
