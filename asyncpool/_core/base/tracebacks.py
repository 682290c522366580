"""Which part of a traceback its reader can do something about, of one that is a text already."""

from __future__ import annotations

# What says nothing about the user's code.
_OURS = (
    "/asyncpool/_core/",
    "/asyncpool/_worker/",
    "/asyncpool/cluster/",
    "/asyncio/",
    "/importlib/",
    "/site-packages/uvicorn/",
)
_FROZEN = "<frozen "


def users_own(text: str) -> str:
    """Return a traceback without the frames that are ours; empty if there are no others."""
    kept: list[str] = []
    found = False
    hidden = -1  # how far the line of the frame is indented that is left out
    for line in text.splitlines():
        content = line.lstrip(" |")  # groups of exceptions have a margin
        depth = len(line) - len(content)
        if 0 <= hidden < depth:
            continue
        hidden = -1
        if depth and content.startswith('File "'):
            if _is_ours(content.split('"')[1]):
                hidden = depth
                continue
            found = True
        kept.append(line)
    return "\n".join(kept).rstrip() if found else ""


def _is_ours(path: str) -> bool:
    return path.startswith(_FROZEN) or any(part in path for part in _OURS)
