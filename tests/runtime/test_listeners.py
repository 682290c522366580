"""What is listened on: addresses, descriptors, and files of sockets that others may have taken."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import select
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncpool._cluster import listeners as module
from asyncpool._cluster.addresses import parse
from asyncpool._cluster.listeners import Listeners, addresses_locked
from asyncpool._observe.control import socket_files
from asyncpool._observe.control.socket_files import (
    folders_locked,
    listen_at,
    peer_pid,
    peer_uid,
)
from tests.helpers.gate import short_folder
from tests.helpers.locked_folder import assert_waits, locked
from tests.helpers.patience import PATIENCE, patience

PATH = "unix:x.sock"


def has_v6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_v6 = pytest.mark.skipif(not has_v6(), reason="needs IPv6")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Paths of sockets must be short, and those of tests are not.
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.chdir(name)
        yield Path(name)
        monkeypatch.undo()


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


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


@needs_v6
def test_all_interfaces_have_the_same_port(folder: Path) -> None:
    with closing(Listeners([":0", PATH], backlog=8)) as opened:
        first, second, third = (it.rpartition(":") for it in opened.addresses)
        assert {first[0], second[0]} == {"tcp://0.0.0.0", "tcp://[::]"}
        assert first[2] == second[2]
        assert third[0] == "unix"
        assert len(opened.sockets) == 3


def test_what_this_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(*args: object, **options: object) -> Sequence[object]:
        tcp = (socket.SOCK_STREAM, 6, "")
        return [
            (socket.AF_INET, *tcp, ("192.0.2.1", 0)),  # reserved for documentation
            (socket.AF_INET, *tcp, ("127.0.0.1", 0)),
        ][: 1 if args[0] == "none" else 2]

    monkeypatch.setattr(socket, "getaddrinfo", names)
    with closing(Listeners(["some:0"], backlog=8)) as opened:
        assert [name[:15] for name in opened.addresses] == ["tcp://127.0.0.1"]
    with pytest.raises(OSError, match="cannot listen on tcp://none:0: Cannot assign"):
        Listeners(["none:0"], backlog=8)


def test_all_or_nothing(folder: Path) -> None:
    # The guard looks for descriptors that were left.
    with closing(Listeners(["127.0.0.1:0"], backlog=8)) as taken:
        (address,) = taken.addresses
        with pytest.raises(OSError, match="cannot listen on") as failure:
            Listeners([PATH, "127.0.0.1:0", address], backlog=8)
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
@needs_linux  # the texts are its own
def test_what_cannot_be_opened(
    bind: str, number: int, reason: str, folder: Path
) -> None:
    with pytest.raises(OSError, match="cannot listen on") as failure:
        Listeners([bind], backlog=8)
    assert failure.value.errno == number
    here = os.getcwd()
    reason = reason.format(bytes=len(os.path.join(here, bind[5:])), folder=here)
    assert failure.value.strerror == f"cannot listen on {parse(bind)}: {reason}"


def test_names_that_are_unknown_and_ports_that_are_roots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", unknown)
        error = "cannot listen on tcp://nobody:80: Name or service not known"
        with pytest.raises(OSError, match=error):
            Listeners(["nobody:80"], backlog=8)
    monkeypatch.setattr(socket.socket, "bind", refused)
    hint = re.escape("Permission denied (ports below 1024 are root's)")
    with pytest.raises(PermissionError, match=f"tcp://127.0.0.1:80: {hint}$"):
        Listeners(["127.0.0.1:80"], backlog=8)
    with pytest.raises(PermissionError, match=r"Permission denied$"):
        Listeners(["127.0.0.1:8000"], backlog=8)


# Descriptors that are inherited.


@pytest.fixture
def given() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.set_inheritable(True)
        yield sock


@needs_linux
def test_a_descriptor_is_listened_on(given: socket.socket) -> None:
    given.listen(0)
    with closing(Listeners([f"fd://{given.fileno()}"], backlog=100)) as opened:
        assert opened.addresses == (f"tcp://127.0.0.1:{given.getsockname()[1]}",)
        (sock,) = opened.sockets
        connect(opened.addresses[0])
        accept(sock)
        assert not sock.get_inheritable()
        assert not given.get_inheritable(), "what is started here would have it"
    connect(opened.addresses[0])  # whose it is keeps it open, and its backlog
    queue = given.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    assert int.from_bytes(queue[28:32], "little") == 0  # tcpi_sacked is the backlog


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_descriptor_of_another_kind(kind: socket.SocketKind) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    reason = "it is no stream socket|Invalid argument"
    with ours, theirs:
        ours.set_inheritable(True)
        with pytest.raises(OSError, match=reason):
            Listeners([f"fd://{ours.fileno()}"], backlog=8)
        assert ours.get_inheritable(), "it is still its owner's"


def test_descriptors_of_systemd(
    given: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    with pytest.raises(ValueError, match="the sockets were passed to process"):
        Listeners(["systemd:"], backlog=8)
    numbers: tuple[int, ...] = (given.fileno(), 999)
    monkeypatch.setattr(module, "passed", lambda *_, **__: numbers)
    with pytest.raises(OSError, match="cannot listen on systemd:: Bad file descriptor"):
        Listeners(["systemd:"], backlog=8)
    numbers = numbers[:1]
    with closing(Listeners(["systemd:"], backlog=8)) as opened:
        assert opened.addresses == (f"tcp://127.0.0.1:{given.getsockname()[1]}",)


# Files.


def test_a_server_that_lives_or_is_busy_is_left_alone(folder: Path) -> None:
    with closing(Listeners([PATH], backlog=0)):
        for _ in range(2):  # the first connection is all that its backlog takes
            with pytest.raises(OSError, match="another process listens there"):
                Listeners([PATH], backlog=8)
            with socket.socket(socket.AF_UNIX) as first:
                first.setblocking(False)
                first.connect_ex("x.sock")
    assert os.listdir(folder) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link", "datagrams"])
def test_what_is_no_stream_socket_is_left_alone(kind: str, folder: Path) -> None:
    path, error = folder / "x.sock", "there is a file of that name, which is no socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        if kind == "file":
            path.write_text("precious")
        elif kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to("elsewhere")
        else:
            other.bind("x.sock")
            error = "another process listens there"
        with pytest.raises(OSError, match=error):
            Listeners([PATH], backlog=8)
    assert os.listdir(folder) == ["x.sock"]


def test_a_file_that_is_anothers_now_or_gone_is_left_alone(folder: Path) -> None:
    opened = Listeners([PATH], backlog=8)
    os.unlink("x.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("x.sock")
        opened.close()
        assert os.listdir(folder) == ["x.sock"]
    # The file of a dead server is replaced.
    with closing(Listeners([PATH], backlog=8)):
        os.unlink("x.sock")  # and the end must not raise
    assert os.listdir(folder) == []


def test_a_file_that_gets_no_permissions_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refused)
    with umask(0o022), pytest.raises(PermissionError):
        Listeners([f"{PATH}?mode=660"], backlog=8)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("dead", [False, True])
def test_a_server_that_refuses_again_and_again_is_dead(
    dead: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where one whose backlog is full refuses too: no refusal but the last is the last word."""
    refusal = errno.ECONNREFUSED
    answers = [refusal, refusal, refusal if dead else 0]
    monkeypatch.setattr(socket_files, "_REFUSALS", 3)
    monkeypatch.setattr(socket_files, "try_connect", lambda _: answers.pop(0))
    lives = pytest.raises(OSError, match="another process listens there")
    with (
        short_folder() as folder,
        socket.socket(socket.AF_UNIX) as other,
        socket.socket(socket.AF_UNIX) as new,
    ):
        other.bind(path := str(folder / "s"))
        with nullcontext() if dead else lives:
            listen_at(new, path, mode=None, backlog=1).remove()
        assert os.path.exists(path) is not dead
    assert not answers


@pytest.mark.parametrize("system", ["linux", "darwin"])
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o777])
def test_a_umask_takes_nothing_from_a_mode_and_adds_nothing(
    mode: int, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = list[int]()

    class Seen(socket.socket):
        def bind(self, address: Any, /) -> None:
            super().bind(address)
            modes.append(stat.S_IMODE(os.stat(address).st_mode))

    monkeypatch.setattr(socket_files, "sys", SimpleNamespace(platform=system))
    for mask in (0o077, 0):
        with short_folder() as folder, Seen(socket.AF_UNIX) as sock, umask(mask):
            listen_at(sock, str(folder / "s"), mode=mode, backlog=1)
            assert stat.S_IMODE((folder / "s").stat().st_mode) == mode
    # Elsewhere it is changed when it is there already.
    assert system != "linux" or not any(seen & ~mode for seen in modes)


@pytest.mark.parametrize("moment", ["made", "before", "after"])
def test_a_link_in_place_of_a_new_socket_is_not_followed(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes at once, or just before or after the file is opened that needs another mode."""

    class Swapped(socket.socket):
        def bind(self, address: Any, /) -> None:
            super().bind(address)
            if moment == "made":
                swap()

    def swap() -> None:
        path.unlink()
        path.symlink_to(private)

    def open_swapped(name: str, *args: Any, **kwargs: Any) -> int:
        if name != str(path) or moment == "made":
            return opened(name, *args, **kwargs)
        if moment == "before":
            swap()
            return opened(name, *args, **kwargs)
        fd = opened(name, *args, **kwargs)
        swap()
        return fd

    opened = os.open
    error = "another process has replaced the socket that was just made"
    late = moment == "after"
    refused = nullcontext() if late else pytest.raises(OSError, match=error)
    with short_folder() as folder, Swapped(socket.AF_UNIX) as sock:
        private, path = folder / "private", folder / "s"
        private.touch(0o600)
        with umask(0o022), monkeypatch.context() as patched, refused:
            patched.setattr(os, "open", open_swapped)
            listen_at(sock, str(path), mode=0o666, backlog=1)
        # Its target keeps its mode, and the link stays, which is another's.
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
        assert path.is_symlink()


def test_a_system_that_does_not_say_who_connects_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid(one) == os.geteuid()
        monkeypatch.delattr(socket, "SO_PEERCRED")
        with pytest.raises(OSError, match="does not say who the other process is"):
            peer_uid(one)
        assert peer_pid(one) is None


# Locks.


@pytest.mark.asyncio
async def test_two_servers_that_start_at_once(folder: Path) -> None:
    """One of them waits beside the loop until the other one listens, and sees it then."""

    async def second() -> None:
        async with addresses_locked([PATH]):
            with pytest.raises(BlockingIOError):
                fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Listeners([PATH], backlog=8).close()

    probe = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as first:
        with locked(folder):
            task = asyncio.create_task(second())
            await assert_waits(folder, task)
            first.bind("x.sock")
            first.listen()
        async with patience():
            with pytest.raises(OSError, match="another process listens there"):
                await task
    fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody has it any more
    os.close(probe)


@pytest.mark.asyncio
async def test_a_folder_that_stays_locked_or_is_none_stops_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[bool] = []
    is_locked = socket_files._is_locked

    def tried(fd: int) -> bool:
        tries.append(is_locked(fd))
        return tries[-1]

    for missing in ("/no/such/s", "/dev/null/s"):  # that is told by who listens
        async with folders_locked([missing]):
            with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError):  # noqa: PT011
                listen_at(sock, missing, mode=None, backlog=1)
    monkeypatch.setattr(socket_files, "_LOCK_PATIENCE", 0.1)
    monkeypatch.setattr(socket_files, "_is_locked", tried)
    with short_folder() as folder, locked(folder):
        async with patience(), folders_locked([str(folder / "s")]):
            assert len(tries) > 1
            assert not any(tries)
            with socket.socket(socket.AF_UNIX) as sock:
                listen_at(sock, str(folder / "s"), mode=None, backlog=1)


@pytest.mark.asyncio
async def test_each_folder_is_locked_once_and_in_one_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for itself, nor do two wait for each other."""
    monkeypatch.setattr(socket_files, "_LOCK_PATIENCE", 2 * PATIENCE)
    with short_folder() as one, short_folder() as other:
        (other / "again").symlink_to(one)
        folders = (one, other, one, other / "again"), (other, one)
        orders = [[str(folder / "s") for folder in each] for each in folders]
        busy = asyncio.Event()

        async def lock(names: list[str]) -> None:
            async with folders_locked(names):
                assert not busy.is_set()
                busy.set()
                await asyncio.sleep(0)
                busy.clear()

        for held in (one, other):
            with locked(held):
                locking = [asyncio.create_task(lock(names)) for names in orders]
                await assert_waits(one, *locking)
            async with patience():
                await asyncio.gather(*locking)
