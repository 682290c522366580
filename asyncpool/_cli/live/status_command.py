"""``asyncpool status``: how pools and servers stand, once or until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live

from asyncpool._cli.live.last_minute import LastMinute
from asyncpool._cli.live.live_view import live_view
from asyncpool._cli.live.reaching import PATIENCE, connected, living, silent, which
from asyncpool._cli.live.status_view import status_view
from asyncpool._cli.parameters import Exit, RefusedError, seconds
from asyncpool._core.control.control_protocol import (
    LONGEST,
    MAX_JOBS,
    SHORTEST,
    Request,
)
from asyncpool._runtime.control.client import ControlClient
from asyncpool.errors import ProtocolError


def _interval(text: str) -> float:
    """Return the seconds between two looks; the type of an option."""
    number = seconds(text)
    if number < SHORTEST:
        raise click.BadParameter(f"{text} is too often: {SHORTEST:g} s is the least")
    return number


@click.command("status", short_help="Show pools and servers that run.")
@which
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
@click.option("--watch", is_flag=True, help="Show it until Ctrl-C, or until they end.")
@click.option(
    "--every",
    type=_interval,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help=f"How often, with --watch; {SHORTEST:g} or more.",
)
def status_command(
    *,
    name: str | None,
    control: str | None,
    as_json: bool,
    watch: bool,
    every: float,
) -> None:
    """Show the pools and servers of this user: workers, queue or connections, memory.

    With --watch and one of them there are curves of the last minute, and the last crashes.
    Into a file or a pipe it prints all of that each time, one below the other.
    One that does not answer is told of, and the others are shown; the exit code is 1.
    """
    names = [name] if name is not None or control is not None else living()
    with contextlib.ExitStack() as stack:
        shown = _Shown(watch=watch)
        for each in names:
            try:
                client = stack.enter_context(connected(each, control))
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


class _Shown:
    """What is shown, without those that cannot tell how they are.

    Args:
        watch: Whether one may end meanwhile without that being an error.

    Attributes:
        clients: Their control clients, by name.
        trouble: Whether one was left out since it failed to answer.
    """

    def __init__(self, *, watch: bool) -> None:
        self.clients: dict[str, ControlClient] = {}
        self.trouble = False
        self._watch = watch

    def statuses(self) -> list[dict[str, Any]]:
        """Return the answers; those that do not answer are asked no more."""
        found: list[dict[str, Any]] = []
        for name, client in list(self.clients.items()):
            try:
                found.append(client.ask(Request("status"), within=PATIENCE))
            except TimeoutError:
                why = silent(client.pid)
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
        """Say why one is left out."""
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
    """Show them again and again, until none is left."""
    if as_json:
        while statuses := shown.statuses():
            _print(statuses, as_json=True)
            sys.stdout.flush()
            time.sleep(every)
        return
    with _screen() as show:
        if len(shown.clients) == 1:
            _watch_one(shown, show, every)
            return
        while statuses := shown.statuses():
            show(Group(*map(status_view, statuses)))
            time.sleep(every)


@contextlib.contextmanager
def _screen() -> Generator[Callable[[RenderableType], None]]:
    """Yield what shows a view: in place of the one before at a terminal, else below it."""
    console = Console(highlight=False)
    if sys.stdout.isatty():
        with Live(console=console, auto_refresh=False, screen=False) as live:
            yield lambda view: live.update(view, refresh=True)
        return

    def show(view: RenderableType) -> None:
        with console.capture() as capture:
            console.print(view, soft_wrap=True)
        click.echo(capture.get())  # with an empty line, and at once

    yield show


def _watch_one(
    shown: _Shown, show: Callable[[RenderableType], None], every: float
) -> None:
    """Show one that tells of itself, with what happened in the last minute."""
    [(name, client)] = shown.clients.items()
    request = Request("watch", every=min(every, LONGEST), jobs=MAX_JOBS)
    minute = LastMinute()
    try:
        for line in client.watch(request):
            minute.add(line)
            show(live_view(line["status"], minute))
    except ConnectionError:
        pass  # it has ended
    except (OSError, ProtocolError) as error:
        shown.tell(RefusedError(f"{name} cannot be watched: {error}"))
