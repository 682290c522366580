"""Listening sockets: opened all or not at all, and closed without a trace."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from asyncpool._core.cluster.addresses import parse
from asyncpool._runtime.cluster import listeners as module
from asyncpool._runtime.cluster.listeners import (
    addresses_locked,
    open_listeners,
)
from tests.helpers.locked_folder import assert_waits, locked
from tests.helpers.patience import PATIENCE, patience

V6 = "[::1]:0"


def has_v6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_v6 = pytest.mark.skipif(not has_v6(), reason="needs IPv6")
needs_listening = pytest.mark.skipif(
    not Path("/proc/self/net/tcp").exists(), reason="reads Linux's /proc"
)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Paths of sockets must be short, and those of tests are not.
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.chdir(name)
        yield Path(name)
        monkeypatch.undo()


def connect(address: str) -> None:
    """Connect, and close again."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(address.removeprefix("unix://"))
        return
    socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()


def accept(sock: socket.socket) -> None:
    ready, _, _ = select.select([sock], [], [], PATIENCE)
    assert ready
    sock.accept()[0].close()


@pytest.mark.parametrize(
    ("bind", "shown"),
    [
        ("127.0.0.1:0", r"tcp://127\.0\.0\.1:[1-9]\d*"),
        ("tcp://127.0.0.1:0", r"tcp://127\.0\.0\.1:[1-9]\d*"),
        pytest.param(V6, r"tcp://\[::1\]:[1-9]\d*", marks=needs_v6),
        ("unix:x.sock", r"unix:///.*/x\.sock|unix://x\.sock"),
    ],
)
def test_one_address(bind: str, shown: str, folder: Path) -> None:
    with closing(open_listeners([bind], backlog=8)) as opened:
        (sock,) = opened.sockets()
        (address,) = opened.addresses
        assert re.fullmatch(shown, address)
        assert not sock.get_inheritable()
        assert not sock.getblocking()
        connect(address)
        accept(sock)
    with pytest.raises(OSError, match=r"refused|No such file"):
        connect(address)
    assert not os.listdir(folder)


@needs_v6
def test_all_interfaces_have_the_same_port(folder: Path) -> None:
    with closing(open_listeners([":0", "unix:x.sock"], backlog=8)) as opened:
        first, second, third = opened.addresses
        assert {first.rpartition(":")[0], second.rpartition(":")[0]} == {
            "tcp://0.0.0.0",
            "tcp://[::]",
        }
        assert first.rpartition(":")[2] == second.rpartition(":")[2]
        assert third.startswith("unix://")
        assert len(opened.sockets()) == 3


def test_what_this_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(*args: object, **options: object) -> Sequence[object]:
        tcp = (socket.SOCK_STREAM, 6, "")
        return [
            (socket.AF_INET, *tcp, ("192.0.2.1", 0)),  # reserved for documentation
            (socket.AF_INET, *tcp, ("127.0.0.1", 0)),
        ][: 1 if args[0] == "none" else 2]

    monkeypatch.setattr(socket, "getaddrinfo", names)
    with closing(open_listeners(["some:0"], backlog=8)) as opened:
        assert [name[:15] for name in opened.addresses] == ["tcp://127.0.0.1"]
    with pytest.raises(OSError, match="cannot listen on tcp://none:0: Cannot assign"):
        open_listeners(["none:0"], backlog=8)


def test_all_or_nothing(folder: Path) -> None:
    with closing(open_listeners(["127.0.0.1:0"], backlog=8)) as taken:
        (address,) = taken.addresses
        with pytest.raises(OSError, match="cannot listen on") as failure:
            open_listeners(["unix:x.sock", "127.0.0.1:0", address], backlog=8)
    assert failure.value.errno == errno.EADDRINUSE
    assert failure.value.strerror == (
        f"cannot listen on {address}: Address already in use"
    )
    assert not os.listdir(folder)


@pytest.mark.parametrize(
    ("bind", "number", "reason"),
    [
        ("unix:no/x", errno.ENOENT, "there is no folder {folder}/no: make it first"),
        (
            f"unix:{'x' * 200}",
            errno.ENAMETOOLONG,
            "the path has {bytes} bytes, and a socket's may have 107",
        ),
        ("192.0.2.1:1", errno.EADDRNOTAVAIL, "Cannot assign requested address"),
        ("fd://999", errno.EBADF, "Bad file descriptor"),
        ("fd://0", errno.ENOTSOCK, "Socket operation on non-socket"),
    ],
)
@needs_listening  # the texts are Linux's
def test_what_cannot_be_opened(
    bind: str, number: int, reason: str, folder: Path
) -> None:
    with pytest.raises(OSError, match="cannot listen on") as failure:
        open_listeners([bind], backlog=8)
    assert failure.value.errno == number
    here = os.getcwd()
    reason = reason.format(bytes=len(os.path.join(here, bind[5:])), folder=here)
    assert failure.value.strerror == f"cannot listen on {parse(bind)}: {reason}"


def test_a_name_that_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = "cannot listen on tcp://nobody:80: Name or service not known"
    with pytest.raises(OSError, match=error) as failure:
        open_listeners(["nobody:80"], backlog=8)
    assert failure.value.errno == errno.EADDRNOTAVAIL


def test_a_port_that_is_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(module, "_tcp_socket", refused)
    hint = re.escape("Permission denied (ports below 1024 are root's)")
    with pytest.raises(PermissionError, match=f"tcp://127.0.0.1:80: {hint}$"):
        open_listeners(["127.0.0.1:80"], backlog=8)
    with pytest.raises(PermissionError, match=r"Permission denied$"):
        open_listeners(["127.0.0.1:8000"], backlog=8)


# Several addresses.


def test_a_port_in_use_is_not_shared() -> None:
    with closing(open_listeners(["127.0.0.1:0"], backlog=8)) as opened:
        with pytest.raises(OSError, match="Address already in use") as failure:
            open_listeners([opened.addresses[0]], backlog=8)
        assert failure.value.errno == errno.EADDRINUSE


def test_an_address_that_cannot_be_opened_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, count = module._tcp_socket, iter(range(100))

    def scarce(*args: object) -> socket.socket:
        if next(count) == 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_tcp_socket", scarce)
    with pytest.raises(OSError, match="Too many open files"):
        open_listeners(["127.0.0.1:0"] * 4, backlog=8)
    # The guard looks for descriptors that were left.


# Files.


def test_the_file_of_a_dead_server_is_replaced(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind("x.sock")
        dead.listen()
    assert os.listdir(folder) == ["x.sock"]
    with closing(open_listeners(["unix:x.sock"], backlog=8)) as opened:
        connect(opened.addresses[0])
    assert os.listdir(folder) == []


def test_a_server_that_lives_is_left_alone(folder: Path) -> None:
    with closing(open_listeners(["unix:x.sock"], backlog=8)) as living:
        with pytest.raises(OSError, match="cannot listen on") as failure:
            open_listeners(["unix:x.sock"], backlog=8)
        assert failure.value.errno == errno.EADDRINUSE
        assert failure.value.strerror == (
            "cannot listen on unix://x.sock: another process listens there"
        )
        connect(living.addresses[0])


def test_a_server_that_is_too_busy_to_accept_lives(folder: Path) -> None:
    with (
        closing(open_listeners(["unix:x.sock"], backlog=0)),
        socket.socket(socket.AF_UNIX) as first,
    ):
        first.connect("x.sock")
        with pytest.raises(OSError, match="another process listens there"):
            open_listeners(["unix:x.sock"], backlog=8)


def test_a_server_of_datagrams_is_left_alone(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind("x.sock")
        with pytest.raises(OSError, match="another process listens there"):
            open_listeners(["unix:x.sock"], backlog=8)


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_left_alone(kind: str, folder: Path) -> None:
    path = folder / "x.sock"
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("elsewhere")
    with pytest.raises(OSError, match="cannot listen on") as failure:
        open_listeners(["unix:x.sock"], backlog=8)
    assert failure.value.strerror == (
        "cannot listen on unix://x.sock: there is a file of that name, which is no socket"
    )
    assert os.listdir(folder) == ["x.sock"]


def test_a_file_that_is_anothers_now_stays(folder: Path) -> None:
    opened = open_listeners(["unix:x.sock"], backlog=8)
    os.unlink("x.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("x.sock")
        opened.close()
        assert os.listdir(folder) == ["x.sock"]


def test_a_file_that_is_gone_is_nothing(folder: Path) -> None:
    with closing(open_listeners(["unix:x.sock"], backlog=8)):
        os.unlink("x.sock")  # and the end must not raise
    assert os.listdir(folder) == []


@pytest.mark.parametrize(("mode", "bits"), [("?mode=660", 0o660), ("", 0o600)])
def test_permissions_of_a_file(mode: str, bits: int, folder: Path) -> None:
    before = os.umask(0o022)
    try:
        opened = open_listeners([f"unix:x.sock{mode}"], backlog=8)
    finally:
        os.umask(before)
    with closing(opened):
        assert stat.S_IMODE(os.stat("x.sock").st_mode) == bits


def test_a_file_that_gets_no_permissions_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refused)
    before = os.umask(0o022)  # so that the file has not got them at once
    try:
        with pytest.raises(PermissionError):
            open_listeners(["unix:x.sock?mode=660"], backlog=8)
    finally:
        os.umask(before)
    assert os.listdir(folder) == []


@pytest.mark.asyncio
async def test_two_servers_that_start_at_once(folder: Path) -> None:
    """One of them waits until the other one listens, and sees it then."""

    async def second() -> None:
        async with addresses_locked(["unix:x.sock"]):
            open_listeners(["unix:x.sock"], backlog=8).close()

    with socket.socket(socket.AF_UNIX) as first:
        with locked(folder):
            task = asyncio.create_task(second())
            await assert_waits(folder, task)
            first.bind("x.sock")
            first.listen()
        async with patience():
            with pytest.raises(OSError, match="cannot listen on") as caught:
                await task
    assert caught.value.strerror == (
        "cannot listen on unix://x.sock: another process listens there"
    )


@pytest.mark.asyncio
async def test_an_address_that_makes_no_sense_has_no_folder() -> None:
    with pytest.raises(ValueError, match="nothing to listen on"):
        async with addresses_locked([]):
            pass


# Descriptors that are inherited.


@pytest.fixture
def given() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.set_inheritable(True)
        yield sock


def test_a_descriptor_is_listened_on(given: socket.socket) -> None:
    with closing(open_listeners([f"fd://{given.fileno()}"], backlog=8)) as opened:
        assert opened.addresses == (f"tcp://127.0.0.1:{given.getsockname()[1]}",)
        (sock,) = opened.sockets()
        connect(opened.addresses[0])
        accept(sock)
        assert not sock.get_inheritable()
        assert not given.get_inheritable(), "what is started here would have it"
    connect(opened.addresses[0])  # whose it is keeps it open


@needs_listening
def test_a_descriptor_that_listens_keeps_its_backlog(given: socket.socket) -> None:
    given.listen(0)
    with closing(open_listeners([f"fd://{given.fileno()}"], backlog=100)):
        queue = given.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    # tcpi_sacked is the backlog of a socket that listens.
    assert int.from_bytes(queue[28:32], "little") == 0


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_descriptor_of_another_kind(kind: socket.SocketKind) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    reason = "it is no stream socket|Invalid argument"
    with ours, theirs:
        ours.set_inheritable(True)
        with pytest.raises(OSError, match=reason) as failure:
            open_listeners([f"fd://{ours.fileno()}"], backlog=8)
        assert ours.get_inheritable(), "it is still its owner's"
        cannot = f"cannot listen on fd://{ours.fileno()}: "
        assert str(failure.value.strerror).startswith(cannot)


def test_descriptors_of_systemd(
    given: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: tuple[int, ...] = (given.fileno(),)
    monkeypatch.setattr(module, "passed", lambda *_, **__: numbers)
    with closing(open_listeners(["systemd:"], backlog=8)) as opened:
        assert opened.addresses == (f"tcp://127.0.0.1:{given.getsockname()[1]}",)
    numbers = (given.fileno(), 999)
    with pytest.raises(OSError, match="cannot listen on systemd:: Bad file descriptor"):
        open_listeners(["systemd:"], backlog=8)


def test_systemd_has_passed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    with pytest.raises(ValueError, match="the sockets were passed to process"):
        open_listeners(["systemd:"], backlog=8)
