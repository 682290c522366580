"""How far the census is: a live bar on a terminal, a few lines elsewhere."""

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from asyncpool.stats import PoolStats
from census.measure import Finding, Unparsed

LINES = 8  # how many lines a plain run prints on its way


class Ticker(Protocol):
    """Is told of every finding; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def tick(self, finding: Finding, stats: PoolStats | None = None) -> None:
        """Count *finding*; *stats* are the pool's, if there is one."""


def ticker(console: Console, title: str, total: int, *, plain: bool) -> Ticker:
    """Return the ticker that fits the console."""
    if plain or not console.is_terminal:
        return PlainTicker(title, total)
    return LiveTicker(console, title, total)


class PlainTicker:
    """Prints a line every now and then."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._unparsed = 0
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def tick(self, finding: Finding, stats: PoolStats | None = None) -> None:
        """Count *finding*, and print a line if it is time for one."""
        self._done += 1
        self._unparsed += isinstance(finding, Unparsed)
        step = -(-self._total // LINES)
        if self._done % step == 0 or self._done == self._total:
            self._print(stats)

    def _print(self, stats: PoolStats | None) -> None:
        count = f"{self._done}/{self._total} files"
        print(f"{self._title}: {count}, {self._state(stats)}", flush=True)

    def _state(self, stats: PoolStats | None) -> str:
        rate = self._done / max(time.monotonic() - self._began, 1e-9)
        state = f"{rate:.0f} files/s, {self._unparsed} unparsed"
        if stats is None:
            return state
        return f"{state}, {stats.crashes} deaths, {stats.restarts} restarts"


class LiveTicker(PlainTicker):
    """Draws a bar and keeps it up to date."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        super().__init__(title, total)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
        )
        self._task = self._progress.add_task(title, total=total, state="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def tick(self, finding: Finding, stats: PoolStats | None = None) -> None:
        """Count *finding* and move the bar."""
        self._done += 1
        self._unparsed += isinstance(finding, Unparsed)
        self._progress.update(
            self._task, completed=self._done, state=self._state(stats)
        )
