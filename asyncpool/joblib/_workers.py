"""What a worker does before its first batch."""

from __future__ import annotations

from collections.abc import Callable

from asyncpool.joblib import register


def prepare(initializer: Callable[..., object] | None, *initargs: object) -> None:
    """Let calls use the backend by its name too, and call *initializer*."""
    register()
    if initializer is not None:
        initializer(*initargs)
