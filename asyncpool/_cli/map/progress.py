"""What a run shows of itself while it goes on: a live line, on a terminal only."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncpool._cli.map.inputs import Input
from asyncpool._cli.map.run import Run
from asyncpool._cli.units import duration, size_text
from asyncpool._system.processes import memory_at_most
from asyncpool.stats import PoolStats

_EVERY = 0.2  # s
_RATE_OVER = 10.0  # s, of the newest past


class Progress:
    """Shows how far a run is.

    Args:
        run: The run.
        source: Its input.
        console: Where to.
        title: What the line begins with.
    """

    def __init__(self, run: Run, source: Input, console: Console, title: str) -> None:
        self._run = run
        self._source = source
        self._console = console
        self._title = title
        self._began = time.monotonic()
        self._past: deque[tuple[float, int]] = deque()

    async def show(self) -> None:
        """Show it until cancelled; the last state stays."""
        with Live(
            self.render(), console=self._console, auto_refresh=False, transient=False
        ) as live:
            try:
                while True:
                    await asyncio.sleep(_EVERY)
                    live.update(self.render(), refresh=True)
            finally:
                live.update(self.render(), refresh=True)

    def render(self) -> Table:
        """Return it as it is now."""
        tally, stats = self._run.tally, self._run.stats()
        total = self.total()
        rate = self._rate()
        line = Table.grid(padding=(0, 2))
        row: list[Text | ProgressBar] = [Text(self._title, style="bold")]
        if total is not None:
            row.append(ProgressBar(total=max(total, 1), completed=tally.done, width=20))
        count = (
            f"{tally.done:,}"
            if total is None
            else f"{tally.done:,}/{self._shown(total)}"
        )
        row.append(Text(count))
        row.append(Text(f"{rate:,.0f}/s", style="cyan"))
        if total is not None and rate > 0 and total > tally.done:
            row.append(Text(f"ETA {duration((total - tally.done) / rate)}"))
        else:
            row.append(Text(duration(time.monotonic() - self._began)))
        row.append(
            Text(f"{tally.failed:,} failed", style="red" if tally.failed else "dim")
        )
        restarts = f"{stats.restarts} restarts"
        row.append(Text(restarts, style="yellow" if stats.restarts else "dim"))
        row.append(Text(size_text(memory_of(stats)), style="dim"))
        for _ in row:
            line.add_column(no_wrap=True)
        line.add_row(*row)
        return line

    def total(self) -> int | None:
        """Return how many items there are, as far as that can be told."""
        tally, source = self._run.tally, self._source
        if tally.at_end:
            return tally.drawn
        if source.count is not None:
            return source.count
        if not source.size or not tally.consumed:
            return None
        # As if the rest of the file were like what was read of it.
        return max(tally.drawn, round(tally.drawn * source.size / tally.consumed))

    def _shown(self, total: int) -> str:
        known = self._run.tally.at_end or self._source.count is not None
        return f"{total:,}" if known else f"~{total:,}"

    def _rate(self) -> float:
        """Return how many items a second were done lately, without the journal's."""
        now, tally = time.monotonic(), self._run.tally
        self._past.append((now, tally.done - tally.found))
        while now - self._past[0][0] > _RATE_OVER:
            self._past.popleft()
        then, count = self._past[0]
        if now == then:
            return 0.0
        return (tally.done - tally.found - count) / (now - then)


def memory_of(stats: PoolStats) -> int:
    """Return the bytes that this process and the workers have to themselves."""
    pids = [os.getpid(), *(slot.pid for slot in stats.slots if slot.pid is not None)]
    return sum(map(memory_at_most, pids))
