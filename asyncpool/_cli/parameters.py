"""Options, and errors, that several commands share."""

from __future__ import annotations

import enum
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from asyncpool._engine.machine import check_loop_kind, working_folder
from asyncpool._wire.text import printable_block

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Exit(enum.IntEnum):
    """The exit codes; a signal that ends a run gives 128 and its number."""

    OK = 0
    FAILED = 1  # some items, the call, or the self-test
    USAGE = 2
    UNFINISHED = 3
    TIMEOUT = 124
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class CommandError(click.ClickException):
    """A mistake of the user's, told without a traceback."""

    exit_code: ClassVar[int] = Exit.USAGE

    def show(self, file: Any = None) -> None:
        """Print it where errors go."""
        click.echo(f"asyncpool: {self.message}", err=True, file=file)


class RefusedError(CommandError):
    """The command is right, but there is no such cluster, or the system refuses."""

    exit_code: ClassVar[int] = Exit.FAILED


class UnfinishedError(CommandError):
    """The command is right, but there is no room, or no right to write."""

    exit_code: ClassVar[int] = Exit.UNFINISHED


class JsonCommand(click.Command):
    """A command that reports mistakes as JSON too, if ``--json`` is among its words.

    Args:
        tell: Called with the mistake, and the exit code.
    """

    def __init__(
        self, *args: Any, tell: Callable[[str, int], object], **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self._tell = tell

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the command line."""
        words = itertools.takewhile(lambda word: word != "--", args)
        with self._mistakes(as_json="--json" in words):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Do what it says."""
        with self._mistakes(as_json=ctx.params["as_json"]):
            return super().invoke(ctx)

    @contextmanager
    def _mistakes(self, *, as_json: bool) -> Generator[None]:
        try:
            yield
        except click.ClickException as error:
            if not as_json:
                raise
            self._tell(error.format_message(), error.exit_code)
            sys.exit(error.exit_code)


def seconds(text: str) -> float:
    """Return a number of seconds, above 0; the type of an option."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise click.BadParameter(f"{text!r} is no number of seconds, such as 30 or 0.5")
    return number


def seconds_or_never(text: str) -> float | None:
    """Return a number of seconds, or ``None`` for 0; the type of an option."""
    return None if text == "0" else seconds(text)


def size(text: str) -> int:
    """Return a number of bytes, such as 512M; the type of an option."""
    found = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or not int(found[1]):
        raise click.BadParameter(f"{text!r} is no size, such as 512M or 2G")
    return int(found[1]) * _UNITS[found[2].upper()]


def _loop(_: click.Context, __: click.Parameter, kind: str) -> str:
    """Check that there is such an event loop; the callback of an option."""
    try:
        check_loop_kind("worker_loop", kind)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return kind


def pool_options(function: F) -> F:
    """Add the options that limit what a call may use."""
    for option in (
        click.option(
            "--kill-memory",
            type=size,
            metavar="SIZE",
            help="Kill a worker that has more memory to itself, such as 512M or 2G; what it "
            "ran fails (Linux).",
        ),
        click.option(
            "--timeout",
            type=seconds,
            metavar="SECONDS",
            help="How long one attempt may take.  What takes longer is made to end, "
            "and where it was is shown.",
        ),
        click.option(
            "--loop",
            type=click.Choice(["asyncio", "uvloop"]),
            default="asyncio",
            callback=_loop,
            help="The event loop that an async function runs in; asyncio by default.",
        ),
    ):
        function = option(function)
    return function


def error_console() -> Console:
    """Return the console for everything that is not a result."""
    from rich.console import Console  # noqa: PLC0415 - many commands do without

    return Console(file=sys.stderr, highlight=False)


def say(text: str) -> None:
    """Print a line where errors go."""
    click.echo(printable_block(text), err=True)


def add_current_folder() -> None:
    """Let modules of the current folder be found, as ``python -m`` does.

    Raises:
        FileNotFoundError: If it was removed.
    """
    folder = working_folder() or os.getcwd()  # noqa: PTH109 - raises
    if folder not in sys.path:
        sys.path.insert(0, folder)
