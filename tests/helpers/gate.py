"""Where jobs report that they have begun, and wait until they are let go.

Jobs come as connections to a Unix socket, see :mod:`tests.helpers.jobs`.  That a
connection has ended proves that every process that held it is gone.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder for sockets, whose paths must not be longer than 100 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="ap-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Visitor:
    """One process at the gate.

    Attributes:
        pid: The process.
        word: What it said.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str
    ) -> None:
        self.word, _, pid = line.rpartition(" ")
        self.pid = int(pid)
        self._reader = reader
        self._writer = writer

    def release(self, answer: str = "go") -> None:
        """Let it go on."""
        self._writer.write(answer.encode())

    async def gone(self) -> None:
        """Wait until no process holds the connection any more."""
        with suppress(ConnectionError):
            while await self._reader.read(4096):
                pass


class Gate:
    """An async context manager; ``gate.path`` is what jobs connect to."""

    def __init__(self) -> None:
        self._folder = short_folder()
        self._visitors: list[Visitor] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._readers: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self.path = str(self._folder.__enter__() / "gate")
        self._server = await asyncio.start_unix_server(self._welcome, self.path)
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        await self._server.wait_closed()
        self._folder.__exit__(error_type, error, traceback)

    async def visitor(self, word: str = "", nth: int = 1) -> Visitor:
        """Wait for the *nth* that says *word*."""
        found: list[Visitor] = []
        while len(found) < nth:
            self._news.clear()
            found = [v for v in self._visitors if v.word == word]
            if len(found) < nth:
                await self._news.wait()
        return found[nth - 1]

    def visits(self, word: str = "") -> int:
        """Count those that have said *word* so far."""
        return sum(v.word == word for v in self._visitors)

    def _welcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # Noted at once, since whoever comes in the last moment must be let out too.
        self._writers.append(writer)
        self._readers.append(asyncio.create_task(self._listen(reader, writer)))

    async def _listen(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        line = await reader.readline()
        if line.endswith(b"\n"):  # else it died on its way
            self._visitors.append(Visitor(reader, writer, line.decode().rstrip("\n")))
            self._news.set()
