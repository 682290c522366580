"""How the two ends of a pool turn calls, outcomes and details into bytes, and back.

A pool chooses once, and each function of the pool has the choice at hand.  The classes here are for
pickle; ``_core/codec/data_only.py`` and ``_worker/data.py`` derive those of data-only pools.  Their
attributes are plain functions: for the path of a job that costs as much as a global function.
"""

from __future__ import annotations

import pickle

from asyncpool._core.base.names import function_name
from asyncpool._core.pickling import calls, errors, out_of_band

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Packed = bytes | out_of_band.OutOfBandPickle


class Serializer:
    """The service's half.

    The functions that load raise a :exc:`ProtocolError` for what no worker of this pool would
    send, and a :exc:`JobNotPicklableError` for what cannot be had here.

    Attributes:
        pack_job: Packs a call.
        load_value: Loads a result.
        load_item: Loads an item of a stream.
        load_error: Loads what a job has raised.
        load_details: Loads the details of a heartbeat.
        is_heavy: Tells whether an outcome takes long to load.
    """

    __slots__ = ()

    pack_job: Callable[..., Packed] = staticmethod(calls.pack_job)
    load_value: Callable[..., Any] = staticmethod(calls.load_value)
    load_item: Callable[..., Any] = staticmethod(calls.load_value)
    load_error: Callable[..., BaseException] = staticmethod(errors.load_error)
    load_details: Callable[..., Any] = staticmethod(calls.load_details)
    is_heavy: Callable[..., bool] = staticmethod(out_of_band.is_heavy)


class WorkerSerializer:
    """A worker's half.

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

    load_function: Callable[[bytes], Any] = staticmethod(pickle.loads)
    load_job: Callable[..., Any] = staticmethod(calls.load_job)
    pack_value: Callable[..., Packed] = staticmethod(calls.pack_value)
    pack_item: Callable[..., Packed] = staticmethod(calls.pack_value)
    pack_error: Callable[..., bytes] = staticmethod(errors.pack_error)
    pack_details: Callable[[object], bytes] = staticmethod(calls.dumps)
    load_details: Callable[[bytes], Any] = staticmethod(pickle.loads)

    @staticmethod
    def known_as(function: Callable[..., Any], known: Any) -> object:
        del known
        return function_name(function)


PICKLE = Serializer()
PICKLE_WORKER = WorkerSerializer()
