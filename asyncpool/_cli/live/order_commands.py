"""``asyncpool kill``, ``recycle``, ``resize``, ``reload`` and ``stop``: change what runs."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from asyncpool._cli.live.reaching import asked, connected, status_of, which
from asyncpool._cli.parameters import CommandError, RefusedError, say
from asyncpool._core.options import MAX_WORKERS

# ``asyncpool stacks``: where the jobs of a pool are, or what a server does.


@click.command("stacks", short_help="Show where jobs are that run.")
@which
@click.option(
    "--job", type=click.IntRange(1, (1 << 63) - 1), help="Only this job, by its number."
)
@click.option("--slot", type=click.IntRange(0, 1 << 16), help="Only this worker.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stacks_command(
    *,
    name: str | None,
    control: str | None,
    job: int | None,
    slot: int | None,
    as_json: bool,
) -> None:
    """Show the Python stacks of what the workers run, the innermost call first.

    The jobs go on meanwhile.  Of an async job it is where its coroutine waits.
    """
    if job is not None and slot is not None:
        raise click.UsageError("--job names a slot already: leave --slot out")
    with connected(name, control) as client:
        # Before the stacks: a worker that is stopped keeps them back for two seconds, in which
        # the others go on to other jobs.
        status = status_of(client)
        stacks = asked(client, "stacks", job=job, slot=slot)["stacks"]
    if as_json:
        click.echo(json.dumps({"stacks": stacks}))
        return
    workers = {str(it["slot"]): it for it in status["slots"]}
    for index, text in sorted(stacks.items(), key=lambda each: int(each[0])):
        click.echo(_heading(index, workers.get(index, {})))
        click.echo(text.rstrip() or "  nothing runs")
        click.echo()


def _heading(slot: str, worker: dict[str, Any]) -> str:
    text = f"slot {slot}, process {worker.get('pid') or '-'}"
    for job in worker.get("running", ()):
        text += f", {job['function']} (job {job['job_id']}) for {job['seconds']:.1f} s"
    return text


_yes = click.option(
    "--yes", is_flag=True, help="Do it without asking; needed without a terminal."
)
_slot = click.IntRange(0, 1 << 16)


def _workers(text: str) -> int:
    """Return a number of workers; the type of an argument, before which there may be a name."""
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= MAX_WORKERS:
        raise click.BadParameter(
            f"{text!r} is no number of workers, 1 to {MAX_WORKERS}; it comes last: "
            "asyncpool resize shop 8"
        )
    return number


@click.command("kill", short_help="Kill a worker, which is replaced.")
@which
@click.option("--slot", type=_slot, required=True, help="Whose worker; see status.")
@_yes
def kill_command(
    *, name: str | None, control: str | None, slot: int, yes: bool
) -> None:
    """Kill the worker in a slot by SIGKILL; a fresh one takes its place.

    Its job has another attempt, or fails; connections of a server are cut.
    """
    with connected(name, control) as client:
        status = status_of(client)
        _confirm(status, f"SIGKILL for {_worker_in(status, slot)}", yes=yes)
        say(asked(client, "kill", slot=slot)["text"])


@click.command("recycle", short_help="Replace workers by fresh ones.")
@which
@click.option("--slot", type=_slot, help="Whose worker; all by default.")
@_yes
def recycle_command(
    *, name: str | None, control: str | None, slot: int | None, yes: bool
) -> None:
    """Replace the worker in a slot, or all of them, one after the other.

    Each works until its replacement is ready, and finishes what it has.  With --slot the
    command does not wait for that.  If a replacement does not start, the others stay, and the
    exit code is 1.
    """
    with connected(name, control) as client:
        status = status_of(client)
        who = "all workers" if slot is None else _worker_in(status, slot)
        _confirm(status, f"a fresh process instead of {who}", yes=yes)
        result = asked(client, "recycle", slot=slot)
    if result.get("reason"):
        raise RefusedError(result["text"])
    say(result["text"])


@click.command("resize", short_help="Change the number of workers.")
@which
@click.argument("workers", type=_workers)
@_yes
def resize_command(
    *, name: str | None, control: str | None, workers: int, yes: bool
) -> None:
    """Change the number of workers to WORKERS; surplus ones finish what they have.

    A pool, which was not made to be changed by a command, has to be confirmed.  One that
    grows and shrinks by itself does so no more.
    """
    with connected(name, control) as client:
        status = status_of(client)
        if status.get("kind") == "pool":
            now = status["workers"]
            _confirm(status, f"{workers} workers instead of {now}", yes=yes)
        result = asked(client, "resize", workers=workers)
    say(result["text"])


@click.command(
    "reload", short_help="Replace the workers of a server by ones with new code."
)
@which
def reload_command(*, name: str | None, control: str | None) -> None:
    """Replace the workers of a server, some at a time, by ones that load the code anew.

    Each serves until its successor is ready.  If new code cannot start, the workers that
    there are go on, and the exit code is 1.
    """
    with connected(name, control) as client:
        result = asked(client, "reload")
    if result["reason"]:
        raise RefusedError(result["text"])
    say(result["text"])


@click.command("stop", short_help="End a server.")
@which
@click.option("--now", is_flag=True, help="Cut off what is open, instead of draining.")
def stop_command(*, name: str | None, control: str | None, now: bool) -> None:
    """Let a server finish its connections and end, and wait for that."""
    with connected(name, control) as client:
        result = asked(client, "stop", now=now)
        client.wait_for_end()
    say(f"stopped: {result['name']}, process {result['pid']}")


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
    for job in there[slot].get("running", ()):
        text += (
            f", which has run {job['function']} (job {job['job_id']}) for "
            f"{job['seconds']:.1f} s"
        )
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
