"""The listening sockets of a cluster: its master owns them, and they outlive every worker."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import AsyncGenerator, Generator, Sequence

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
    closed_on_error,
    folders_locked,
    listen_at,
)

# Errors of a machine on which one of the versions of IP is switched off.
_NOT_HERE = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT))

# The permissions of a Unix socket's file if the address names none: only its user may connect.
_PRIVATE = 0o600

_FIRST_FREE_PORT = 1024


class Listeners:
    """Everything that a cluster listens on: sockets that do not block, and are close-on-exec.

    Args:
        binds: The addresses; see :mod:`asyncpool._cluster.addresses`, and :func:`addresses_locked`.
        backlog: How many connections may wait in each socket.  A socket that is inherited and
            listens already keeps its own backlog.

    Attributes:
        sockets: The sockets.
        addresses: Their addresses, with the real ports.

    Raises:
        ValueError: If an address makes no sense, or systemd has passed no socket.
        OSError: If one cannot be opened; the text names it, and says why.
    """

    def __init__(self, binds: Sequence[str], *, backlog: int) -> None:
        self._backlog = backlog
        self.sockets: list[socket.socket] = []
        self._opened = opened = contextlib.ExitStack()
        with opened:  # all or nothing
            for bind in parse_all(binds):
                self._open(bind)
            self.addresses = tuple(map(_shown, self.sockets))
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close all, and remove the files of Unix sockets, if they are still the same."""
        self._opened.close()

    def _open(self, bind: Bind) -> None:
        try:
            match bind:
                case Tcp():
                    self._open_tcp(bind)
                case Unix():
                    self._open_unix(bind)
                case Inherited(fd):
                    self._adopt(fd)
                case Systemd(name):
                    for fd in passed(name, os.environ, os.getpid()):
                        self._adopt(fd)
        except OSError as error:
            raise _explained(bind, error) from error

    def _open_tcp(self, bind: Tcp) -> None:
        """Listen on every address of a host, with the same port on each."""
        flags = socket.AI_PASSIVE
        found = socket.getaddrinfo(
            bind.host or None, bind.port, type=socket.SOCK_STREAM, flags=flags
        )
        port, missing, before = bind.port, None, len(self.sockets)
        for family, _, _, _, name in dict.fromkeys(found):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                with self._owned(sock):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        # Without this, some systems would take the same port of version 4 as well.
                        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    sock.bind((name[0], port, *name[2:]))
                    sock.listen(self._backlog)
            except OSError as error:
                # A host name, or "all interfaces", may have addresses that this machine lacks.
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
            else:
                port = sock.getsockname()[1]
        if missing is not None and len(self.sockets) == before:
            raise missing

    def _open_unix(self, bind: Unix) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mode = _PRIVATE if bind.mode is None else bind.mode
        with self._owned(sock):
            file = listen_at(sock, bind.path, mode=mode, backlog=self._backlog)
            self._opened.callback(file.remove)

    def _adopt(self, fd: int) -> None:
        """Listen on an inherited descriptor; the listener owns a duplicate of it."""
        copy = os.dup(fd)
        try:
            sock = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            raise
        with self._owned(sock):
            if sock.type != socket.SOCK_STREAM:
                raise OSError(errno.EPROTOTYPE, "it is no stream socket")
            if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                # To listen again would change the backlog for all processes that have the socket.
                sock.listen(self._backlog)
            os.set_inheritable(fd, False)  # no program that is started here has it

    @contextlib.contextmanager
    def _owned(self, sock: socket.socket) -> Generator[None]:
        self._opened.enter_context(sock)
        with closed_on_error(sock):
            sock.setblocking(False)
            yield
        self.sockets.append(sock)


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
