"""``asyncpool status``: how pools and servers stand, once or until Ctrl-C."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from asyncpool._cli import orders
from asyncpool._cli.parameters import (
    Exit,
    RefusedError,
    duration,
    seconds,
    size_text,
)
from asyncpool._observe.control.client import ControlClient
from asyncpool._observe.control.protocol import LONGEST, MAX_JOBS, SHORTEST, Request
from asyncpool._observe.history import History, histogram_of, times_of
from asyncpool._wire.text import printable
from asyncpool.errors import ProtocolError

_STATES = {"running": "green", "closing": "yellow", "broken": "red"}
_SLOTS = {"idle": "green", "busy": "cyan", "parked": "red", "stopping": "yellow"}

SPAN = 60.0  # s; the last minute
_MOST_CRASHES = 5
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


def _interval(text: str) -> float:
    """Return the seconds between two looks; the type of an option."""
    number = seconds(text)
    if number < SHORTEST:
        raise click.BadParameter(f"{text} is too often: {SHORTEST:g} s is the least")
    return number


@click.command("status", short_help="Show pools and servers that run.")
@orders.which
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
    *, name: str | None, control: str | None, as_json: bool, watch: bool, every: float
) -> None:
    """Show the pools and servers of this user: workers, queue or connections, memory.

    With --watch and one of them there are curves of the last minute, and the last crashes.
    Into a file or a pipe it prints all of that each time, one below the other.
    One that does not answer is told of, and the others are shown; the exit code is 1.
    """
    one_is_meant = name is not None or control is not None
    with contextlib.ExitStack() as stack:
        shown = _Shown(watch=watch)
        for each in [name] if one_is_meant else orders.living():
            try:
                client = stack.enter_context(orders.connected(each, control))
                shown.clients[each or control or ""] = client
            except RefusedError as error:
                shown.tell(error)
        rounds = shown.rounds(every if watch else None)
        ends = (KeyboardInterrupt, BrokenPipeError) if watch else ()
        with contextlib.suppress(*ends):
            if as_json:
                for status in itertools.chain.from_iterable(rounds):
                    click.echo(json.dumps(status))
            elif watch and len(shown.clients) == 1:
                _show(_watched(shown, every), again=True)
            else:
                views = (Group(*map(status_view, statuses)) for statuses in rounds)
                _show(views, again=watch)
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

    def rounds(self, every: float | None) -> Iterator[list[dict[str, Any]]]:
        """Yield their answers, once or as often; those that do not answer are asked no more."""
        while found := list(filter(None, map(self._status_of, list(self.clients)))):
            yield found
            if every is None:
                return
            time.sleep(every)

    def _status_of(self, name: str) -> dict[str, Any] | None:
        client = self.clients[name]
        try:
            return client.ask(Request("status"), within=orders.PATIENCE)
        except TimeoutError:
            why = orders.silent(client.pid)
        except ConnectionError:
            why = "" if self._watch else "has ended"
        except (OSError, ProtocolError) as error:
            why = f"cannot tell how it is: {error}"
        del self.clients[name]
        if why:
            self.tell(RefusedError(f"{name} {why}"))
        return None

    def tell(self, error: RefusedError) -> None:
        """Say why one is left out."""
        self.trouble = True
        error.show()


def _watched(shown: _Shown, every: float) -> Iterator[RenderableType]:
    """Yield how the only one looks, with the last minute, until it ends."""
    [(name, client)] = shown.clients.items()
    request = Request("watch", every=min(every, LONGEST), jobs=MAX_JOBS)
    history = History()
    try:
        for line in client.watch(request):
            history.add(line)
            yield live_view(line["status"], history)
    except ConnectionError:
        pass  # it has ended
    except (OSError, ProtocolError) as error:
        shown.tell(RefusedError(f"{name} cannot be watched: {error}"))


def _show(views: Iterable[RenderableType], *, again: bool) -> None:
    """Print one view, or one after the other: at the same place of a terminal."""
    console, is_terminal = Console(highlight=False), sys.stdout.isatty()
    if again and is_terminal:
        with Live(console=console, auto_refresh=False, screen=False) as live:
            for view in views:
                live.update(view, refresh=True)
        return
    for view in views:
        with console.capture() as capture:
            console.print(view, soft_wrap=not is_terminal)
        click.echo(capture.get(), nl=again)  # behind each an empty line, and at once


# How one looks in a terminal.


def status_view(
    status: dict[str, Any], cpu: dict[int, float] | None = None
) -> RenderableType:
    """Return an answer to ``status`` for a terminal.

    Args:
        status: The answer.
        cpu: By slot, the percentage of a core that its worker uses, if that is known.
    """
    name, state, which = status["name"], status["state"], status["which"]
    # A server of an older version does not say what it is.
    is_pool = status.get("kind") == "pool"
    what = (
        "pool" if is_pool else f"{status['spread']}  {'  '.join(status['addresses'])}"
    )
    head = Text.assemble(
        (name, "bold"),
        f"  pid {status['pid']}  ",
        (state, _STATES.get(state, "")),
        f"  {what}",
        (f"  {which}" if which != name else "", "dim"),
    )
    return Group(head, *(_pool if is_pool else _server)(status, cpu or {}))


def _pool(status: dict[str, Any], cpu: dict[int, float]) -> Iterator[RenderableType]:
    slots: list[dict[str, Any]] = status["slots"]
    queue = f"{status['queued']:,} queued"
    if status["queued"]:
        queue += f", the oldest for {status['oldest_queued']:.3g} s"
    ended = status["completed"] + status["failed"] + status["cancelled"]
    raised = sum(row["jobs"].get("raised", 0) for row in status["functions"])
    yield Text.assemble(
        f"{status['idle'] + status['busy']} of {status['workers']} workers ready   ",
        (queue, "yellow" if status["queued"] else ""),
        f"   {ended:,} jobs ended: {raised:,} raised, {status['failed']:,} failed, ",
        f"{status['timeouts']:,} late   ",
        (f"{status['crashes']:,} crashes", "yellow" if status["crashes"] else ""),
        f"   {size_text(sum(slot['memory'] for slot in slots))}",
    )
    losses = [
        f"{name.replace('_', ' ')}: {status[name]:,}"
        for name in ("lost_nodes", "lost_clients", "refused_clients")
        if status.get(name)
    ]
    if losses:
        yield Text("   ".join(losses), "yellow")
    if nodes := status.get("nodes"):
        titles = "node,state,slots,jobs,queued,busy,crashes,CPU,memory"
        yield _table(titles, map(_node_row, nodes))
    titles = "slot,pid,state,jobs,up,CPU,memory,for,function"
    yield _table(titles, (_slot_row(slot, cpu.get(slot["slot"])) for slot in slots))


def _node_row(node: dict[str, Any]) -> Iterator[str | Text]:
    yield node["name"]
    silent = Text(f"silent for {node['silent']:.0f} s", "red")
    yield silent if node["suspected"] else Text("ready", "green")
    yield f"{node['first_slot']}+"
    yield f"{node['jobs']:,}"
    yield f"{node['queued']:,}"
    yield f"{node['busy']:,}/{node['workers']:,}"
    yield Text(f"{node['crashes']:,}", "yellow" if node["crashes"] else "")
    yield duration(node["cpu"])
    yield size_text(node["memory"])


def _slot_row(slot: dict[str, Any], cpu: float | None) -> Iterator[str | Text]:
    running = slot["running"]
    yield str(slot["slot"])
    yield str(slot["pid"] or "-")
    yield Text(slot["state"], _SLOTS.get(slot["state"], ""))
    yield f"{slot['jobs']:,}"
    yield duration(slot["uptime"])
    yield _cpu_text(slot, cpu)
    yield size_text(slot["memory"])
    if not running:
        return
    # The job that runs for longest, and how many others.
    job = max(running, key=lambda job: job["seconds"])
    again = f", attempt {job['attempt']}" if job["attempt"] > 1 else ""
    others = f" and {len(running) - 1} more" if len(running) > 1 else ""
    text = f"{job['function']} (job {job['job_id']}{again}){others}"
    yield f"{job['seconds']:.1f} s"
    yield Text(text, no_wrap=True, overflow="ellipsis")


def _server(status: dict[str, Any], cpu: dict[int, float]) -> Iterator[RenderableType]:
    slots: list[dict[str, Any]] = status["slots"]
    # Of a cluster of an older version there is no such figure.
    lost = status.get("lost", 0)
    yield Text.assemble(
        f"{sum(slot['ready'] for slot in slots)} of {status['workers']} workers ready   "
        f"{sum(slot['connections'] for slot in slots):,} connections open, "
        f"{status['handed']:,} in all   ",
        (f"{status['restarts']:,} restarts", "yellow" if status["restarts"] else ""),
        f", {status['crashes']:,} crashes   ",
        (f"{lost:,} lost for want of descriptors   " if lost else "", "red"),
        size_text(sum(slot["memory"] for slot in slots)),
    )
    told = status.get("requests", {})
    if told.get("responses"):
        yield _requests(told)
    titles = "slot,gen,pid,state,open,in all,p99,up,CPU,memory"  # 80 columns hold them
    yield _table(titles, (_server_row(slot, cpu.get(slot["slot"])) for slot in slots))


def _requests(told: dict[str, Any]) -> Text:
    line = Text("responses ")
    for status, durations in sorted(told["responses"].items()):
        took = histogram_of(durations)
        times = f"{brief(took.quantile(0.5))}, 99%: {brief(took.quantile(0.99))}"
        line.append(f"  {status} {took.count:,}", "yellow" if status == "5xx" else "")
        line.append(f" ({times})", "dim")
    line.append(f"   {told['open']:,} open, {told['refused']:,} refused, ")
    line.append(f"{told['cut']:,} cut off", "yellow" if told["cut"] else "")
    if late := told.get("timed_out", 0):
        line.append(f", {late:,} timed out", "yellow")
    return line


def _server_row(slot: dict[str, Any], cpu: float | None) -> Iterator[str | Text]:
    yield str(slot["slot"])
    yield str(slot["generation"])
    yield str(slot["pid"] or "-")
    # One that serves is idle as far as jobs go.
    style = "red" if slot["state"] == "busy" else ""
    yield Text("ready", "green") if slot["ready"] else Text(slot["state"], style)
    yield f"{slot['connections']:,}"
    yield f"{slot['handed']:,}"
    took = times_of(slot.get("requests", {}).get("responses", {}).values())
    yield brief(took.quantile(0.99) if took.count else None)
    yield duration(slot["uptime"])
    yield _cpu_text(slot, cpu)
    yield size_text(slot["memory"])


def _cpu_text(slot: dict[str, Any], cpu: float | None) -> str:
    """Return which part of a core a worker uses: *cpu*, or else the mean since its start."""
    if cpu is None:
        uptime, used = slot["uptime"], slot.get("cpu", 0.0)
        cpu = 100 * used / uptime if uptime > 0 else 0.0
    return f"{cpu:.0f}%"


def _table(titles: str, rows: Iterable[Iterable[str | Text]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    # Those that give way: a function is cut off, and a node goes on in the next line.
    ways: dict[str, Any] = {"function": "ellipsis", "node": "fold"}
    for title in titles.split(","):
        way = ways.get(title)
        side: Any = "left" if way or title == "state" else "right"
        table.add_column(
            title, justify=side, no_wrap=not way, overflow=way or "ellipsis"
        )
    for row in rows:
        table.add_row(*row)
    return table


def brief(seconds: float | None) -> str:
    """Return a duration in three digits and a unit."""
    if seconds is None:
        return "-"
    most = 999.5  # what is shown as 1000 with three digits
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < size * most:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < most else f"{seconds:,.0f} s"


# The last minute.


def live_view(status: dict[str, Any], history: History) -> RenderableType:
    """Return a pool or server with what happened to it in the last minute."""
    points = history.points()
    points = [point for point in points if point["at"] >= points[-1]["at"] - SPAN]
    newest = points[-1] if points else {"cpu": {}}
    cpu = {slot: 100 * share for slot, share in newest["cpu"].items()}
    rows = {"jobs/s": "rate", "p50": "p50", "p99": "p99"}
    if "handed" in newest:  # a server, which may count no requests
        rows = {"connections/s": "handed"}
        if status.get("requests", {}).get("responses"):
            rows = {"requests/s": "rate", "p50": "p50", "p99": "p99", **rows}
    curves = Table.grid(padding=(0, 2, 0, 0))
    for title, name in rows.items() if points else ():
        values = [point[name] for point in points]
        last = next((it for it in reversed(values) if it is not None), None)
        text = brief(last) if title == name else f"{last:,.0f}"
        curves.add_row(title, sparkline(values, _WIDTH), text)
    crashes = history.crashes()[-_MOST_CRASHES:]
    # An empty line stands for curves that are not there yet.
    return Group(
        status_view(status, cpu),
        curves if points else Text(),
        *map(_crash, reversed(crashes)),
    )


def sparkline(values: list[float | None] | list[float], width: int) -> str:
    """Return the last *width* values as bars, of which the highest is full; ``None`` is a gap."""
    shown = values[-width:]
    top = max((value for value in shown if value is not None), default=0.0)
    text = ""
    for value in shown:
        share = value / top if value and top > 0 else 0.0
        bar = _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]
        text += " " if value is None else bar
    return text.rjust(width)


def _crash(crash: dict[str, Any]) -> Text:
    when = time.strftime("%H:%M:%S", time.localtime(crash["at"]))
    code = crash["exit_code"]
    how = crash["signal"] or ("no process" if code is None else f"exit {code}")
    job = f" in {crash['function']}" if crash["function"] else ""
    last = (*crash["stderr"][-1:], crash["detail"])[0]
    text = f"{when}  slot {crash['slot']}  {crash['kind']}, {how}{job}"
    text += f": {last}" if last else ""
    return Text(printable(text), style="red", no_wrap=True, overflow="ellipsis")
