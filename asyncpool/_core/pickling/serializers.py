"""How the two ends of a pool turn calls, outcomes and details into bytes, and back.

A pool chooses once, and each function of the pool has the choice at hand.  :data:`PICKLE` and
:data:`PICKLE_WORKER` are the default; ``_core/codec`` has those of data-only pools.  They are
objects whose attributes are plain functions: for the path of a job that costs as much as a
global function.
"""

from __future__ import annotations

import pickle

from asyncpool._core.base.names import function_name
from asyncpool._core.pickling.calls import (
    dumps,
    load_details,
    load_job,
    load_value,
    pack_job,
    pack_value,
)
from asyncpool._core.pickling.errors import load_error, pack_error
from asyncpool._core.pickling.out_of_band import is_heavy

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from asyncpool._core.pickling.out_of_band import OutOfBandPickle


class Serializer:
    """The service's half; the functions have the arguments of those in :data:`PICKLE`.

    Attributes:
        pack_job: Packs a call.
        load_value: Loads a result.
        load_item: Loads an item of a stream.
        load_error: Loads what a job has raised.
        load_details: Loads the details of a heartbeat.
        is_heavy: Tells whether an outcome takes long to load.

    The functions that load raise a :exc:`ProtocolError` for what no worker of this pool would
    send, and a :exc:`JobNotPicklableError` for what cannot be had here.
    """

    __slots__ = (
        "is_heavy",
        "load_details",
        "load_error",
        "load_item",
        "load_value",
        "pack_job",
    )

    def __init__(
        self,
        *,
        pack_job: Callable[..., bytes | OutOfBandPickle],
        load_value: Callable[..., Any],
        load_item: Callable[..., Any],
        load_error: Callable[..., BaseException],
        load_details: Callable[[bytes], Any],
        is_heavy: Callable[..., bool],
    ) -> None:
        self.pack_job: Callable[..., bytes | OutOfBandPickle] = pack_job
        self.load_value: Callable[..., Any] = load_value
        self.load_item: Callable[..., Any] = load_item
        self.load_error: Callable[..., BaseException] = load_error
        self.load_details: Callable[[bytes], Any] = load_details
        self.is_heavy: Callable[..., bool] = is_heavy


class WorkerSerializer:
    """A worker's half; the functions have the arguments of those in :data:`PICKLE_WORKER`.

    Attributes:
        load_function: Loads what a ``FUNCTION`` frame carries.
        load_job: Loads a call.
        known_as: Returns what the context of a job has as its function, given the function, and
            what :attr:`load_function` has returned.
        pack_value: Packs what the running job returns.
        pack_item: Packs what the running stream yields.
        pack_error: Packs what a job raises.
        pack_details: Packs the details of a heartbeat.
        load_details: Loads these.
    """

    __slots__ = (
        "known_as",
        "load_details",
        "load_function",
        "load_job",
        "pack_details",
        "pack_error",
        "pack_item",
        "pack_value",
    )

    def __init__(
        self,
        *,
        load_function: Callable[[bytes], Any],
        load_job: Callable[..., Any],
        known_as: Callable[[Callable[..., Any], Any], object],
        pack_value: Callable[..., bytes | OutOfBandPickle],
        pack_item: Callable[..., bytes | OutOfBandPickle],
        pack_error: Callable[..., bytes],
        pack_details: Callable[[object], bytes],
        load_details: Callable[[bytes], Any],
    ) -> None:
        self.load_function: Callable[[bytes], Any] = load_function
        self.load_job: Callable[..., Any] = load_job
        self.known_as: Callable[[Callable[..., Any], Any], object] = known_as
        self.pack_value: Callable[..., bytes | OutOfBandPickle] = pack_value
        self.pack_item: Callable[..., bytes | OutOfBandPickle] = pack_item
        self.pack_error: Callable[..., bytes] = pack_error
        self.pack_details: Callable[[object], bytes] = pack_details
        self.load_details: Callable[[bytes], Any] = load_details


def _name(function: Callable[..., Any], _: object) -> str:
    return function_name(function)


PICKLE = Serializer(
    pack_job=pack_job,
    load_value=load_value,
    load_item=load_value,
    load_error=load_error,
    load_details=load_details,
    is_heavy=is_heavy,
)

PICKLE_WORKER = WorkerSerializer(
    load_function=pickle.loads,
    load_job=load_job,
    known_as=_name,
    pack_value=pack_value,
    pack_item=pack_value,
    pack_error=pack_error,
    pack_details=dumps,
    load_details=pickle.loads,
)
