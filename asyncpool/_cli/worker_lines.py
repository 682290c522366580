"""What workers print and log, on the console of the command."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.text import Text

from asyncpool._engine.life_log import LOGGER
from asyncpool._wire.text import printable_block


class WorkerLines(logging.Handler):
    """Prints what workers print, and what is logged, above the live line."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        with suppress(OSError):  # nobody may read it
            self._console.print(
                Text(printable_block(self.format(record))),
                soft_wrap=True,
                highlight=False,
            )

    @classmethod
    @contextmanager
    def on(cls, console: Console) -> Generator[None]:
        """Print them while the context lasts."""
        handler = cls(console)
        root, lines = logging.getLogger(), logging.getLogger("asyncpool.worker")
        before = LOGGER.disabled, lines.level
        root.addHandler(handler)
        LOGGER.disabled = (
            True  # the deaths of workers are in the files, and in the errors
        )
        lines.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            root.removeHandler(handler)
            LOGGER.disabled, level = before
            lines.setLevel(level)
