"""Tell when the code has changed; needs watchfiles."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

from watchfiles import PythonFilter, awatch

__all__ = ["Changes"]


class Changes:
    """The changes of Python files in a folder; a context manager that watches it.

    Args:
        folder: The folder, with all that are in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._names = ""
        self._news = asyncio.Condition()
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._end.set()
        await asyncio.wait({self._task})

    async def next(self) -> str:
        """Wait for the next change, and return the names of the files.

        Cancellation:
            Safe.
        """
        async with self._news:
            before = self._count
            await self._news.wait_for(lambda: self._count > before)
            return self._names

    async def _watch(self) -> None:
        async for changes in awatch(
            self._folder,
            watch_filter=PythonFilter(),
            stop_event=self._end,
            raise_interrupt=False,
        ):
            names = sorted({Path(path).name for _, path in changes})
            async with self._news:
                self._count += 1
                self._names = ", ".join(names[:3]) + ", …" * (len(names) > 3)  # noqa: PLR2004
                self._news.notify_all()
