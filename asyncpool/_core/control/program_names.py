"""By which names commands find pools and servers."""

from __future__ import annotations

MAX_NAME = 64

# What such a name is, in words.
NAMES = (
    f"1 to {MAX_NAME} of A-Z, a-z, 0-9, '.', '-', '_' and ':', the first of them neither "
    "'.' nor '-'"
)
_IN_NAMES = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:"
)


def is_name(text: str) -> bool:
    """Tell whether this is a name that can be found, as it becomes a part of a path."""
    return (
        0 < len(text) <= MAX_NAME
        and set(text) <= _IN_NAMES
        and not text.startswith((".", "-"))
    )
