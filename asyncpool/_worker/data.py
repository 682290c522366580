"""How the jobs of a data-only pool come to this worker, and what it sends back."""

from __future__ import annotations

import json
import pickle
from binascii import a2b_base64
from contextvars import ContextVar
from functools import cache

from asyncpool._wire.buffers import ReceivedPickle
from asyncpool._wire.formats import JSON, Format, Kind, PluggedFormat, format_of
from asyncpool._wire.pickling import WorkerSerializer
from asyncpool._wire.plain_data import in_one_piece
from asyncpool._wire.schemas import FunctionNames, Signature, pack_failure

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from asyncpool._wire.plain_data import Packed, Payload

# How many bytes say how long the description of a function is.
_SIZE = 4

# As JSON, whatever the codec: threads of a job may have no context that tells it.
_DETAILS = Kind(JSON, what="the details", direction="details")


class DataFunction:
    """A function that the pool has named.

    Attributes:
        function: The function.
        signature: What it takes and returns, in the format of its calls and outcomes.
    """

    def __init__(self, name: str, function: Callable[..., Any], how: Format) -> None:
        self.function = function
        self.signature = Signature(function, how)
        # By which current_job() names it.
        self.__module__, _, self.__qualname__ = name.partition(":")


# The function of the running job: its context goes with all that belongs to it.
_current: ContextVar[DataFunction] = ContextVar("asyncpool_data_function")


class DataWorkerSerializer(WorkerSerializer):
    """How the calls and outcomes of this worker travel.

    Args:
        config: What the pool has said of its functions.
    """

    pack_error = staticmethod(pack_failure)
    load_details: Callable[[bytes], Any] = staticmethod(_DETAILS.load)

    def __init__(self, config: bytes) -> None:
        self._names = FunctionNames(json.loads(config)["functions"])

    def load_function(self, description: bytes) -> DataFunction:
        """Return the function that the pool describes.

        Raises:
            Exception: If it cannot be imported, or may not be called.
        """
        fields = json.loads(description)
        name: str = fields["function"]
        function = self._names.find(name)
        return DataFunction(name, function, _format(fields["codec"]))

    def load_job(
        self, payload: Payload, known: DataFunction | None = None
    ) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        """Load a call; with the function if that is not *known*."""
        if known is None:
            assert not isinstance(payload, ReceivedPickle)  # it comes in one piece
            data = bytes(payload)
            end = _SIZE + int.from_bytes(data[:_SIZE])
            known, payload = self.load_function(data[_SIZE:end]), data[end:]
        _current.set(known)
        args, kwargs = known.signature.load(payload)
        return known.function, args, kwargs

    @staticmethod
    def known_as(function: Callable[..., Any], known: DataFunction | None) -> object:
        """Return what the context of a job has as its function."""
        del function
        return known or _current.get()

    @staticmethod
    def pack_value(value: Any, limit: int | None = None) -> Packed:
        """Pack what the running job returns."""
        return _current.get().signature.result.pack(value, limit)

    @staticmethod
    def pack_item(item: Any, limit: int | None = None) -> Packed:
        """Pack what the running stream yields."""
        return _current.get().signature.item.pack(item, limit)

    @staticmethod
    def pack_details(details: object) -> bytes:
        """Pack the details of a heartbeat."""
        return in_one_piece(_DETAILS.pack(details))


@cache
def _format(spec: str) -> Format:
    if spec in ("json", "msgspec"):
        return format_of(spec)
    # It comes from the pool, which this process trusts.
    return PluggedFormat(pickle.loads(a2b_base64(spec)))
