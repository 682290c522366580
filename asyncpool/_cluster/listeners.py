"""The listening sockets of a cluster: its master owns them, and they outlive every worker."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass

from asyncpool._cluster.addresses import (
    Bind,
    Inherited,
    Systemd,
    Tcp,
    Unix,
    parse_all,
    passed,
)
from asyncpool._observe.control.socket_files import (
    SocketFile,
    closed_on_error,
    folders_locked,
    listen_at,
)

# Errors of a machine on which one of the versions of IP is switched off.
_NOT_HERE = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT))

# The permissions of a Unix socket's file if the address names none: only its user may connect.
_PRIVATE = 0o600

_FIRST_FREE_PORT = 1024


@dataclass(frozen=True, slots=True)
class _Listener:
    sock: socket.socket
    file: SocketFile | None = None

    def close(self) -> None:
        if self.file is not None:
            self.file.remove()
        self.sock.close()


class Listeners:
    """Listening sockets, all non-blocking and close-on-exec; :func:`open_listeners` opens them.

    Attributes:
        addresses: The addresses, with the real ports.
    """

    def __init__(self, listeners: list[_Listener]) -> None:
        self._listeners = listeners
        self.addresses: tuple[str, ...] = tuple(_shown(it.sock) for it in listeners)

    def sockets(self) -> list[socket.socket]:
        """Return the sockets, in the order of :attr:`addresses`."""
        return [it.sock for it in self._listeners]

    def close(self) -> None:
        """Close all, and remove the files of Unix sockets, if they are still the same."""
        while self._listeners:
            self._listeners.pop().close()


@contextlib.asynccontextmanager
async def addresses_locked(binds: Sequence[str]) -> AsyncGenerator[None]:
    """Lock the folders of Unix sockets among the addresses that are about to be opened.

    Args:
        binds: The addresses.

    Raises:
        ValueError: If an address makes no sense.

    Cancellation:
        Safe.
    """
    opened = parse_all(binds)
    paths = [bind.path for bind in opened if isinstance(bind, Unix)]
    async with folders_locked(paths):
        yield


def open_listeners(binds: Sequence[str], *, backlog: int) -> Listeners:
    """Open everything that a cluster listens on, or nothing; see :func:`addresses_locked`.

    Args:
        binds: The addresses; see :mod:`asyncpool._cluster.addresses`.
        backlog: How many connections may wait in each socket.  A socket that is
            inherited and listens already keeps its own backlog.

    Raises:
        ValueError: If an address makes no sense, or systemd has passed no socket.
        OSError: If one cannot be opened; the text names it, and says why.
    """
    with _all_or_nothing() as opened:
        for bind in parse_all(binds):
            try:
                opened.extend(_open(bind, backlog))
            except OSError as error:
                raise _explained(bind, error) from error
    return Listeners(opened)


@contextlib.contextmanager
def _all_or_nothing() -> Generator[list[_Listener]]:
    opened: list[_Listener] = []
    try:
        yield opened
    except BaseException:
        for listener in opened:
            listener.close()
        raise


def _open(bind: Bind, backlog: int) -> list[_Listener]:
    match bind:
        case Tcp():
            return _open_tcp(bind, backlog)
        case Unix():
            return [_open_unix(bind, backlog)]
        case Inherited(fd):
            return [_adopt(fd, backlog)]
        case Systemd(name):
            fds = passed(
                name,
                pid=os.getpid(),
                count=os.environ.get("LISTEN_FDS"),
                owner=os.environ.get("LISTEN_PID"),
                names=os.environ.get("LISTEN_FDNAMES"),
            )
            with _all_or_nothing() as opened:
                for fd in fds:
                    opened.append(_adopt(fd, backlog))
            return opened


def _open_tcp(bind: Tcp, backlog: int) -> list[_Listener]:
    """Listen on every address of a host, with the same port on each."""
    found = socket.getaddrinfo(
        bind.host or None, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    port, missing = bind.port, None
    with _all_or_nothing() as opened:
        for family, _, _, _, name in dict.fromkeys(found):
            there = (name[0], port, *name[2:])
            try:
                sock = _tcp_socket(family, there, backlog)
            except OSError as error:
                # A host name, or "all interfaces", may have addresses that this machine lacks.
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
                continue
            opened.append(_Listener(sock))
            port = sock.getsockname()[1]
        if missing is not None and not opened:
            raise missing
    return opened


def _tcp_socket(family: int, name: tuple[object, ...], backlog: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    with closed_on_error(sock):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Without this, some systems would take the same port of version 4 as well.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(name)
        sock.listen(backlog)
    return sock


def _open_unix(bind: Unix, backlog: int) -> _Listener:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with closed_on_error(sock):
        sock.setblocking(False)
        file = listen_at(
            sock,
            bind.path,
            mode=_PRIVATE if bind.mode is None else bind.mode,
            backlog=backlog,
        )
    return _Listener(sock, file)


def _adopt(fd: int, backlog: int) -> _Listener:
    """Listen on an inherited descriptor; the listener owns a duplicate of it."""
    copy = os.dup(fd)
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with closed_on_error(sock):
        if sock.type != socket.SOCK_STREAM:
            raise OSError(errno.EPROTOTYPE, "it is no stream socket")
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            # To listen again would change the backlog for all processes that have the socket.
            sock.listen(backlog)
        sock.setblocking(False)
        os.set_inheritable(fd, False)  # programs that are started here must not have it
    return _Listener(sock)


def _shown(sock: socket.socket) -> str:
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return str(Unix(os.fsdecode(name)))
    return str(Tcp(name[0], name[1]))


def _explained(bind: Bind, error: OSError) -> OSError:
    """Return an error that names the address."""
    number = error.errno
    reason = error.strerror or str(error)
    if isinstance(error, socket.gaierror):
        # Those errors have numbers of their own, which mean nothing to a caller.
        number = errno.EADDRNOTAVAIL
    elif error.errno is None:  # a path that is too long for the kernel
        number = errno.ENAMETOOLONG
    elif isinstance(error, PermissionError) and _is_roots(bind):
        reason += f" (ports below {_FIRST_FREE_PORT} are root's)"
    return OSError(number, f"cannot listen on {bind}: {reason}")


def _is_roots(bind: Bind) -> bool:
    return isinstance(bind, Tcp) and 0 < bind.port < _FIRST_FREE_PORT
