"""A gate for tests without an event loop, see :mod:`tests.helpers.gate`."""

from __future__ import annotations

import socket
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.helpers.gate import short_folder
from tests.helpers.patience import PATIENCE


class WaitingRoom:
    """Where jobs wait that call ``jobs.wait_at(room.path)``, until they are let go."""

    def __enter__(self) -> Self:
        self._folder = short_folder()
        self.path = str(self._folder.__enter__() / "gate")
        self._server = socket.create_server((self.path), family=socket.AF_UNIX)
        self._server.settimeout(PATIENCE)
        self._inside: list[socket.socket] = []
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
        self._server.close()
        self._folder.__exit__(error_type, error, traceback)

    def admit(self) -> int:
        """Wait until one more job is here, and return its pid."""
        visitor, _ = self._server.accept()
        self._inside.append(visitor)
        return int(visitor.recv(4096).decode().rpartition(" ")[2])

    def release(self) -> None:
        """Let all go that are here."""
        for visitor in self._inside:
            with visitor, suppress(BrokenPipeError):  # it may be dead
                visitor.sendall(b"go")
        self._inside.clear()
