"""The page of a flame graph: one file, with the data, the style and the script in it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable
from importlib import resources

from asyncpool._core.profile.flame_graph import lay_out
from asyncpool._core.profile.stack_counts import Stack

# Narrower rectangles than this part of the whole are left out: no screen is as wide.
_FINEST = 5000

# No text in the data can end the element that it is in, or begin another one.
_HARMLESS = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028"}
)


def flame_graph_page(
    stacks: list[tuple[Stack, int]],
    *,
    title: str,
    rate: float,
    facts: list[str],
    top: Iterable[tuple[str, int, int]],
) -> str:
    """Return the page.

    Args:
        stacks: The stacks and their samples.
        title: What it shows.
        rate: How many samples a worker has in a second.
        facts: What it says in words.
        top: The most frequent functions: the name, its own samples, and all of them.
    """
    least = sum(samples for _, samples in stacks) // _FINEST + 1
    names: dict[str, int] = {}
    rows = [
        (names.setdefault(name, len(names)), depth, start, samples)
        for name, depth, start, samples in lay_out(stacks, "all", least=least)
    ]
    data = {
        "names": list(names),
        "rows": rows,
        "rate": rate,
        "facts": facts,
        "top": list(top),
    }
    packed = json.dumps(data, separators=(",", ":")).translate(_HARMLESS)
    source = resources.files("asyncpool.profile").joinpath("flame_graph.html")
    page = source.read_text(encoding="utf-8")
    for element in ("style", "script"):
        # The browser runs nothing that has another hash.
        text = page.split(f"<{element}>")[1].split(f"</{element}>")[0]
        page = page.replace(f"@{element.upper()}@", _hash_of(text))
    before, after = page.split("@DATA@")
    return before.replace("@TITLE@", html.escape(title)) + packed + after


def _hash_of(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
