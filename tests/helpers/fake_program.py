"""A program whose control socket says what a test has written down."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from asyncpool._observe.control.socket_files import path_of


class _Connection(socketserver.StreamRequestHandler):
    """Answers one client."""

    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        program = self.server.program
        program.connections.append(self.connection)
        while line := self.rfile.readline():
            request = json.loads(line)
            program.asked.append(request)
            if request["action"] != "watch":
                self._send(program.answers[request["action"]])
                continue
            lines = SimpleQueue[Any]()
            for told in program.told:
                lines.put(told)
            program.watchers.append(lines)
            while (told := lines.get()) is not None:
                self._send(told)
            return

    def _send(self, reply: Any) -> None:
        text = reply if isinstance(reply, str) else json.dumps(reply)
        with contextlib.suppress(OSError):  # the client is gone
            self.wfile.write(text.encode() + b"\n")


class _Server(socketserver.ThreadingUnixStreamServer):
    program: FakeProgram


class FakeProgram:
    """It listens in a thread; a context manager that ends it as a program does.

    Args:
        name: What its control socket is called.
        *told: What whoever watches it is told at once; text is sent as it is.

    Attributes:
        asked: What it was asked for, oldest first.
        answers: What it answers, by action.
    """

    def __init__(self, name: str, *told: Any) -> None:
        self.told = list(told)
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.watchers: list[SimpleQueue[Any]] = []
        self.connections: list[socket.socket] = []
        self._path = Path(path_of(name, make=True))
        self._path.unlink(missing_ok=True)
        self._server = _Server(str(self._path), _Connection)
        self._server.program = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name=f"fake {name}"
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def tell(self, line: Any) -> None:
        """Tell those who watch it, and who will."""
        self.told.append(line)
        for watcher in self.watchers:
            watcher.put(line)

    def end(self, *, leave_socket: bool = False) -> None:
        """End, with all connections; a program that is killed leaves its socket."""
        self._server.shutdown()
        for connection in self.connections:
            with contextlib.suppress(OSError):  # it has ended before
                connection.shutdown(socket.SHUT_RD)
        for watcher in self.watchers:
            watcher.put(None)
        self._thread.join()
        if not leave_socket:
            self._path.unlink(missing_ok=True)
        self._server.server_close()
