"""``asyncpool profile``: where the time of a pool's jobs goes."""

from __future__ import annotations

from typing import Any

import click

from asyncpool._cli.live.reaching import asked, connected, which
from asyncpool._cli.parameters import CommandError, UnfinishedError, say
from asyncpool._observe.control.protocol import LONGEST_PROFILE, SHORTEST
from asyncpool.profile import Profile, ProfiledWorker, StackSamples

_MOST = 20


@click.command("profile", short_help="Show where the time of jobs goes.")
@which
@click.option(
    "--seconds",
    "-d",
    type=click.FloatRange(SHORTEST, LONGEST_PROFILE),
    default=5.0,
    show_default=True,
    help="For how long.",
)
@click.option("--slot", type=click.IntRange(0, 1 << 16), help="Only this worker.")
@click.option(
    "--function",
    metavar="NAME",
    help="Only jobs of this function, such as shop.resize.",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="Write a flame graph to FILE.html, or the stacks as text to any other file.",
)
def profile_command(
    *,
    name: str | None,
    control: str | None,
    seconds: float,
    slot: int | None,
    function: str | None,
    output: str | None,
) -> None:
    """Sample the stacks of the jobs of a pool, while they go on.

    Prints the functions that most samples have found: how many found it as the innermost
    call, how many as any call.  Needs no rights.
    """
    if function == "":
        raise CommandError("--function takes a name")
    with connected(name, control) as client:
        wanted = {"seconds": seconds, "slot": slot, "function": function}
        profile = _profile_in(asked(client, "profile", **wanted))
    for frame in profile.top(_MOST):
        click.echo(f"{frame.own:7,} {frame.total:7,}  {frame.name}")
    if output is not None:
        _write(profile, output)
    say(
        f"{profile.samples:,} samples in {profile.seconds:.3g} s, {profile.idle:,} idle"
    )


def _profile_in(reply: dict[str, Any]) -> Profile:
    """Return the profile that a pool has told of."""
    stacks: list[StackSamples] = []
    for text, samples in reply["stacks"]:
        function, *frames = text.split(";")
        stacks.append(
            StackSamples(function=function, frames=tuple(frames), samples=samples)
        )
    return Profile(
        pool=reply["pool"],
        seconds=reply["seconds"],
        rate=reply["rate"],
        slot=reply["slot"],
        function=reply["function"],
        stacks=tuple(stacks),
        workers=tuple(ProfiledWorker(**worker) for worker in reply["workers"]),
    )


def _write(profile: Profile, path: str) -> None:
    try:
        if path.endswith((".html", ".htm")):
            profile.write_html(path)
        else:
            with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - a text
                file.write(profile.collapsed())
    except OSError as error:
        raise UnfinishedError(f"cannot write {path}: {error.strerror}") from None
