"""A worker that accepts for itself, also where it may open no more."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from asyncpool._worker.cluster.acceptor import _PAUSE, _QUIET, Acceptor
from tests.helpers import virtual_time

TOLD = "no connection can be accepted now: Too many open files"


class Room:
    """How many more connections this process may open.

    Attributes:
        left: That many.
        tries: When somebody has tried to accept one, in virtual time.
    """

    def __init__(self) -> None:
        self.left = 0
        self.tries: list[float] = []

    def accept(self) -> None:
        """Take the room for one.

        Raises:
            OSError: If there is none.
        """
        self.tries.append(round(asyncio.get_running_loop().time(), 3))
        if not self.left and len(self.tries) < 1000:  # or it would never end
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.left -= 1


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    """Have no room, until there is some."""
    found, accept = Room(), socket.socket.accept

    def accept_if(sock: socket.socket) -> tuple[socket.socket, object]:
        found.accept()
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", accept_if)
    return found


class Door:
    """A socket that listens, guests that have come, and those that were let in.

    Attributes:
        acceptor: What lets them in.
        inside: How many it has.
    """

    def __init__(self, stack: ExitStack, guests: int) -> None:
        self._stack = stack
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        for _ in range(guests):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        self.inside = 0
        self.acceptor = Acceptor([listener], self._let_in)
        stack.callback(self.acceptor.close)

    def _let_in(self, descriptor: int) -> None:
        self.inside += 1
        self._stack.callback(os.close, descriptor)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def pass_time(seconds: float) -> None:
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


def test_without_descriptors_it_pauses_and_goes_on(
    room: Room, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        door = Door(stack, 3)
        door.acceptor.listen()
        await pass_time(2.5 * _PAUSE)
        assert room.tries == [0.0, 0.1, 0.2], "and not again and again"
        assert door.inside == 0
        room.left = 2
        await pass_time(_PAUSE)
        assert door.inside == 2
        room.left = 1
        await pass_time(_PAUSE)
        assert door.inside == 3
        assert caplog.messages == [TOLD]
        stack.close()

    virtual_time.run(main())


def test_nobody_makes_it_try_before_the_time(room: Room, stack: ExitStack) -> None:
    async def main() -> None:
        door = Door(stack, 1)
        door.acceptor.listen()
        await pass_time(_PAUSE / 4)
        for _ in range(3):
            # As when a connection is taken that has come before.
            door.acceptor.pause()
            door.acceptor.listen()
            await pass_time(_PAUSE / 4)
        await pass_time(_PAUSE / 4)
        assert room.tries == [0.0, 0.1]
        stack.close()

    virtual_time.run(main())


def test_it_does_not_go_on_if_nobody_wants_that_by_then(
    room: Room, stack: ExitStack
) -> None:
    async def main() -> None:
        door = Door(stack, 1)
        door.acceptor.listen()
        await pass_time(_PAUSE / 2)
        door.acceptor.pause()
        room.left = 1
        await pass_time(2 * _PAUSE)
        assert (room.tries, door.inside) == ([0.0], 0)
        door.acceptor.listen()
        await pass_time(_PAUSE)
        assert door.inside == 1
        stack.close()

    virtual_time.run(main())


def test_it_is_told_now_and_then(
    room: Room, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        door = Door(stack, 60)
        door.acceptor.listen()
        for _ in range(50):  # one goes and one comes, all the time
            await pass_time(0.9 * _QUIET / 50)
            room.left = 1
        assert door.inside > 40
        assert caplog.messages == [TOLD]
        await pass_time(0.2 * _QUIET)
        assert caplog.messages == [TOLD] * 2
        stack.close()

    virtual_time.run(main())


def test_it_may_end_in_a_pause(room: Room, stack: ExitStack) -> None:
    async def main() -> None:
        door = Door(stack, 1)
        door.acceptor.listen()
        await pass_time(_PAUSE / 2)
        room.left = 1
        stack.close()
        await pass_time(2 * _PAUSE)
        assert (room.tries, door.inside) == ([0.0], 0)

    virtual_time.run(main())


def test_what_else_goes_wrong_is_no_want_of_descriptors(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: socket.socket) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    async def main() -> None:
        door = Door(stack, 1)
        monkeypatch.setattr(socket.socket, "accept", fail)
        with pytest.raises(OSError, match="Invalid argument"):
            door.acceptor._accept(door.acceptor._sockets[0])
        stack.close()

    virtual_time.run(main())
