"""Tests of asyncpool/_runtime/control/socket_files.py and control_places.py for other systems."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncpool import UnsupportedPlatformError
from asyncpool._runtime.control import socket_files
from asyncpool._runtime.control.paths import peer_pid, peer_uid
from asyncpool._runtime.control.socket_files import listen_at
from asyncpool.cluster import Cluster, _options
from tests.helpers.gate import short_folder


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


def test_a_path_that_no_socket_may_have_is_told_by_its_length(tmp_path: Path) -> None:
    path = str(tmp_path / ("x" * 120))
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError) as caught:  # noqa: PT011
        listen_at(sock, path, mode=None, backlog=1)
    assert caught.value.errno == errno.ENAMETOOLONG
    assert caught.value.strerror == (
        f"the path has {len(path)} bytes, and a socket's may have 107, or 103 on macOS"
    )


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


def test_no_sockets_are_to_share_a_port_on_macos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_options, "sys", SimpleNamespace(platform="darwin"))
    with pytest.raises(UnsupportedPlatformError) as caught:
        Cluster(serve, bind="127.0.0.1:0", spread="reuseport")
    assert str(caught.value) == (
        "spread='reuseport': macOS gives all connections to one of the sockets; use "
        "'handoff' or 'shared'"
    )
