"""What workers print and log, on the console of the command."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.text import Text

from asyncpool._wire.text import JOB_LOGGER, printable_lines


class WorkerLines(logging.Handler):
    """Prints what workers print, and what is logged, above the live line."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        with suppress(OSError):  # nobody may read it
            self._console.print(
                Text(printable_lines(self.format(record))),
                soft_wrap=True,
                highlight=False,
            )

    @classmethod
    @contextmanager
    def on(cls, console: Console) -> Generator[None]:
        """Print them while the context lasts."""
        handler = cls(console)
        root = logging.getLogger()
        # The deaths of workers are in the files, and in the errors.
        pools = logging.getLogger("asyncpool")
        lines = logging.getLogger("asyncpool.worker")
        jobs = logging.getLogger(JOB_LOGGER)
        before = pools.propagate, lines.level
        root.addHandler(handler)
        lines.addHandler(handler)
        jobs.addHandler(handler)
        pools.propagate = False
        pools.addHandler(nothing := logging.NullHandler())
        lines.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            root.removeHandler(handler)
            lines.removeHandler(handler)
            jobs.removeHandler(handler)
            pools.removeHandler(nothing)
            pools.propagate, level = before
            lines.setLevel(level)
