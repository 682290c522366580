"""Which part of a traceback concerns the user, if the traceback is already a text."""

from __future__ import annotations

# Paths of code that is not the user's.
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
    """Return a traceback without asyncpool's own frames; empty if there are no others."""
    kept: list[str] = []
    found = False
    hidden = -1  # the indentation of the frame that is left out
    for line in text.splitlines():
        content = line.lstrip(" |")  # exception groups have a margin
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
    # In a frozen program the paths begin at the packages.
    return path.startswith(_FROZEN) or any(part in f"/{path}" for part in _OURS)
