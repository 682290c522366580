"""The options of ``asyncpool serve`` that say how workers live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from asyncpool._cli.parameters import seconds, size
from asyncpool._runtime.base.machine import DEFAULT_LAUNCHER

F = TypeVar("F", bound=Callable[..., Any])


def _seconds_or_never(text: str) -> float | None:
    return None if text == "0" else seconds(text)


# In the order in which --help shows them.
_TIMES = (
    click.option(
        "--start-timeout",
        type=seconds,
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a worker may take until it is ready.",
    ),
    click.option(
        "--ping-timeout",
        type=_seconds_or_never,
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a worker, or its event loop, may hang before it is killed; "
        "0 for any time.",
    ),
    click.option(
        "--drain-timeout",
        type=seconds,
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="How long workers may take to finish their connections when the server "
        "ends.",
    ),
    click.option(
        "--reload-drain-timeout",
        type=seconds,
        metavar="SECONDS",
        help="How long a worker that is replaced may take for it, while others serve; by "
        "default as long.",
    ),
)

_RESTARTS = (
    click.option(
        "--max-restarts",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="Give up, with exit code 3, after more restarts than that within "
        "--within; by default a server never gives up.",
    ),
    click.option(
        "--within",
        type=seconds,
        metavar="SECONDS",
        help="For --max-restarts; 60 by default.",
    ),
)

_LIMITS = (
    click.option(
        "--max-connections",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="Replace a worker after so many connections, or somewhat fewer.",
    ),
    click.option(
        "--max-age",
        type=seconds,
        metavar="SECONDS",
        help="Replace a worker that is older; each a little earlier or later.",
    ),
    click.option(
        "--max-memory",
        type=size,
        metavar="SIZE",
        help="Replace a worker that has more memory to itself, such as 512M or 2G: it "
        "drains when its successor is ready (Linux).",
    ),
    click.option(
        "--kill-memory",
        type=size,
        metavar="SIZE",
        help="Kill a worker that has more memory to itself, and cut its connections off "
        "(Linux).",
    ),
    click.option(
        "--nice",
        type=click.IntRange(-20, 19),
        default=0,
        show_default=True,
        metavar="NUMBER",
        help="What is added to the niceness of workers.",
    ),
)

_REPLACEMENTS = (
    click.option(
        "--max-surge",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="NUMBER",
        help="How many workers are replaced at a time: so many more there may be.",
    ),
    click.option(
        "--launcher",
        type=click.Choice(["forkserver", "spawn"]),
        default=DEFAULT_LAUNCHER,
        show_default=True,
        help="How workers are started: forked from a process that has what they need, "
        "or each as a Python of its own.",
    ),
    click.option(
        "--preload",
        multiple=True,
        metavar="MODULE",
        help="Import a module once, before workers are forked: they start faster and "
        "share its memory.  A reload does not load it anew.  Several may be given.",
    ),
)


def life_options(function: F) -> F:
    """Add the options that say how long workers live, and how they begin and end."""
    # The decorator that is applied last is shown first.
    for option in reversed((*_TIMES, *_RESTARTS, *_LIMITS, *_REPLACEMENTS)):
        function = option(function)
    return function
