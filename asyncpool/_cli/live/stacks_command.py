"""``asyncpool stacks``: where the jobs of a pool are, or what a server does."""

from __future__ import annotations

import json
from typing import Any

import click

from asyncpool._cli.live.reaching import asked, connected, status_of, which


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
