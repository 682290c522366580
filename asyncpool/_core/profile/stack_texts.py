"""What a profile is as text and as a table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpool._core.profile.stack_counts import Stack


def collapse(stacks: Iterable[tuple[Stack, int]]) -> str:
    """Return the stacks in the format of ``flamegraph.pl``: one in a line, and its samples."""
    # Stacks that differ only in a character that the format does not have are one here.
    lines = Counter[str]()
    for (function, frames), samples in stacks:
        lines[";".join(map(_in_line, (function, *frames)))] += samples
    return "".join(f"{line} {samples}\n" for line, samples in lines.items())


def _in_line(name: str) -> str:
    return name.replace(";", ":").replace("\n", " ")


def count_frames(
    stacks: Iterable[tuple[Stack, int]],
) -> list[tuple[str, int, int]]:
    """Return each call with its samples: on top of the stack, and anywhere in it.

    A job without any calls of Python counts as a call of its function.  The calls that were
    on top most often come first.  A call that calls itself counts once in each sample.
    """
    own, total = Counter[str](), Counter[str]()
    for (function, frames), samples in stacks:
        calls = frames or (function,)
        own[calls[-1]] += samples
        for name in set(calls):
            total[name] += samples
    found = [(name, own[name], samples) for name, samples in total.items()]
    return sorted(found, key=lambda entry: (-entry[1], -entry[2], entry[0]))
