"""Bytes and seconds as people read them."""

from __future__ import annotations

_ROUND = 1000  # what fits into three digits


def size_text(size: float) -> str:
    """Return bytes as a short text."""
    for unit in ("B", "KB", "MB"):
        if size < _ROUND:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


def duration(seconds: float) -> str:
    """Return seconds as a short text."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"
