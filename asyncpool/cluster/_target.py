"""What the workers of a cluster run, in the form in which they are told."""

from __future__ import annotations

from collections.abc import Callable

from asyncpool._core.messages import MAX_INITIALIZER
from asyncpool._core.outcome import dumps
from asyncpool.errors import JobNotPicklableError

__all__ = ["pack_target"]


def pack_target(target: str | Callable[..., object]) -> str | bytes:
    """Bring what workers are to run into the form in which they are told.

    Raises:
        ValueError: If it is a name of nothing.
        TypeError: If it is neither a name nor callable.
        JobNotPicklableError: If it cannot be pickled, or is too large.
    """
    if isinstance(target, str):
        module, colon, name = target.partition(":")
        if not (module and colon and name):
            raise ValueError(
                f"target must be 'package.module:function', not {target!r}"
            )
        return target
    if not callable(target):
        raise TypeError(f"target must be a function, or its name, not {target!r}")
    try:
        payload = dumps(target)
    except Exception as error:
        raise JobNotPicklableError(
            f"target cannot be pickled: {error}", direction="arguments", name="target"
        ) from error
    if len(payload) > MAX_INITIALIZER:
        raise JobNotPicklableError(
            f"target has {len(payload)} bytes when pickled, and {MAX_INITIALIZER} is "
            "the most",
            direction="arguments",
            name="target",
        )
    return payload
