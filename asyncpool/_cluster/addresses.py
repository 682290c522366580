"""Where a cluster listens, as users write it.

An address is ``tcp://HOST:PORT`` (or ``HOST:PORT``), ``unix:PATH``, ``fd://NUMBER`` for
a descriptor that this process has inherited, or ``systemd:`` for those that systemd has
passed to it.  This module only parses it.  What it means on this system shows when a
socket is opened for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_PORT = 0xFFFF
MAX_MODE = 0o777

# The number of the first descriptor that systemd passes (SD_LISTEN_FDS_START).
_FIRST_PASSED = 3

_FORMS = (
    "127.0.0.1:8000, [::1]:8000, tcp://localhost:8000, unix:///run/app.sock, "
    "fd://3 or systemd:"
)


@dataclass(frozen=True, slots=True)
class Tcp:
    """A host and a port.

    Attributes:
        host: An address of version 4 or 6, or a name; empty for all interfaces.
        port: The port; 0 for any free one.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Unix:
    """The path of a Unix socket.

    Attributes:
        path: The path of the socket's file.  Abstract sockets, which begin with a
            NUL, can only be inherited.
        mode: The permissions of the file; ``None`` if none were written.
    """

    path: str
    mode: int | None = None

    def __str__(self) -> str:
        shown = f"@{self.path[1:]}" if self.path.startswith("\0") else self.path
        mode = "" if self.mode is None else f"?mode={self.mode:03o}"
        return f"unix://{shown}{mode}"


@dataclass(frozen=True, slots=True)
class Inherited:
    """A descriptor that this process has inherited from the process that started it."""

    fd: int

    def __str__(self) -> str:
        return f"fd://{self.fd}"


@dataclass(frozen=True, slots=True)
class Systemd:
    """The descriptors that systemd has passed; with a *name*, only those of that name."""

    name: str = ""

    def __str__(self) -> str:
        return f"systemd:{self.name}"


Bind = Tcp | Unix | Inherited | Systemd


def parse(text: str) -> Bind:
    """Return what an address means.

    Raises:
        ValueError: If *text* is no address.  The error says what is wrong, and how
            to write it.
    """
    scheme, _, rest = text.partition(":")
    rest = rest.removeprefix("//")
    if scheme == "unix":
        return _unix(text, rest)
    if scheme == "fd":
        if not _is_number(rest):
            raise ValueError(f"{text!r}: behind fd:// comes a number, as in fd://3")
        return Inherited(int(rest))
    if scheme == "systemd":
        return Systemd(rest)
    if "://" in text and scheme != "tcp":
        raise ValueError(f"{text!r} is no address; write {_FORMS}")
    return _tcp(text, rest if text.startswith("tcp://") else text)


def parse_all(texts: Iterable[str]) -> tuple[Bind, ...]:
    """Return what several addresses mean.

    Raises:
        ValueError: If there is no address, or if one is not valid, or is there twice.
    """
    binds = tuple(map(parse, texts))
    if not binds:
        raise ValueError(f"there is nothing to listen on; write {_FORMS}")
    for number, bind in enumerate(binds):
        anything = isinstance(bind, Tcp) and bind.port == 0
        if bind in binds[:number] and not anything:
            raise ValueError(f"{bind} is given twice")
    return binds


def passed(name: str, environment: Mapping[str, str], pid: int) -> tuple[int, ...]:
    """Return the descriptors that systemd has passed.

    Args:
        name: Which descriptors; empty for all.
        environment: The environment variables.
        pid: The pid of this process.

    Raises:
        ValueError: If systemd has passed none to this process.
    """
    what = repr(str(Systemd(name)))
    count, owner = environment.get("LISTEN_FDS"), environment.get("LISTEN_PID")
    if count is None or owner is None:
        raise ValueError(
            f"{what}: systemd has passed no sockets (LISTEN_FDS is not set); "
            "is there a .socket unit?"
        )
    if not _is_number(count) or not int(count):
        raise ValueError(
            f"{what}: LISTEN_FDS is {count!r}, which is no number of sockets"
        )
    if owner != str(pid):
        raise ValueError(
            f"{what}: the sockets were passed to process {owner}, and this is {pid}; "
            "start it without a shell between (exec)"
        )
    fds = range(_FIRST_PASSED, _FIRST_PASSED + int(count))
    if not name:
        return tuple(fds)
    names = environment.get("LISTEN_FDNAMES")
    known = zip(fds, (names or "").split(":"), strict=False)
    found = tuple(fd for fd, its in known if its == name)
    if not found:
        raise ValueError(f"{what}: there is no such name in LISTEN_FDNAMES, {names!r}")
    return found


def ignored(binds: Iterable[Bind], environment: Mapping[str, str], pid: int) -> int:
    """Return how many sockets systemd has passed to this process if no address means them."""
    if any(isinstance(bind, Systemd | Inherited) for bind in binds):
        return 0
    count = environment.get("LISTEN_FDS", "")
    mine = environment.get("LISTEN_PID") == str(pid) and _is_number(count)
    return int(count) if mine else 0


def _tcp(text: str, address: str) -> Tcp:
    host, colon, port = address.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} has no port; write {_FORMS}")
    if not _is_number(port) or int(port) > MAX_PORT:
        raise ValueError(f"{text!r}: {port!r} is no port, which is 0 to {MAX_PORT}")
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(
            f"{text!r}: an IPv6 address goes in brackets, as in [::1]:8000"
        )
    if any(character.isspace() or character in "[]/@\0" for character in host):
        raise ValueError(f"{text!r}: {host!r} is no host")
    return Tcp(host, int(port))


def _unix(text: str, rest: str) -> Unix:
    path, question, digits = rest.rpartition("?mode=")
    if not question:
        path, mode = rest, None
    elif not _is_number(digits, "01234567") or int(digits, 8) > MAX_MODE:
        raise ValueError(
            f"{text!r}: {digits!r} are no permissions, which are octal, as in ?mode=660"
        )
    else:
        mode = int(digits, 8)
    if not path or "\0" in path:
        raise ValueError(f"{text!r} has no path; write unix:///run/app.sock")
    return Unix(path, mode)


def _is_number(text: str, digits: str = "0123456789") -> bool:
    # str.isdigit() also accepts digits of other scripts, and int() accepts spaces.
    return 0 < len(text) <= 9 and set(text) <= set(digits)  # noqa: PLR2004 - fits an int
