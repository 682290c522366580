"""How a program gets the pool of another process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from asyncpool._core.base.validation import TEXT, check_type
from asyncpool._core.codec.codec import Codec
from asyncpool._core.codec.data_only import DataOnly
from asyncpool._core.codec.formats import format_of
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._runtime.base.arguments import check_int, check_seconds
from asyncpool._runtime.options.worker_options import check_codec
from asyncpool.sharedpool._client import SharedPool

_UNIX = "unix:"


def connect(
    address: str,
    *,
    node_timeout: float | None = None,
    max_queued: int | None = None,
    codec: Literal["json", "msgspec"] | Codec | None = None,
    functions: Iterable[Callable[..., object] | str] | None = None,
    errors: Iterable[type[BaseException]] = (),
) -> SharedPool:
    """Return a pool that another process has, for ``async with``.

    Args:
        address: ``"unix:"`` and the path of the socket of a :class:`PoolServer`.
        node_timeout: Seconds without a sign of life after which the agent is lost, and with it
            the jobs that it has begun (:exc:`NodeLostError`).  At least the *client_timeout* of
            the :class:`PoolServer`; by default half as much again.
        max_queued: How many jobs of this client may wait here; ``None`` for no bound.  The agent
            has 1024 more at the most.
        codec: As that of the pool, which must have the same.
        functions: As in :class:`Pool`, for a pool with a codec.
        errors: Likewise.

    Raises:
        ValueError: If the address is no such one, *node_timeout* or *max_queued*
            not positive, or there are *functions* or *errors* without a *codec*.
        TypeError: If an argument is of the wrong type.
        ImportError: If the package of *codec* is not installed.
    """
    check_type("address", address, TEXT)
    if not address.startswith(_UNIX) or address == _UNIX:
        raise ValueError(f"address must be 'unix:PATH', not {address!r}")
    if node_timeout is not None:
        check_seconds("node_timeout", node_timeout)
    if max_queued is not None:
        check_int("max_queued", max_queued, at_least=1)
    check_codec(codec, functions=functions, errors=errors)
    data = None if codec is None else DataOnly(format_of(codec), functions, errors)
    return SharedPool(
        address.removeprefix(_UNIX),
        node_timeout=node_timeout,
        max_queued=max_queued,
        options=JobOptions(codec=None if data is None else data.how),
        data=data,
    )
