"""The listening sockets of a cluster: they belong to its master, and outlive every worker."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from asyncpool._core.cluster.addresses import (
    Bind,
    Inherited,
    Systemd,
    Tcp,
    Unix,
    parse_all,
    passed,
)
from asyncpool._runtime.cluster.socket_files import (
    SocketFile,
    closed_on_error,
    listen_at,
)

# What a machine says that has one of the versions of IP switched off.
_NOT_HERE = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT))

# The file of a Unix socket is its user's own, unless other permissions were written.
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
    """Listening sockets, all non-blocking and close-on-exec; :func:`open_listeners` opens.

    With ``SO_REUSEPORT`` there is one for each address and *group*, and each has a queue of
    its own.

    Attributes:
        addresses: What is listened on, with the real ports.
    """

    def __init__(
        self, groups: dict[int | None, list[_Listener]], *, backlog: int
    ) -> None:
        self._groups = groups
        self._backlog = backlog
        first = next(iter(groups.values()))
        # The same in every place, which may all be closed one day.
        self._names = [listener.sock.getsockname() for listener in first]
        self._families = [listener.sock.family for listener in first]
        self.addresses: tuple[str, ...] = tuple(
            _shown(listener.sock) for listener in first
        )

    def sockets(self, group: int | None = None) -> list[socket.socket]:
        """Return those of a place, in the order of :attr:`addresses`; ``None``: all."""
        if group is None:
            return [it.sock for group in self._groups.values() for it in group]
        return [it.sock for it in self._groups.get(group, ())]

    def open_group(self, group: int) -> None:
        """Open the sockets of one more place, or of one that was closed.

        Raises:
            OSError: If they cannot be had; none is open then.
        """
        if group not in self._groups:
            with _all_or_nothing() as opened:
                for family, name in zip(self._families, self._names, strict=True):
                    opened.append(
                        _Listener(_tcp_socket(family, name, self._backlog, reuse=True))
                    )
            self._groups[group] = opened

    def close_group(self, group: int) -> None:
        """Close the sockets of a place; what the kernel has queued there is lost."""
        for listener in self._groups.pop(group, ()):
            listener.close()

    def close(self) -> None:
        """Close all, and remove the files of Unix sockets that are still ours."""
        while self._groups:
            _, listeners = self._groups.popitem()
            for listener in listeners:
                listener.close()


def open_listeners(
    binds: Sequence[str], *, backlog: int, reuseport_groups: int = 0
) -> Listeners:
    """Open everything that a cluster listens on, or nothing.

    Args:
        binds: The addresses; see :mod:`asyncpool._core.cluster.addresses`.
        backlog: How many connections may wait in each socket.  A socket that is
            inherited and listens already keeps its own.
        reuseport_groups: How many sockets there are to be for each address; 0 for a
            single one without ``SO_REUSEPORT``.

    Raises:
        ValueError: If an address makes no sense, or systemd has passed no socket.
        OSError: If one cannot be opened; the text names it, and says why.
    """
    addresses = parse_all(binds, once_per_group=reuseport_groups > 0)
    with _all_or_nothing() as opened:
        for bind in addresses:
            try:
                opened.extend(_open(bind, backlog, reuse=reuseport_groups > 0))
            except OSError as error:
                raise _explained(bind, error) from error
        if not reuseport_groups:
            return Listeners({None: opened}, backlog=backlog)
        listeners = Listeners({0: opened}, backlog=backlog)
        try:
            for group in range(1, reuseport_groups):
                listeners.open_group(group)
        except OSError:
            listeners.close()
            raise
    return listeners


@contextlib.contextmanager
def _all_or_nothing() -> Generator[list[_Listener]]:
    opened: list[_Listener] = []
    try:
        yield opened
    except BaseException:
        for listener in opened:
            listener.close()
        raise


def _open(bind: Bind, backlog: int, *, reuse: bool) -> list[_Listener]:
    match bind:
        case Tcp():
            return _open_tcp(bind, backlog, reuse=reuse)
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


def _open_tcp(bind: Tcp, backlog: int, *, reuse: bool) -> list[_Listener]:
    """Listen on every address that a host has; all with the same port."""
    found = socket.getaddrinfo(
        bind.host or None, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    port, missing = bind.port, None
    with _all_or_nothing() as opened:
        for family, _, _, _, name in dict.fromkeys(found):
            there = (name[0], port, *name[2:])
            try:
                if reuse and port == bind.port:
                    # Or another server that does the same would share our port.
                    _tcp_socket(family, there, backlog, reuse=False).close()
                sock = _tcp_socket(family, there, backlog, reuse=reuse)
            except OSError as error:
                # A name, or all interfaces, may have addresses that this machine lacks.
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
                continue
            opened.append(_Listener(sock))
            port = sock.getsockname()[1]
        if missing is not None and not opened:
            raise missing
    return opened


def _tcp_socket(
    family: int, name: tuple[object, ...], backlog: int, *, reuse: bool
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    with closed_on_error(sock):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # Or it would take the port of version 4 along, where the system likes that.
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
    """Listen on a descriptor that was inherited; what is closed later is a duplicate."""
    os.set_inheritable(fd, False)  # no program that is started here is to have it
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
            # To listen again would change the backlog for everybody who has it.
            sock.listen(backlog)
        sock.setblocking(False)
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
        # Those have numbers of their own.
        number = errno.EADDRNOTAVAIL
    elif error.errno is None:  # a path that is too long for the kernel
        number = errno.ENAMETOOLONG
    elif isinstance(error, PermissionError) and _is_roots(bind):
        reason += f" (ports below {_FIRST_FREE_PORT} are root's)"
    return OSError(number, f"cannot listen on {bind}: {reason}")


def _is_roots(bind: Bind) -> bool:
    return isinstance(bind, Tcp) and 0 < bind.port < _FIRST_FREE_PORT
