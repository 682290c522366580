"""Find the pool or server that a command is about, and ask it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any

import click

from asyncpool._cli.parameters import CommandError, RefusedError
from asyncpool._engine.machine import is_stopped
from asyncpool._observe.control.client import ControlClient
from asyncpool._observe.control.paths import live_names, path_of, private_folder
from asyncpool._observe.control.protocol import Request
from asyncpool.errors import ProtocolError

PATIENCE = 10.0  # s, for a process that is stopped, or busy


def which(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says which pool or server is meant: ``name`` and ``control``, or neither."""

    @functools.wraps(function)
    def with_name(*, name: tuple[str, ...], named: str | None, **others: Any) -> object:
        names = [*name, *([] if named is None else [named])]
        if len(names) > 1:
            raise CommandError(f"one NAME is enough: {' or '.join(names)}?")
        if names and others["control"] is not None:
            raise CommandError("NAME and --control say the same: leave one out")
        return function(name=names[0] if names else None, **others)

    return _with_options(with_name)


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--control",
            metavar="PATH",
            help="The control socket, if it was told one.",
        ),
        # The way of older versions.
        click.option("--name", "named", metavar="NAME", hidden=True),
        # Several, so that an argument behind it gets the only word.
        click.argument("name", nargs=-1, metavar="[NAME]"),
    ):
        function = option(function)
    return function


@contextlib.contextmanager
def connected(name: str | None, control: str | None) -> Generator[ControlClient]:
    """Connect to what is meant.

    Raises:
        CommandError: If it is not there, or it is not clear which.
    """
    try:
        path = control or path_of(name or _only_one())
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise RefusedError(str(error)) from None
    try:
        client = ControlClient(path, within=PATIENCE)
    except TimeoutError:
        raise RefusedError(f"{name or path} {silent(None)}") from None
    except (FileNotFoundError, ConnectionRefusedError):
        where = f"at {path}" if control else f"named {name}"
        living = ", ".join(_names())
        raise RefusedError(
            f"there is no pool or server {where}; there is {living or 'none at all'}"
        ) from None
    except OSError as error:
        raise RefusedError(f"{path}: {error.strerror or error}") from None
    with client:
        yield client


def living() -> list[str]:
    """Return the names of all that run.

    Raises:
        RefusedError: If there is none, or the folder of names cannot be used.
    """
    names = _names()
    if not names:
        raise RefusedError(
            f"no pool or server of yours is found in {private_folder(make=False)}: a pool "
            "needs Pool(control=True), or ASYNCPOOL_CONTROL=1; if its control socket is "
            "elsewhere, name it: --control PATH"
        )
    return names


def asked(client: ControlClient, action: Any, **fields: Any) -> dict[str, Any]:
    """Return the answer to a request, however long it takes.

    Raises:
        RefusedError: If the other side does not answer at all, cannot do it, or has ended.
    """
    status_of(client)  # a stopped process would carry the order out later
    with _refusals(client):
        # Without a limit: it takes as long as connections or jobs do.
        return client.ask(Request(action, **fields))


def status_of(client: ControlClient) -> dict[str, Any]:
    """Return how it stands.

    Raises:
        RefusedError: If it does not answer, or has ended.
    """
    with _refusals(client):
        return client.ask(Request("status"), within=PATIENCE)


@contextlib.contextmanager
def _refusals(client: ControlClient) -> Generator[None]:
    try:
        yield
    except TimeoutError:
        raise RefusedError(f"it {silent(client.pid)}") from None
    except ProtocolError as error:
        raise RefusedError(str(error)) from None
    except OSError as error:
        raise RefusedError(error.strerror or str(error)) from None


def silent(pid: int | None) -> str:
    """Return the error about a process that does not answer: its pid, and what to do."""
    text = f"has not answered for {PATIENCE:g} s"
    if pid is None:
        return f"{text}: its process is stopped, or hangs"
    end = f"kill -KILL {pid} ends it and its workers"
    if is_stopped(pid):
        return f"{text}: process {pid} is stopped; kill -CONT {pid} has it go on, {end}"
    return f"{text}: process {pid} hangs, or has too much to do; {end}"


def _names() -> list[str]:
    try:
        return live_names()
    except OSError as error:
        raise RefusedError(str(error)) from None


def _only_one() -> str:
    names = living()
    if len(names) > 1:
        raise CommandError(f"there are several, say which: {' | '.join(names)}")
    return names[0]
