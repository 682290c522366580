"""What the workers of a cluster run, in the form in which they are told."""

from __future__ import annotations

from collections.abc import Callable

from asyncpool._core.base.validation import check_function
from asyncpool._core.pickling.out_of_band import dumps_call
from asyncpool._core.wire.messages import MAX_INITIALIZER
from asyncpool.errors import JobNotPicklableError


def pack_target(target: str | Callable[..., object]) -> str | bytes:
    """Bring what workers are to run into the form in which they are told.

    Raises:
        ValueError: If it is a name of nothing.
        TypeError: If it is neither a name nor callable.
        JobNotPicklableError: If it cannot be pickled, or is too large.
    """
    check_function("target", target)
    if isinstance(target, str):
        return target
    try:
        payload = dumps_call(target)
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
