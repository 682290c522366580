"""``asyncpool status``, ``reload``, ``resize`` and ``stop``: clusters that run already."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import click
from rich.console import Console, Group
from rich.live import Live

from asyncpool._cli.parameters import CommandError, Exit, RefusedError, say, seconds
from asyncpool._cli.serve.status_view import status_view
from asyncpool._core.control.control_protocol import MAX_WORKERS, Request
from asyncpool._runtime.base.machine import is_stopped
from asyncpool._runtime.control.client import ControlClient
from asyncpool._runtime.control.paths import (
    live_names,
    path_of,
    private_folder,
)
from asyncpool.errors import ProtocolError

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE = 10.0  # s, for a master that is stopped, or busy


def _which(function: F) -> F:
    """Add the options that say which cluster is meant."""
    for option in (
        click.option(
            "--control",
            metavar="PATH",
            help="The control socket, if serve was told one.",
        ),
        click.option(
            "--name",
            metavar="NAME",
            help="Which cluster, if there are several; see asyncpool status.",
        ),
    ):
        function = option(function)
    return function


@click.command("status", short_help="Show clusters that run, and their workers.")
@_which
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
@click.option("--watch", is_flag=True, help="Show it until Ctrl-C, or until they end.")
@click.option(
    "--every",
    type=seconds,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often, with --watch.",
)
def status_command(
    *,
    name: str | None,
    control: str | None,
    as_json: bool,
    watch: bool,
    every: float,
) -> None:
    """Show the clusters of this user: workers, connections, restarts, memory.

    One that does not answer is told of, and the others are shown; the exit code is 1.
    """
    names = [name] if name is not None or control is not None else _living()
    with contextlib.ExitStack() as stack:
        shown = _Shown(watch=watch)
        for each in names:
            try:
                client = stack.enter_context(_connected(each, control))
                shown.clients[each or control or ""] = client
            except RefusedError as error:
                shown.tell(error)
        if watch:
            with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
                _watch(shown, every, as_json=as_json)
        else:
            _print(shown.statuses(), as_json=as_json)
    if shown.trouble:
        sys.exit(Exit.FAILED)


@click.command("reload", short_help="Replace the workers by ones with new code.")
@_which
def reload_command(*, name: str | None, control: str | None) -> None:
    """Replace the workers of a cluster, some at a time, by ones that load the code anew.

    Each serves until its successor is ready.  If new code cannot start, the workers that
    there are go on, and the exit code is 1.
    """
    with _connected(name, control) as client:
        result = _asked(client, "reload")
    if result["reason"]:
        raise RefusedError(result["text"])
    say(result["text"])


@click.command("resize", short_help="Change the number of workers.")
@click.argument("workers", type=click.IntRange(1, MAX_WORKERS))
@_which
def resize_command(*, workers: int, name: str | None, control: str | None) -> None:
    """Change the number of workers to WORKERS; surplus ones finish their connections."""
    with _connected(name, control) as client:
        result = _asked(client, "resize", workers=workers)
    say(result["text"])


@click.command("stop", short_help="End a cluster.")
@_which
@click.option("--now", is_flag=True, help="Cut off what is open, instead of draining.")
def stop_command(*, name: str | None, control: str | None, now: bool) -> None:
    """Let a cluster finish its connections and end, and wait for that."""
    with _connected(name, control) as client:
        result = _asked(client, "stop", now=now)
        client.wait_for_end()
    say(f"stopped: {result['name']}, process {result['pid']}")


@contextlib.contextmanager
def _connected(name: str | None, control: str | None) -> Generator[ControlClient]:
    """Connect to the cluster that is meant.

    Raises:
        CommandError: If there is none, or it is not clear which.
    """
    try:
        path = control or path_of(name or _only_one())
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise RefusedError(str(error)) from None
    try:
        client = ControlClient(path, within=_PATIENCE)
    except TimeoutError:
        raise RefusedError(f"{name or path} {_silent(None)}") from None
    except (FileNotFoundError, ConnectionRefusedError):
        what = f"no cluster at {path}" if control else f"no cluster named {name}"
        living = ", ".join(_names())
        raise RefusedError(
            f"there is {what}; there is {living or 'none at all'}"
        ) from None
    except OSError as error:
        raise RefusedError(f"{path}: {error.strerror or error}") from None
    with client:
        yield client


def _names() -> list[str]:
    try:
        return live_names()
    except OSError as error:
        raise RefusedError(str(error)) from None


def _living() -> list[str]:
    names = _names()
    if not names:
        raise RefusedError(
            f"no cluster of yours runs ({private_folder(make=False)}); if it has a control "
            "socket elsewhere, name it: --control PATH"
        )
    return names


def _only_one() -> str:
    names = _living()
    if len(names) > 1:
        raise CommandError(f"there are several, say which: --name {' | '.join(names)}")
    return names[0]


def _asked(client: ControlClient, action: Any, **fields: Any) -> dict[str, Any]:
    try:
        # A master that runs answers; a stopped one would carry the order out later.
        client.ask(Request("status"), within=_PATIENCE)
        # Without a limit: it takes as long as connections do.
        return client.ask(Request(action, **fields))
    except TimeoutError:
        raise RefusedError(f"the cluster {_silent(client.pid)}") from None
    except ProtocolError as error:
        raise RefusedError(str(error)) from None
    except OSError as error:
        raise RefusedError(error.strerror or str(error)) from None


def _silent(pid: int | None) -> str:
    """Return the error about a master that does not answer: its pid, and what to do."""
    text = f"has not answered for {_PATIENCE:g} s"
    if pid is None:
        return f"{text}: its process is stopped, or hangs"
    end = f"kill -KILL {pid} ends it and its workers"
    if is_stopped(pid):
        return f"{text}: process {pid} is stopped; kill -CONT {pid} has it go on, {end}"
    return f"{text}: process {pid} hangs, or has too much to do; {end}"


class _Shown:
    """The clusters that are shown, without those that cannot tell how they are.

    Args:
        watch: Whether a cluster may end meanwhile without that being an error.

    Attributes:
        clients: Their control clients, by name.
        trouble: Whether a cluster was left out since it failed to answer.
    """

    def __init__(self, *, watch: bool) -> None:
        self.clients: dict[str, ControlClient] = {}
        self.trouble = False
        self._watch = watch

    def statuses(self) -> list[dict[str, Any]]:
        """Return the answers; clusters that do not answer are asked no more."""
        found: list[dict[str, Any]] = []
        for name, client in list(self.clients.items()):
            try:
                found.append(client.ask(Request("status"), within=_PATIENCE))
            except TimeoutError:
                why = _silent(client.pid)
            except ConnectionError:
                why = "" if self._watch else "has ended"
            except (OSError, ProtocolError) as error:
                why = f"cannot tell how it is: {error}"
            else:
                continue
            del self.clients[name]
            if why:
                self.tell(RefusedError(f"{name} {why}"))
        return found

    def tell(self, error: RefusedError) -> None:
        """Say why a cluster is left out."""
        self.trouble = True
        error.show()


def _print(statuses: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for status in statuses:
            click.echo(json.dumps(status))
        return
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for status in statuses:
        console.print(status_view(status))


def _watch(shown: _Shown, every: float, *, as_json: bool) -> None:
    """Show the clusters again and again, until none is left."""
    if as_json:
        while statuses := shown.statuses():
            _print(statuses, as_json=True)
            sys.stdout.flush()
            time.sleep(every)
        return
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while statuses := shown.statuses():
            live.update(Group(*map(status_view, statuses)), refresh=True)
            time.sleep(every)
