"""Serves the page, and watches programs meanwhile."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable

import anyio
import uvicorn

from asyncpool._cli.dashboard.access import Access
from asyncpool._cli.dashboard.web import Dashboard

HOST = "127.0.0.1"
PORT = 8750

# A page has one stream, and asks now and then.
_MOST_CONNECTIONS = 100


def open_socket(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: An address, or a name that has one.
        port: The port; ``None`` is :data:`PORT`, or any free one if that is taken.

    Raises:
        OSError: If it cannot be had.
    """
    family, _, _, _, address = socket.getaddrinfo(
        host, PORT if port is None else port, type=socket.SOCK_STREAM
    )[0]
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        if port is not None or error.errno != errno.EADDRINUSE:
            raise
        return socket.create_server((address[0], 0), family=family)


def is_private(sock: socket.socket) -> bool:
    """Return whether only this machine can connect."""
    return ipaddress.ip_address(sock.getsockname()[0]).is_loopback


def address_of(sock: socket.socket, access: Access) -> str:
    """Return the address of the page."""
    host, port = sock.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/{access.token}/"


async def serve(
    sock: socket.socket,
    access: Access,
    *,
    allow_actions: bool,
    on_ready: Callable[[], object] = lambda: None,
) -> None:
    """Serve the page until a signal comes.

    Args:
        sock: Where.
        access: Who may see it.
        allow_actions: Whether the page may change anything.
        on_ready: Called when the page can be opened; from then on Ctrl-C ends it cleanly.

    Cancellation:
        Ends it.
    """
    dashboard = Dashboard(allow_actions=allow_actions)
    config = uvicorn.Config(
        dashboard.app(access),
        access_log=False,  # it would have the token
        log_config=None,
        log_level="error",
        lifespan="off",
        ws="none",
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config, dashboard, on_ready)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dashboard.programs.run, name="asyncpool dashboard: programs")
        try:
            await server.serve(sockets=[sock])
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await server.end([sock])
            raise
        tasks.cancel_scope.cancel()


class _Server(uvicorn.Server):
    """A server whose streams end with it."""

    def __init__(
        self,
        config: uvicorn.Config,
        dashboard: Dashboard,
        on_ready: Callable[[], object],
    ) -> None:
        super().__init__(config)
        self._dashboard = dashboard
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and then say so."""
        await super().startup(sockets=sockets)
        self._on_ready()

    async def end(self, sockets: list[socket.socket]) -> None:
        """End although no signal has come."""
        if self.started:
            await self.shutdown(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, which would last for ever, and then the connections."""
        self._dashboard.end()
        await super().shutdown(sockets)
