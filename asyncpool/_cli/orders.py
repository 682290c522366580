"""Commands that ask a pool or server that runs, or change it, and how they find it."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import textwrap
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import click

from asyncpool._cli.parameters import CommandError, RefusedError, UnfinishedError, say
from asyncpool._core.options import MAX_WORKERS
from asyncpool._engine.machine import is_stopped
from asyncpool._observe.control.client import ControlClient
from asyncpool._observe.control.protocol import LONGEST_PROFILE, SHORTEST, Request
from asyncpool._observe.control.socket_files import live_names, path_of, private_folder
from asyncpool._wire.text import printable
from asyncpool.errors import ProtocolError

PATIENCE = 10.0  # s, for a process that is stopped, or busy

_SLOT = click.IntRange(0, 1 << 16)
_FUNCTIONS = 20  # that a profile prints


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
        with_name = option(with_name)
    return with_name


def about_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says which pool or server is meant, and call *function* with its client."""

    @which
    @functools.wraps(function)
    def connect(*, name: str | None, control: str | None, **others: Any) -> None:
        with connected(name, control) as client:
            function(client, **others)

    return connect


@contextlib.contextmanager
def connected(name: str | None, control: str | None) -> Generator[ControlClient]:
    """Connect to what is meant: the only one that runs, unless there is a name or a path.

    Raises:
        CommandError: If it is not there, or it is not clear which.
    """
    try:
        if name is None and control is None:
            name, *others = living()
            if others:
                all_of_them = " | ".join((name, *others))
                raise CommandError(f"there are several, say which: {all_of_them}")
        path = control or path_of(name or "")
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
        there = ", ".join(_names()) or "none at all"
        raise RefusedError(
            f"there is no pool or server {where}; there is {there}"
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
    if names := _names():
        return names
    raise RefusedError(
        f"no pool or server of yours is found in {private_folder(make=False)}: a pool "
        "needs Pool(control=True), or ASYNCPOOL_CONTROL=1; if its control socket is "
        "elsewhere, name it: --control PATH"
    )


def _names() -> list[str]:
    try:
        return live_names()
    except OSError as error:
        raise RefusedError(str(error)) from None


def asked(client: ControlClient, action: str, **fields: Any) -> dict[str, Any]:
    """Return the answer to a request, however long it takes.

    Raises:
        RefusedError: If the other side does not answer at all, cannot do it, or has ended.
    """
    try:
        # A stopped process would carry an order out later, so its status comes first.
        found = client.ask(Request("status"), within=PATIENCE)
        if action != "status":
            # Without a limit: it takes as long as connections or jobs do.
            found = client.ask(Request(action, **fields))
    except TimeoutError:
        raise RefusedError(f"it {silent(client.pid)}") from None
    except ProtocolError as error:
        raise RefusedError(str(error)) from None
    except OSError as error:
        raise RefusedError(error.strerror or str(error)) from None
    return found


def silent(pid: int | None) -> str:
    """Return the error about a process that does not answer: its pid, and what to do."""
    text = f"has not answered for {PATIENCE:g} s"
    if pid is None:
        return f"{text}: its process is stopped, or hangs"
    end = f"kill -KILL {pid} ends it and its workers"
    if is_stopped(pid):
        return f"{text}: process {pid} is stopped; kill -CONT {pid} has it go on, {end}"
    return f"{text}: process {pid} hangs, or has too much to do; {end}"


# The commands.

_yes = click.option(
    "--yes", is_flag=True, help="Do it without asking; needed without a terminal."
)


@click.command("stacks", short_help="Show where jobs are that run.")
@about_one
@click.option(
    "--job", type=click.IntRange(1, (1 << 63) - 1), help="Only this job, by its number."
)
@click.option("--slot", type=_SLOT, help="Only this worker.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stacks_command(
    client: ControlClient, *, job: int | None, slot: int | None, as_json: bool
) -> None:
    """Show the Python stacks of what the workers run, the innermost call first.

    The jobs go on meanwhile.  Of an async job it is where its coroutine waits.
    """
    if job is not None and slot is not None:
        raise click.UsageError("--job names a slot already: leave --slot out")
    # Before the stacks: a worker that is stopped keeps them back for two seconds, in which
    # the others go on to other jobs.
    status = asked(client, "status")
    stacks = asked(client, "stacks", job=job, slot=slot)["stacks"]
    if as_json:
        click.echo(json.dumps({"stacks": stacks}))
        return
    workers = {str(it["slot"]): it for it in status["slots"]}
    for index, text in sorted(stacks.items(), key=lambda each: int(each[0])):
        worker = workers.get(index, {})
        heading = f"slot {index}, process {worker.get('pid') or '-'}"
        for job_text, seconds in _running(worker):
            heading += f", {job_text} for {seconds}"
        click.echo(heading)
        click.echo(text.rstrip() or "  nothing runs")
        click.echo()


@click.command("requests", short_help="Show the requests that a server answers now.")
@about_one
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def requests_command(client: ControlClient, *, as_json: bool) -> None:
    """Show the requests that a server has not answered yet, the oldest first.

    Of an async application, where each waits: the chain of its awaits.
    """
    if asked(client, "status").get("kind") == "pool":
        raise RefusedError("a pool has no requests: 'asyncpool stacks' shows its jobs")
    found = asked(client, "requests")["requests"]
    if as_json:
        click.echo(json.dumps({"requests": found}))
        return
    for it in found:
        what = printable(f"{it['method']} {it['path']}")
        whose = f"from {it['client']}, slot {it['worker']}"
        click.echo(f"{what} for {it['age']:.1f} s, {whose}")
        if it["stack"]:
            click.echo(textwrap.indent(it["stack"].rstrip(), "  "))
    if not found:
        click.echo("no request is open")


@click.command("profile", short_help="Show where the time of jobs goes.")
@about_one
@click.option(
    "--seconds",
    "-d",
    type=click.FloatRange(SHORTEST, LONGEST_PROFILE),
    default=5.0,
    show_default=True,
    help="For how long.",
)
@click.option("--slot", type=_SLOT, help="Only this worker.")
@click.option("--function", help="Only jobs of this function, such as shop.resize.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="Write a flame graph to FILE.html, or the stacks as text to any other file.",
)
def profile_command(
    client: ControlClient, *, output: str | None, **wanted: Any
) -> None:
    """Sample the stacks of the jobs of a pool, while they go on.

    Prints the functions that most samples have found: how many found it as the innermost
    call, how many as any call.  Needs no rights.
    """
    # It takes longer to import than all else here.
    from asyncpool.profile import (  # noqa: PLC0415
        Profile,
        ProfiledWorker,
        StackSamples,
    )

    if wanted["function"] == "":
        raise CommandError("--function takes a name")
    told = asked(client, "profile", **wanted)
    about = ("pool", "seconds", "rate", "slot", "function")
    profile = Profile(
        stacks=tuple(
            StackSamples(function=function, frames=tuple(frames), samples=samples)
            for text, samples in told["stacks"]
            for function, *frames in [text.split(";")]
        ),
        workers=tuple(ProfiledWorker(**worker) for worker in told["workers"]),
        **{name: told[name] for name in about},
    )
    for frame in profile.top(_FUNCTIONS):
        click.echo(f"{frame.own:7,} {frame.total:7,}  {frame.name}")
    try:
        if output is not None and output.endswith((".html", ".htm")):
            profile.write_html(output)
        elif output is not None:
            Path(output).write_text(profile.collapsed(), encoding="utf-8")
    except OSError as error:
        raise UnfinishedError(f"cannot write {output}: {error.strerror}") from None
    say(
        f"{profile.samples:,} samples in {profile.seconds:.3g} s, {profile.idle:,} idle"
    )


@click.command("kill", short_help="Kill a worker, which is replaced.")
@about_one
@click.option("--slot", type=_SLOT, required=True, help="Whose worker; see status.")
@_yes
def kill_command(client: ControlClient, *, slot: int, yes: bool) -> None:
    """Kill the worker in a slot by SIGKILL; a fresh one takes its place.

    Its job has another attempt, or fails; connections of a server are cut.
    """
    status = asked(client, "status")
    _confirm(status, f"SIGKILL for {_worker_in(status, slot)}", yes=yes)
    say(asked(client, "kill", slot=slot)["text"])


@click.command("recycle", short_help="Replace workers by fresh ones.")
@about_one
@click.option("--slot", type=_SLOT, help="Whose worker; all by default.")
@_yes
def recycle_command(client: ControlClient, *, slot: int | None, yes: bool) -> None:
    """Replace the worker in a slot, or all of them, one after the other.

    Each works until its replacement is ready, and finishes what it has.  With --slot the
    command does not wait for that.  If a replacement does not start, the others stay, and the
    exit code is 1.
    """
    status = asked(client, "status")
    who = "all workers" if slot is None else _worker_in(status, slot)
    _confirm(status, f"a fresh process instead of {who}", yes=yes)
    _say_roll(asked(client, "recycle", slot=slot))


def _workers(text: str) -> int:
    """Return a number of workers; the type of an argument, before which there may be a name."""
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= MAX_WORKERS:
        raise click.BadParameter(
            f"{text!r} is no number of workers, 1 to {MAX_WORKERS}; it comes last: "
            "asyncpool resize shop 8"
        )
    return number


@click.command("resize", short_help="Change the number of workers.")
@about_one
@click.argument("workers", type=_workers)
@_yes
def resize_command(client: ControlClient, *, workers: int, yes: bool) -> None:
    """Change the number of workers to WORKERS; surplus ones finish what they have.

    A pool, which was not made to be changed by a command, has to be confirmed.  One that
    grows and shrinks by itself does so no more.
    """
    status = asked(client, "status")
    if status.get("kind") == "pool":
        change = f"{workers} workers instead of {status['workers']}"
        _confirm(status, change, yes=yes)
    say(asked(client, "resize", workers=workers)["text"])


@click.command(
    "reload", short_help="Replace the workers of a server by ones with new code."
)
@about_one
def reload_command(client: ControlClient) -> None:
    """Replace the workers of a server, some at a time, by ones that load the code anew.

    Each serves until its successor is ready.  If new code cannot start, the workers that
    there are go on, and the exit code is 1.
    """
    _say_roll(asked(client, "reload"))


def _say_roll(result: dict[str, Any]) -> None:
    if result.get("reason"):
        raise RefusedError(result["text"])
    say(result["text"])


@click.command("stop", short_help="End a server.")
@about_one
@click.option("--now", is_flag=True, help="Cut off what is open, instead of draining.")
def stop_command(client: ControlClient, *, now: bool) -> None:
    """Let a server finish its connections and end, and wait for that."""
    result = asked(client, "stop", now=now)
    client.wait_for_end()
    say(f"stopped: {result['name']}, process {result['pid']}")


def _running(worker: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a worker runs, and for how long."""
    return [
        (f"{job['function']} (job {job['job_id']})", f"{job['seconds']:.1f} s")
        for job in worker.get("running", ())
    ]


def _worker_in(status: dict[str, Any], slot: int) -> str:
    """Return what a worker is called, and what it does now.

    Raises:
        RefusedError: If there is none.
    """
    there = {it["slot"]: it for it in status["slots"] if it["pid"] is not None}
    if slot not in there:
        known = ", ".join(map(str, there)) or "none"
        raise RefusedError(
            f"there is no worker in slot {slot}; slots with one: {known}"
        )
    text = f"worker {there[slot]['pid']} in slot {slot}"
    for job, seconds in _running(there[slot]):
        text += f", which has run {job} for {seconds}"
    return text


def _confirm(status: dict[str, Any], what: str, *, yes: bool) -> None:
    """Have the user type the name of what is going to be changed.

    Raises:
        CommandError: If there is no terminal.
        RefusedError: If it is another name.
    """
    if yes:
        return
    name = status["name"]
    if not sys.stdin.isatty():
        raise CommandError(
            f"nothing was done to {name}: there is no terminal to confirm it at; add --yes"
        )
    say(f"{name}, process {status['pid']}: {what}")
    typed: str = click.prompt(
        "Type the name to go on", default="", show_default=False, err=True
    )
    if typed.strip() != name:
        raise RefusedError(f"nothing was done: {typed!r} is not {name!r}")
