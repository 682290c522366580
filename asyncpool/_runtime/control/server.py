"""A control socket: this user's commands, one line each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from asyncpool._core.control.control_protocol import MAX_REQUEST, Request, pack_reply
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.control.paths import peer_uid
from asyncpool._runtime.control.socket_files import (
    SocketFile,
    closed_on_error,
    listen_at,
)
from asyncpool.errors import ProtocolError

_LOGGER = logging.getLogger("asyncpool")

Answer: TypeAlias = Callable[[Request], Awaitable[dict[str, Any]]]

_BACKLOG = 16
_MOST_CLIENTS = 32

# Seconds until the next try, when this process may open no more files.
_PAUSE = 0.1


class ControlSocket:
    """Answers the requests of this user's processes.

    Args:
        path: The path of the socket's file, which is for this user only.
        answer: Returns the answer to a request.  If it raises, the client gets an error.

    Raises:
        OSError: If somebody listens there already, or the file cannot be made.
    """

    def __init__(self, path: str, answer: Answer) -> None:
        self._answer = answer
        self._clients: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._pause = Alarm(self._loop, lambda _: self.open())
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with closed_on_error(self._sock):
            self._sock.setblocking(False)
            self._file: SocketFile = listen_at(
                self._sock, path, mode=0o600, backlog=_BACKLOG
            )

    @property
    def path(self) -> str:
        """The path of the socket's file."""
        return self._file.path

    def open(self) -> None:
        """Begin to answer; clients may have connected before, and wait."""
        self._loop.add_reader(self._sock, self._accept)

    async def close(self) -> None:
        """Remove the file, and close all connections, for whose end clients may wait.

        Cancellation:
            Leaves connections open.
        """
        self._file.remove()
        self._loop.remove_reader(self._sock)
        self._pause.cancel()
        self._sock.close()
        # A client that has just come gets as far as owning its connection.
        await asyncio.sleep(0)
        for task in self._clients:
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients)

    def _accept(self) -> None:
        # Not asyncio's server, which logs an error if it is closed while a client comes.  And not
        # sock_accept(), which loses a client that comes while it is cancelled.
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            _LOGGER.warning("the control socket cannot accept a connection: %s", error)
            self._loop.remove_reader(self._sock)
            self._pause.set_in(_PAUSE)
            return
        if len(self._clients) < _MOST_CLIENTS and self._is_welcome(sock):
            sock.setblocking(False)
            task = self._loop.create_task(
                self._serve(sock), name="asyncpool control connection"
            )
            self._clients.add(task)
            task.add_done_callback(self._clients.discard)
        else:
            sock.close()

    async def _serve(self, sock: socket.socket) -> None:
        with closed_on_error(sock):
            reader, writer = await asyncio.open_unix_connection(
                sock=sock, limit=MAX_REQUEST
            )
        try:
            with contextlib.suppress(OSError):  # the client is gone
                await self._talk(reader, writer)
        except asyncio.CancelledError:
            # Not close(), which would wait for a client that does not read.
            writer.transport.abort()
            raise
        finally:
            writer.close()

    def _is_welcome(self, sock: socket.socket) -> bool:
        try:
            uid = peer_uid(sock)
        except OSError as error:
            _LOGGER.warning(
                "the control socket cannot tell whose a connection is: %s", error
            )
            return False
        if uid != os.geteuid():
            _LOGGER.warning("the control socket has refused user %d", uid)
            return False
        return True

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:  # the line is longer than the limit
                line = b"?"
            if not line:
                return
            try:
                request = Request.unpack(line)
            except ProtocolError as error:
                # Nobody knows where the next line begins.
                writer.write(pack_reply({"error": str(error)}))
                await writer.drain()
                return
            writer.write(pack_reply(await self._reply(request)))
            await writer.drain()

    async def _reply(self, request: Request) -> dict[str, Any]:
        try:
            return await self._answer(request)
        except Exception as error:
            with contextlib.suppress(Exception):
                _LOGGER.debug("%s has failed", request, exc_info=True)
            return {"error": str(error) or type(error).__name__}
