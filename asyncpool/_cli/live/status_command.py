"""``asyncpool status``: how pools and servers stand, once or until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from asyncpool._cli.live.reaching import PATIENCE, connected, living, silent, which
from asyncpool._cli.live.status_view import brief, status_view
from asyncpool._cli.parameters import Exit, RefusedError, seconds
from asyncpool._observe.control.client import ControlClient
from asyncpool._observe.control.protocol import LONGEST, MAX_JOBS, SHORTEST, Request
from asyncpool._observe.history import Snapshot, point_between, snapshot_of
from asyncpool._wire.text import printable
from asyncpool.errors import ProtocolError

# What was seen of a pool or server in the last minute.

# Seconds.
SPAN = 60.0

_MOST_CRASHES = 5
_BARS = "▁▂▃▄▅▆▇█"

# Where a row of jobs has the seconds that it waited, and ran.
_WAIT, _RUN = 5, 6


@dataclass(frozen=True, slots=True)
class Moment:
    """What one line has told.

    Attributes:
        at: When, in Unix time.
        rate: Jobs that ended, or connections that came, a second.
        median: Seconds that half of the jobs took at most, from their submit; ``None`` without
            jobs.
        slowest: Seconds that 99 of 100 took at most.
    """

    at: float
    rate: float
    median: float | None
    slowest: float | None


class LastMinute:
    """Notes line after line.

    Attributes:
        moments: Those of the last minute, oldest first.
        crashes: The last crashes, oldest first, each with when it was.
        cpu: By slot, the percentage of a core that its worker uses now.
    """

    def __init__(self) -> None:
        self.moments: deque[Moment] = deque()
        self.crashes: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_MOST_CRASHES)
        self.cpu: dict[int, float] = {}
        self._before: Snapshot | None = None

    def add(self, line: dict[str, Any]) -> None:
        """Note a line of a watch."""
        now, before = snapshot_of(line["at"], line["status"]), self._before
        self._before = now
        for event in line["events"]:
            if event["type"] == "Crashed":
                self.crashes.append((event["at"], event["crash"]))
        if before is None or now.at <= before.at:
            return
        point = point_between(before, now)
        rate = sum(point[name] for name in now.counts)
        took = sorted(row[_WAIT] + row[_RUN] for row in line["jobs"])
        self.moments.append(
            Moment(now.at, rate, quantile(took, 0.5), quantile(took, 0.99))
        )
        while self.moments and self.moments[0].at < now.at - SPAN:
            self.moments.popleft()
        self.cpu = {slot: 100 * share for slot, share in point["cpu"].items()}


def quantile(ordered: list[float], share: float) -> float | None:
    """Return what a *share* of sorted numbers does not exceed; ``None`` if there are none."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def sparkline(values: list[float | None], width: int) -> str:
    """Return the last *width* values as bars, of which the highest is full; ``None`` is a gap."""
    shown = values[-width:]
    top = max((value for value in shown if value is not None), default=0.0)
    bars = [" " if value is None else _bar(value, top) for value in shown]
    return "".join(bars).rjust(width)


def _bar(value: float, top: float) -> str:
    share = value / top if top > 0 else 0.0
    return _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]


# How a pool or server looks in a terminal that shows it until Ctrl-C.

_WIDTH = 60


def live_view(status: dict[str, Any], minute: LastMinute) -> RenderableType:
    """Return a pool or server with what happened to it in the last minute."""
    return Group(
        status_view(status, minute.cpu), _curves(status, minute), _crashes(minute)
    )


def _curves(status: dict[str, Any], minute: LastMinute) -> RenderableType:
    """Return the last minute, one line for each curve."""
    moments = list(minute.moments)
    if not moments:
        return Text()
    is_pool = status.get("kind") == "pool"
    table = Table.grid(padding=(0, 2, 0, 0))
    rates: list[float | None] = [moment.rate for moment in moments]
    what = "jobs/s" if is_pool else "connections/s"
    table.add_row(what, sparkline(rates, _WIDTH), f"{moments[-1].rate:,.0f}")
    if is_pool:
        for title, values in (
            ("p50", [moment.median for moment in moments]),
            ("p99", [moment.slowest for moment in moments]),
        ):
            known = [value for value in values if value is not None]
            last = known[-1] if known else None
            table.add_row(title, sparkline(values, _WIDTH), brief(last))
    return table


def _crashes(minute: LastMinute) -> RenderableType:
    lines: list[RenderableType] = []
    for at, crash in reversed(minute.crashes):
        when = time.strftime("%H:%M:%S", time.localtime(at))
        how = crash["signal"] or (
            "no process" if crash["exit_code"] is None else f"exit {crash['exit_code']}"
        )
        job = f" in {crash['function']}" if crash["function"] else ""
        tail = crash["stderr_tail"]
        last = (
            f": {tail[-1]}" if tail else f": {crash['detail']}" * bool(crash["detail"])
        )
        text = f"{when}  slot {crash['slot']}  {crash['kind']}, {how}{job}{last}"
        lines.append(
            Text(printable(text), style="red", no_wrap=True, overflow="ellipsis")
        )
    return Group(*lines)


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
