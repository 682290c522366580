"""How the jobs of a data-only pool come to this worker, and what it sends back."""

from __future__ import annotations

from contextvars import ContextVar

from asyncpool._core.codec.call_messages import load_call, load_value, pack_value
from asyncpool._core.codec.failures import pack_failure
from asyncpool._core.codec.formats import json_format
from asyncpool._core.codec.function_names import Place
from asyncpool._core.codec.worker_functions import DataFunction, WorkerFunctions
from asyncpool._core.pickling.out_of_band import OutOfBandPickle, ReceivedPickle
from asyncpool._core.pickling.serializers import WorkerSerializer

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from asyncpool._core.codec.call_messages import Payload

_ANY = Place()

# The function of the running job: its context goes with all that belongs to it.
_current: ContextVar[DataFunction] = ContextVar("asyncpool_data_function")


def serializer_of(config: bytes) -> WorkerSerializer:
    """Return how the calls and outcomes of this worker travel.

    Args:
        config: What the pool has said of its functions.
    """
    functions = WorkerFunctions(config)

    def load_job(
        payload: Payload, known: DataFunction | None = None
    ) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        if known is None:
            assert not isinstance(payload, ReceivedPickle)  # it comes in one piece
            known, payload = functions.split(payload)
        _current.set(known)
        args, kwargs = load_call(known.how, known.plan, payload)
        return known.function, args, kwargs

    return WorkerSerializer(
        load_function=functions.find,
        load_job=load_job,
        known_as=_known_as,
        pack_value=_pack_value,
        pack_item=_pack_item,
        pack_error=pack_failure,
        pack_details=_pack_details,
        load_details=_load_details,
    )


def _known_as(_: Callable[..., Any], known: DataFunction | None) -> object:
    return known or _current.get()


def _pack_value(value: Any, limit: int | None = None) -> bytes | OutOfBandPickle:
    known = _current.get()
    return pack_value(known.how, known.plan.result, value, "the job's result", limit)


def _pack_item(item: Any, limit: int | None = None) -> bytes | OutOfBandPickle:
    known = _current.get()
    return pack_value(known.how, known.plan.item, item, "an item of the stream", limit)


def _pack_details(details: object) -> bytes:
    # As JSON, whatever the codec: threads of a job may have no context that tells it.
    data = pack_value(json_format(), _ANY, details, "the details", None)
    return data if isinstance(data, bytes) else b"".join(data.pieces)


def _load_details(payload: bytes) -> Any:
    return load_value(json_format(), _ANY, payload, direction="details")
