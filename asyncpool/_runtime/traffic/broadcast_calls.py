"""The calls of broadcasts, which a thread pickles in one piece: a worker's configuration has no other."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING, Any

from asyncpool._core.main.main_module import Abroad
from asyncpool._core.pickling.out_of_band import StreamTooLongError, dump
from asyncpool._core.pickling.serializers import PICKLE, Serializer
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.wire.messages import MAX_BROADCASTS
from asyncpool._runtime.base.threads import Pause, Threads
from asyncpool._runtime.traffic.large_jobs import Call, unpicklable
from asyncpool.errors import JobNotPicklableError, PoolClosedError

if TYPE_CHECKING:  # few pools have a codec
    from asyncpool._core.codec.data_only import DataOnly
    from asyncpool._core.codec.formats import Format


def check_broadcast(options: JobOptions) -> None:
    """Check that a broadcast can have these options.

    Raises:
        ValueError: If it cannot.
    """
    if options.key is not None or options.lease is not None:
        raise ValueError("a broadcast is for every worker: it has no key, no lease")


def serializer_of(
    data: DataOnly | None, function: Any, options: JobOptions
) -> Serializer:
    """Return what loads the results of a broadcast of *function*."""
    if data is None:
        return PICKLE
    return data.serializer_of(function, options.codec or data.how)


async def pack_broadcast(
    threads: Threads,
    data: DataOnly | None,
    call: Call,
    options: JobOptions,
    *,
    abroad: bool = False,
) -> bytes:
    """Return the call of a broadcast, pickled.

    Args:
        threads: They pickle it.
        data: What calls may be, if the pool is data only.
        call: The function and its arguments.
        options: Those of the broadcast.
        abroad: Whether the workers are another program's.

    Raises:
        JobNotPicklableError: If it cannot be pickled.
        ValueError: If it is too large.
        PoolClosedError: If the threads are closed meanwhile.

    Cancellation:
        Safe.
    """
    unwanted, pack = threading.Event(), _pack_abroad if abroad else _pack
    if data is not None:
        pack = functools.partial(_pack_data, data, options.codec or data.how)
    packing = threads.pickle(pack, call, unwanted=unwanted.is_set)
    try:
        await asyncio.wait([packing])
    finally:
        unwanted.set()
        packing.cancel()  # if the caller was cancelled before it was done
    if packing.cancelled():
        raise PoolClosedError
    error = packing.exception()
    if isinstance(error, StreamTooLongError):
        raise ValueError(  # noqa: TRY004 - of the argument, which is too large
            f"the call has more than {MAX_BROADCASTS} bytes when pickled, which is "
            "the most, since every new worker gets it: have the function load "
            "large objects itself, for example from a file"
        )
    if isinstance(error, JobNotPicklableError):
        raise error
    if error is not None:  # even a SystemExit, since an argument has raised it
        raise unpicklable(error)
    return packing.result()


def _pack(call: tuple[Any, ...], pause: Pause) -> bytes:
    return b"".join(dump(call, limit=MAX_BROADCASTS, pause=pause, in_band=True).pieces)


def _pack_abroad(call: tuple[Any, ...], pause: Pause) -> bytes:
    with Abroad():
        return _pack(call, pause)


def _pack_data(
    data: DataOnly, how: Format, call: tuple[Any, ...], pause: Pause
) -> bytes:
    pause()
    function, args, kwargs = call
    payload = data.pack_alone(function, args, kwargs, how)
    if len(payload) > MAX_BROADCASTS:
        raise StreamTooLongError
    return payload
