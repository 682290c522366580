"""``asyncpool dashboard``."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from urllib.parse import urlsplit

import click

from asyncpool._cli.parameters import CommandError, UnfinishedError, say


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
        if importlib.util.find_spec(package) is None:
            raise CommandError(
                f"the dashboard needs {package}, which is not installed: "
                "pip install 'asyncpool-supervised[dashboard]'"
            )
    # Extras, which other commands do without.
    from asyncpool._cli.dashboard import serving  # noqa: PLC0415
    from asyncpool._cli.dashboard.access import Access  # noqa: PLC0415

    host, port = (serving.HOST, None) if bind is None else _host_and_port(bind)
    with _opened(host, port) as sock:
        access = Access.to(host)
        if not serving.is_private(sock):
            say(
                f"asyncpool: {host} is not this machine alone, and the page is not encrypted: "
                "who sees the traffic sees the token"
            )
        taken = sock.getsockname()[1]
        if port is None and taken != serving.PORT:
            say(
                f"asyncpool: port {serving.PORT} is taken, perhaps by another dashboard: "
                f"this one has port {taken}"
            )
        line = f"dashboard: {serving.address_of(sock, access)}"
        asyncio.run(
            serving.serve(
                sock,
                access,
                allow_actions=allow_actions,
                on_ready=lambda: click.echo(line),
            )
        )


def _opened(host: str, port: int | None) -> socket.socket:
    from asyncpool._cli.dashboard import serving  # noqa: PLC0415 - see above

    try:
        return serving.open_socket(host, port)
    except OSError as error:
        where = host if port is None else f"{host}:{port}"
        raise UnfinishedError(
            f"cannot listen at {where}: {error.strerror or error}; name another place "
            "by --bind HOST:PORT"
        ) from None


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
