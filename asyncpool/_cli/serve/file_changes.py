"""Tell when the code has changed; needs watchfiles."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

from watchfiles import PythonFilter, awatch


class Changes:
    """The changes of Python files in a folder; a context manager that watches it.

    Args:
        folder: The folder, subfolders included.

    Attributes:
        count: How many changes there were.
        names: The names of the files of the last change, for people.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.count = 0
        self.names = ""
        self._news = asyncio.Condition()
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(
            self._watch(), name="asyncpool serve: watch files"
        )
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

    async def after(self, count: int) -> None:
        """Wait until there were more than *count* changes.

        Cancellation:
            Safe.
        """
        async with self._news:
            await self._news.wait_for(lambda: self.count > count)

    async def _watch(self) -> None:
        async for changes in awatch(
            self._folder,
            watch_filter=PythonFilter(),
            stop_event=self._end,
            raise_interrupt=False,
        ):
            names = sorted({Path(path).name for _, path in changes})
            async with self._news:
                self.count += 1
                self.names = ", ".join(names[:3]) + ", …" * (len(names) > 3)  # noqa: PLR2004
                self._news.notify_all()
