"""Tests of asyncpool/_runtime/control/socket_files.py and control_places.py for other systems."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncpool._runtime.control import folder_locks, socket_files
from asyncpool._runtime.control.folder_locks import folders_locked
from asyncpool._runtime.control.paths import peer_pid, peer_uid
from asyncpool._runtime.control.socket_files import listen_at
from tests.helpers.gate import short_folder
from tests.helpers.locked_folder import assert_waits, locked
from tests.helpers.patience import PATIENCE, patience


async def serve(_: object) -> None:
    """Never run."""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What connecting says, one time after the other, where no refusal is the last word."""
    told = [errno.ECONNREFUSED, errno.ECONNREFUSED, 0]
    monkeypatch.setattr(socket_files, "_REFUSALS", 3)
    monkeypatch.setattr(socket_files, "_connect", lambda _: told.pop(0))
    return told


def test_a_server_whose_backlog_is_full_keeps_its_file(answers: list[int]) -> None:
    with short_folder() as folder:
        path = os.path.join(folder, "s")
        with (
            socket.socket(socket.AF_UNIX) as busy,
            socket.socket(socket.AF_UNIX) as new,
        ):
            busy.bind(path)
            with pytest.raises(OSError, match="another process listens there"):
                listen_at(new, path, mode=None, backlog=1)
        assert os.path.exists(path)
    assert not answers


def test_a_server_that_refuses_again_and_again_is_dead(answers: list[int]) -> None:
    answers[2] = errno.ECONNREFUSED
    with short_folder() as folder:
        path = os.path.join(folder, "s")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
        with socket.socket(socket.AF_UNIX) as new:
            listen_at(new, path, mode=None, backlog=1).remove()
        assert not os.path.exists(path)
    assert not answers


MOST = 107 if sys.platform == "linux" else 103


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError) as caught:  # noqa: PT011
        listen_at(sock, f"{tmp_path}/no/s", mode=None, backlog=1)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.strerror == f"there is no folder {tmp_path}/no: make it first"


def test_a_path_that_no_socket_may_have_is_told_by_its_length(tmp_path: Path) -> None:
    path = str(tmp_path / ("x" * 120))
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError) as caught:  # noqa: PT011
        listen_at(sock, path, mode=None, backlog=1)
    assert caught.value.errno == errno.ENAMETOOLONG
    assert caught.value.strerror == (
        f"the path has {len(path)} bytes, and a socket's may have {MOST}"
    )


def sockets_in(*folders: Path) -> list[str]:
    return [str(folder / "s") for folder in folders]


@pytest.mark.asyncio
async def test_a_lock_is_waited_for_beside_the_loop() -> None:
    async def lock(path: str) -> bool:
        async with folders_locked([path]):
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True

    with short_folder() as folder:
        other = os.open(folder, os.O_RDONLY)
        with locked(folder):
            locking = asyncio.create_task(lock(str(folder / "s")))
            await assert_waits(folder, locking)
        async with patience():
            assert await locking
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody has it any more
        os.close(other)


@pytest.mark.asyncio
async def test_a_folder_that_stays_locked_stops_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[bool] = []
    is_locked = folder_locks._is_locked

    def tried(fd: int) -> bool:
        tries.append(is_locked(fd))
        return tries[-1]

    monkeypatch.setattr(folder_locks, "_LOCK_PATIENCE", 0.1)
    monkeypatch.setattr(folder_locks, "_is_locked", tried)
    with short_folder() as folder, locked(folder):
        async with patience(), folders_locked(sockets_in(folder)):
            assert len(tries) > 1
            assert not any(tries)
            with socket.socket(socket.AF_UNIX) as sock:
                listen_at(sock, str(folder / "s"), mode=None, backlog=1)


@pytest.mark.asyncio
async def test_each_folder_is_locked_once_and_in_one_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for itself, nor do two wait for each other."""
    monkeypatch.setattr(folder_locks, "_LOCK_PATIENCE", 2 * PATIENCE)
    with short_folder() as one, short_folder() as other:
        (other / "again").symlink_to(one)
        orders = (
            sockets_in(one, other, one, other / "again"),
            sockets_in(other, one),
        )
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


@pytest.mark.asyncio
@pytest.mark.parametrize("folder", ["/no/such", "/dev/null"])
async def test_a_folder_that_there_is_not_is_told_by_who_listens(folder: str) -> None:
    async with folders_locked([f"{folder}/s"]):
        with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError) as caught:  # noqa: PT011
            listen_at(sock, f"{folder}/s", mode=None, backlog=1)
    assert caught.value.errno in {errno.ENOENT, errno.ENOTDIR}
    assert str(caught.value.filename).startswith(folder)


class Swapped(socket.socket):
    """A socket whose file another process replaces by a link as soon as there is one."""

    target = ""

    def bind(self, address: Any, /) -> None:
        super().bind(address)
        os.unlink(address)
        os.symlink(self.target, address)


class Seen(socket.socket):
    """A socket that keeps the mode that its file has in the moment in which it is there."""

    mode = -1

    def bind(self, address: Any, /) -> None:
        super().bind(address)
        self.mode = stat.S_IMODE(os.stat(address).st_mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_a_link_in_place_of_a_new_socket_is_not_followed() -> None:
    """Its target keeps its mode, and the link stays, which is another's."""
    with short_folder() as folder, Swapped(socket.AF_UNIX) as sock:
        private = folder / "private"
        private.touch(0o600)
        sock.target = str(private)
        with pytest.raises(OSError, match="has replaced") as caught:
            listen_at(sock, str(folder / "s"), mode=0o666, backlog=1)
        assert caught.value.errno == errno.EADDRINUSE
        assert caught.value.strerror == (
            "another process has replaced the socket that was just made"
        )
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
        assert (folder / "s").is_symlink()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_link_that_comes_later_is_not_followed(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before or after the file is opened that needs another mode."""
    late = moment == "after"
    with short_folder() as folder, socket.socket(socket.AF_UNIX) as sock:
        private, path = folder / "private", folder / "s"
        private.touch(0o600)

        def swapped(name: str, *args: Any, **kwargs: Any) -> int:
            fd = opened(name, *args, **kwargs) if late or name != str(path) else -1
            if name == str(path):
                path.unlink()
                path.symlink_to(private)
            return opened(name, *args, **kwargs) if fd < 0 else fd

        opened = os.open
        refused = (
            nullcontext() if late else pytest.raises(OSError, match="has replaced")
        )
        with umask(0o022), monkeypatch.context() as patched, refused:
            patched.setattr(os, "open", swapped)
            listen_at(sock, str(path), mode=0o666, backlog=1)
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
        assert path.is_symlink()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is changed later")
def test_a_socket_file_is_never_open_to_others() -> None:
    with short_folder() as folder, umask(0), Seen(socket.AF_UNIX) as sock:
        listen_at(sock, str(folder / "s"), mode=0o600, backlog=1)
        assert sock.mode == 0o600


@pytest.mark.parametrize("system", ["linux", "darwin"])
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o606, 0o777])
def test_a_umask_takes_nothing_from_a_mode(
    mode: int, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_files, "sys", SimpleNamespace(platform=system))
    with short_folder() as folder, socket.socket(socket.AF_UNIX) as sock:
        with umask(0o077):
            listen_at(sock, str(folder / "s"), mode=mode, backlog=1)
        assert stat.S_IMODE((folder / "s").stat().st_mode) == mode


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
