"""Options, and errors, that several commands share."""

from __future__ import annotations

import enum
import importlib.util
import inspect
import itertools
import math
import os
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import click

from asyncpool._engine.machine import working_folder
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
        self, info_name: str | None, args: list[str], *more: Any, **extra: Any
    ) -> click.Context:
        """Read the command line."""
        words = itertools.takewhile(lambda word: word != "--", args)
        with self._mistakes(as_json="--json" in words):
            return super().make_context(info_name, args, *more, **extra)

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


def seconds(text: str | float) -> float:
    """Return a number of seconds, above 0; the type of an option."""
    try:
        number = float(str(text))
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise click.BadParameter(f"{text!r} is no number of seconds, such as 30 or 0.5")
    return number


def seconds_or_never(text: str | float) -> float | None:
    """Return a number of seconds, or ``None`` for 0; the type of an option."""
    return None if str(text) == "0" else seconds(text)


def size(text: str | int) -> int:
    """Return a number of bytes, such as 512M; the type of an option."""
    found = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", str(text).strip(), re.IGNORECASE)
    if found is None or not int(found[1]):
        raise click.BadParameter(f"{text!r} is no size, such as 512M or 2G")
    return int(found[1]) * _UNITS[found[2].upper()]


def options_of(
    record: Callable[..., Any], *names: str, **special: dict[str, Any]
) -> Callable[[F], F]:
    """Add an option for each parameter of *record* that has a default, in their order.

    Its name, its type, its default and its explanation are the parameter's.  *record* checks what is
    given when it is called with it.

    Args:
        record: The class, or the function.
        *names: Which of its parameters; all by default.
        **special: What is not as usual, by parameter: ``flags``, and arguments of
            :func:`click.option`.
    """
    parameters = inspect.signature(record).parameters
    homes = getattr(record, "__mro__", [record])
    scope = ChainMap(*(vars(sys.modules[home.__module__]) for home in homes))
    helps = ChainMap(*map(_explained, homes))

    def option(name: str) -> Callable[[F], F]:
        default = parameters[name].default
        hint = eval(parameters[name].annotation, {}, scope)  # noqa: S307 - our own code
        kinds = kinds_of(hint)
        how: dict[str, Any] = {"flags": [f"--{name.replace('_', '-')}"]}
        how |= {"default": default, "help": helps.get(name), "multiple": default == ()}
        how["show_default"] = default not in {None, False, (), ""}
        if kinds == {bool}:
            how["is_flag"] = True
        elif float in kinds:
            endless = default is not None and NoneType in get_args(hint)
            how |= {"type": seconds_or_never if endless else seconds}
            how["metavar"] = "SECONDS"
        elif int in kinds:
            how |= {"type": int, "metavar": "NUMBER"}
        else:
            how["type"] = type_of(kinds)
        how |= special.get(name, {})
        return click.option(*how.pop("flags"), name, **how)

    def add(function: F) -> F:
        # The decorator that is applied last is shown first.
        for name in reversed(names or parameters):
            if parameters[name].default is not inspect.Parameter.empty:
                function = option(name)(function)
        return function

    return add


def _explained(record: Callable[..., Any]) -> dict[str, str]:
    """Return what a docstring says of each parameter, as plain text."""
    found: dict[str, str] = {}
    text = inspect.getdoc(record) or ""
    for name, entry in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE):
        plain = re.sub(r":\w+:`~?|``\"?|\"?``|`|\*(?=\w)|(?<=\w)\*", "", entry)
        plain = re.sub(r"(?<=\.) +None means", " By default", " ".join(plain.split()))
        # On a command line an option is not there, or 0.
        found[name] = plain.replace("None means", "by default").replace("None", "0")
    return found


def kinds_of(hint: Any) -> set[Any]:
    """Return the types that a hint allows, ``None`` left out."""
    if get_origin(hint) in {Union, UnionType}:
        return set().union(*map(kinds_of, get_args(hint)))
    return set() if hint is NoneType else {hint}


def type_of(kinds: set[Any]) -> click.ParamType[Any] | None:
    """Return the type of an option that may have these types, or ``None`` if there is none."""
    if kinds and all(get_origin(kind) is Literal for kind in kinds):
        return click.Choice([word for kind in kinds for word in get_args(kind)])
    for kind, type in ((bool, click.BOOL), (int, click.INT), (float, click.FLOAT)):  # noqa: A001
        if kinds == {kind}:
            return type
    texts = (str, Literal)
    is_text = any(kind is str or get_origin(kind) in texts for kind in kinds)
    return click.STRING if is_text else None


def need(package: str, extra: str, what: str) -> None:
    """Check that a package is installed, which *what* needs and an *extra* installs.

    Raises:
        CommandError: If it is not.
    """
    if importlib.util.find_spec(package) is None:
        raise CommandError(
            f"{what} needs {package}, which is not installed: "
            f"pip install 'asyncpool-supervised[{extra}]'"
        )


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


def size_text(size: float) -> str:
    """Return bytes as a short text."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:  # noqa: PLR2004 - what fits into three digits
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


def duration(seconds: float) -> str:
    """Return seconds as a short text."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
