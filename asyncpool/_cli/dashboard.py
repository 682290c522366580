"""``asyncpool dashboard``: where the page is served, and who may see it.

Whoever has the address may, and no other page of the browser.  The address has a token, so other
users of the machine cannot guess it.  A browser runs pages of others too.  Such a page can send
requests here, although it does not know the token, and it can give this machine's address a name of
its own (DNS rebinding) to read the answers.  So the host and the origin of each request are checked
as well.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import click

from asyncpool._cli.parameters import CommandError, UnfinishedError, need, say

HOST = "127.0.0.1"
PORT = 8750

_TOKEN_BYTES = 16

# None of these is in the Host header of a browser.
_PARTS_OF_URLS = frozenset("@/?#\\")


@click.command("dashboard", short_help="Serve a page that shows pools and servers.")
@click.option(
    "--bind",
    metavar="HOST:PORT",
    help="Where the page is served; 127.0.0.1:8750 by default, or another port if that "
    "one is taken.",
)
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Let the page kill and recycle workers, and resize pools; by default it only shows.",
)
def dashboard_command(*, bind: str | None, allow_actions: bool) -> None:
    """Serve a page that shows this user's pools and servers, live, until Ctrl-C.

    The page shows pools that have a control socket (Pool(control=True), or
    ASYNCPOOL_CONTROL=1), and all servers.  Open the address that the command prints: it
    has a token, and nobody without it sees anything.
    """
    for package in ("starlette", "uvicorn"):
        need(package, "dashboard", "the dashboard")
    from asyncpool._cli.dashboard_web import serve  # noqa: PLC0415 - they are extras

    host, port = (HOST, None) if bind is None else _host_and_port(bind)
    try:
        sock = open_socket(host, port)
    except OSError as error:
        where = host if port is None else f"{host}:{port}"
        raise UnfinishedError(
            f"cannot listen at {where}: {error.strerror or error}; name another place "
            "by --bind HOST:PORT"
        ) from None
    with sock:
        access = Access(host)
        if not is_private(sock):
            say(
                f"asyncpool: {host} is not this machine alone, and the page is not encrypted: "
                "who sees the traffic sees the token"
            )
        taken = sock.getsockname()[1]
        if port is None and taken != PORT:
            say(
                f"asyncpool: port {PORT} is taken, perhaps by another dashboard: "
                f"this one has port {taken}"
            )
        line = f"dashboard: {address_of(sock, access)}"
        serving = serve(
            sock,
            access,
            allow_actions=allow_actions,
            on_ready=lambda: click.echo(line),
        )
        asyncio.run(serving)


def _host_and_port(bind: str) -> tuple[str, int]:
    found = urlsplit(f"//{bind}")
    try:
        host, port = found.hostname, found.port
    except ValueError:
        host, port = None, None
    if not host or port is None or found.path:
        raise CommandError(
            f"--bind takes a host and a port, such as 127.0.0.1:8750, not {bind}"
        )
    return host, port


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


@dataclass(frozen=True, slots=True)
class Access:
    """What a request must have.

    Attributes:
        host: The host that the page was bound to, which may be a name.
        token: The first part of each path.
    """

    host: str
    token: str = field(default_factory=lambda: secrets.token_urlsafe(_TOKEN_BYTES))

    def refusal(self, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Return the status of HTTP and the reason if a request is refused, or else ``None``.

        Args:
            path: Its path.
            headers: Its headers, by their names in lower case.
        """
        host = headers.get("host", "")
        if not self._is_ours(host):
            return (
                421,
                "The page is not known by this host name: use the printed address.",
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "A page of another origin may not use this one."
        if headers.get("sec-fetch-site") == "cross-site" and (
            headers.get("sec-fetch-mode") != "navigate"
        ):
            return 403, "A page of another site may not use this one."
        given = path.removeprefix("/").partition("/")[0]
        # compare_digest takes text only if it is ASCII.
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return 401, "The address lacks the token: use the one that was printed."
        return None

    def _is_ours(self, host: str) -> bool:
        """Return whether a Host header cannot come from another's name for this machine.

        The port is not compared: it may be another one, forwarded by ssh.
        """
        if not _PARTS_OF_URLS.isdisjoint(host):
            return False
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name not in {"localhost", self.host.lower()}:
                ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
