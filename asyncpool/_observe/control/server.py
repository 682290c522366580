"""A control socket: this user's commands, one line each."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias

from asyncpool._core import log_messages as say
from asyncpool._engine.life_log import LOGGER
from asyncpool._engine.loop import Alarm
from asyncpool._observe.control.listener import UserSocket
from asyncpool._observe.control.protocol import (
    MAX_REQUEST,
    QUESTIONS,
    Request,
    pack_reply,
)
from asyncpool._observe.control.socket_files import closed_on_error
from asyncpool.errors import ProtocolError

Answer: TypeAlias = Callable[[Request], Awaitable[dict[str, Any]]]

# What it returns yields how it goes, and is closed when the client is gone.
Watch: TypeAlias = Callable[[Request], Generator[dict[str, Any]]]

_BACKLOG = 16
_MOST_CLIENTS = 32

# Seconds in which a request has to come as a whole: others may not get in meanwhile.
_LINE_TIMEOUT = 10.0

# So that commands still get in.
_MOST_WATCHERS = 16

# Seconds between two looks whether a client is still there that waits for an answer.
_LOOK_EVERY = 0.5


class ControlSocket:
    """Answers the requests of this user's processes.

    Args:
        path: The path of the socket's file, which is for this user only.  Its folder is locked;
            see ``socket_files.py``.
        answer: Returns the answer to a request.  If it raises, the client gets an error.
        watch: Yields what a client is told that wants to watch.

    Raises:
        OSError: If somebody listens there already, or the file cannot be made.
    """

    def __init__(
        self, path: str, answer: Answer, *, watch: Watch | None = None
    ) -> None:
        self._answer = answer
        self._watch = watch
        self._watchers = 0
        self._clients: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._socket = UserSocket(
            path, _BACKLOG, say.CONTROL_NOT_ACCEPTED, self._on_client, _on_other
        )

    @property
    def path(self) -> str:
        """The path of the socket's file."""
        return self._socket.path

    def open(self) -> None:
        """Begin to answer; clients may have connected before, and wait."""
        self._socket.listen()

    async def close(self) -> None:
        """Remove the file, and close all connections, for whose end clients may wait.

        Cancellation:
            Leaves connections open.
        """
        self.shut()
        # A client that has just come gets as far as owning its connection.
        await asyncio.sleep(0)
        for task in self._clients:
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients)

    def shut(self) -> None:
        """Remove the file, and accept nobody any more."""
        self._socket.close()

    def _on_client(self, sock: socket.socket) -> None:
        if len(self._clients) >= _MOST_CLIENTS:
            with contextlib.suppress(OSError):
                sock.send(pack_reply(_refusal("connected", _MOST_CLIENTS)))
            sock.close()
            return
        task = self._loop.create_task(
            self._serve(sock), name="asyncpool control connection"
        )
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, sock: socket.socket) -> None:
        with closed_on_error(sock):
            reader, writer = await asyncio.open_unix_connection(
                sock=sock, limit=MAX_REQUEST
            )
        try:
            with contextlib.suppress(OSError):  # the client is gone
                await self._talk(sock, reader, writer)
                # It counts as a client until it has got the last answer.
                writer.close()
                await writer.wait_closed()
        except asyncio.CancelledError:
            # Not close(), which would wait for a client that does not read.
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _talk(
        self,
        sock: socket.socket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        while (line := await _next_line(reader)) is not None:
            try:
                request = Request.unpack(line)
            except ProtocolError as error:
                # Nobody knows where the next line begins.
                return write_reply(writer, {"error": str(error)})
            if request.action == "watch":
                return await self._show(request, reader, writer)
            is_question = request.action in QUESTIONS
            try:
                with self._ended_if_gone(sock, looks=is_question):
                    reply = await self._answer(request)
            except Exception as error:  # noqa: BLE001 - the client is told
                reply = _failure(request, error)
            write_reply(writer, reply)
            await writer.drain()
        return None

    @contextlib.contextmanager
    def _ended_if_gone(self, sock: socket.socket, *, looks: bool) -> Generator[None]:
        """End the connection when the client has closed it, as its task waits in this context."""
        task = asyncio.current_task()
        assert task is not None

        def look(_: float) -> None:
            if _is_closed(sock):
                task.cancel()
            else:
                alarm.set_in(_LOOK_EVERY)

        alarm = Alarm(self._loop, look)
        if looks:
            alarm.set_in(_LOOK_EVERY)
        try:
            yield
        finally:
            alarm.cancel()

    async def _show(
        self,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Let a client watch, as long as it wants to."""
        if self._watch is None:
            return write_reply(writer, {"error": "there is nothing to watch here"})
        if self._watchers >= _MOST_WATCHERS:
            return write_reply(writer, _refusal("watching", _MOST_WATCHERS))
        watcher = self._watch(request)
        self._watchers += 1
        try:
            await send_lines(watcher, request.every, reader, writer)
        except OSError:  # the client is gone
            raise
        except Exception as error:  # noqa: BLE001 - the client is told
            write_reply(writer, _failure(request, error))
        finally:
            self._watchers -= 1
            watcher.close()


def _on_other(who: int | OSError) -> None:
    if isinstance(who, OSError):
        say.CONTROL_UNKNOWN_USER.log(LOGGER, {}, why=who)
    else:
        say.CONTROL_REFUSED.log(LOGGER, {"uid": who})


async def _next_line(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next line; nothing if the client ends before, or takes too long for it."""
    try:
        # Who has asked may wait before the next request, but not in the middle of one.
        line = await reader.readexactly(1)
        async with asyncio.timeout(_LINE_TIMEOUT):
            return line + await reader.readline()
    except (asyncio.IncompleteReadError, TimeoutError):
        return None
    except ValueError:  # the line is longer than the limit
        return b"?"


def write_reply(writer: asyncio.StreamWriter, reply: dict[str, Any]) -> None:
    """Write a reply, which goes out soon.

    Raises:
        ConnectionResetError: If the client is gone.
    """
    # A transport of asyncio drops what is written to it then, and one of uvloop raises a
    # RuntimeError, which could as well be a bug.
    if writer.is_closing():
        raise ConnectionResetError("the client is gone")
    writer.write(pack_reply(reply))


def _is_closed(sock: socket.socket) -> bool:
    """Tell whether the other side is gone.

    Not by the end of what it sends: it may have shut only that down, as ``nc -N`` does, and may
    have sent its next request already.
    """
    polled = select.poll()
    polled.register(sock, 0)  # a hang-up is told anyway
    return any(events & select.POLLHUP for _, events in polled.poll(0))


def _failure(request: Request, error: Exception) -> dict[str, Any]:
    extra = {"action": request.action}
    say.COMMAND_FAILED.log(LOGGER, extra, error=error, request=request)
    return {"error": str(error) or type(error).__name__}


def _refusal(what: str, most: int) -> dict[str, str]:
    return {"error": f"{most} clients are {what} already, and there may be no more"}


# Send a client that watches one line after the other, as long as it reads them.
#
# A line that the client has not taken yet stays in the connection, and no other one is written
# until it has.  So a client that hangs costs the memory of one line, and no time.


async def send_lines(
    watcher: Generator[dict[str, Any]],
    every: float,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Write a line now and each *every* seconds, until the client goes or says something.

    Raises:
        ConnectionResetError: If the client has gone just now.

    Cancellation:
        Safe: no line is written in part, as far as this process is concerned.
    """
    loop = asyncio.get_running_loop()
    lost, due = 0, loop.time()
    while True:
        if writer.transport.get_write_buffer_size():
            lost += 1
        else:
            reply = next(watcher)
            if lost:
                reply["lost"] = lost
            lost = 0
            write_reply(writer, reply)
        # A loop that was blocked does not make up for it.
        due = max(due + every, loop.time())
        try:
            async with asyncio.timeout_at(due):
                said = await reader.read(1)
        except TimeoutError:
            continue
        if said:
            write_reply(writer, {"error": "a client that watches asks no more"})
        return
