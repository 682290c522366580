"""The service's half of a pool that is data only."""

from __future__ import annotations

import json
import pickle
from binascii import b2a_base64
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from asyncpool._core.functions import FunctionTable
from asyncpool._wire.buffers import HEAVY, SURELY_QUICK, OutOfBandPickle, ReceivedPickle
from asyncpool._wire.formats import JSON, Format, Kind
from asyncpool._wire.frames import MAX_NUMBER
from asyncpool._wire.pickling import Serializer
from asyncpool._wire.plain_data import in_one_piece
from asyncpool._wire.schemas import FunctionNames, Signature, load_failure, registered
from asyncpool._wire.scripts import CACHED
from asyncpool.errors import JobNotPicklableError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from asyncpool._core.figures import FunctionTotals

_DETAILS = Kind(JSON, what="the details of a heartbeat", direction="details")


class DataOnly:
    """What a pool with a codec adds to its functions.

    Args:
        how: The format of its calls and outcomes.
        functions: The functions that its workers may call; ``None`` for all.
        errors: The classes of exceptions that come home as themselves.

    Attributes:
        how: The format.
        names: The functions.
        errors: The classes, by name.

    Raises:
        ValueError: If a function is named wrongly.
        TypeError: If a function has no name, or an error is no class of exceptions.
    """

    def __init__(
        self,
        how: Format,
        functions: Iterable[object] | None = None,
        errors: Iterable[type[BaseException]] = (),
    ) -> None:
        self.how: Format = how
        self.names: FunctionNames = FunctionNames(functions)
        self.errors: dict[str, type[BaseException]] = registered(errors)
        # There may be a view with a new codec for each job.
        self._spec = lru_cache(16)(_spec)

    @property
    def config(self) -> bytes:
        """What a worker is told of it."""
        return json.dumps({"functions": self.names.allowed}).encode()

    def describe(self, function: Callable[..., Any], how: Format) -> bytes:
        """Return what tells a worker of *function*, and in which format its calls are.

        Raises:
            JobNotPicklableError: If it has no name, or may not be called.
        """
        name = self.names.name_of(function)
        return json.dumps({"function": name, "codec": self._spec(how)}).encode()

    def serializer_of(
        self, function: Callable[..., Any], how: Format
    ) -> DataSerializer:
        """Return how the calls and outcomes of *function* travel."""
        return DataSerializer(self, Signature(function, how))

    def pack_alone(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        how: Format,
    ) -> bytes:
        """Return a call in one piece, for a worker that may not know the function.

        Raises:
            JobNotPicklableError: If it cannot be sent.
        """
        head = self.describe(function, how)
        call = Signature(function, how).pack(args, kwargs, in_band=True)
        return len(head).to_bytes(4) + head + in_one_piece(call)


class DataSerializer(Serializer):
    """How the calls and outcomes of one function travel in a data-only pool."""

    __slots__ = ("_names", "_signature", "load_error", "load_item", "load_value")

    def __init__(self, data: DataOnly, signature: Signature) -> None:
        self._names = data.names
        self._signature = signature
        self.load_value: Callable[..., Any] = signature.result.load
        self.load_item: Callable[..., Any] = signature.item.load
        self.load_error: Callable[..., BaseException] = partial(
            load_failure, data.errors
        )

    def pack_job(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        number: int = 0,
        limit: int | None = None,
        pause: Callable[[], None] | None = None,
    ) -> bytes | OutOfBandPickle:
        """Pack a call."""
        if not number:
            self._names.name_of(function)  # which says why it has none
            why = LookupError(f"this pool has called {MAX_NUMBER} functions")
            raise self._names.unnamed(why)
        if pause is not None:
            pause()  # a message is written in one step, so there is no other place for a break
        return self._signature.pack(args, kwargs, limit=limit)

    @staticmethod
    def load_details(payload: bytes) -> Any:
        """Load the details of a heartbeat."""
        try:
            return _DETAILS.load(payload)
        except ProtocolError as error:
            raise JobNotPicklableError(
                f"the details of a heartbeat cannot be read: {error}",
                direction="details",
                name="",
            ) from error

    @staticmethod
    def is_heavy(payload: bytes | memoryview | ReceivedPickle) -> bool:
        """Tell whether an outcome takes long to load."""
        # All that came beside a message is copied, which takes a while; and what is in parts may have
        # tables whose keys meet, each of which may take as long as a long one.
        if isinstance(payload, ReceivedPickle) or len(payload) > HEAVY:
            return True
        return len(payload) > SURELY_QUICK and payload[1] == 1


class DataFunctionTable(FunctionTable):
    """The functions of a pool whose calls are in one format.

    Args:
        totals: Where their jobs are counted.
        data: What the pool allows.
        how: The format.
        numbers: Another table of the same pool, whose numbers these continue.
    """

    _plain = FunctionTable._plain | {CACHED}

    def __init__(
        self,
        totals: FunctionTotals,
        data: DataOnly,
        how: Format,
        numbers: FunctionTable | None = None,
    ) -> None:
        super().__init__(totals)
        self._data = data
        self._how = how
        if numbers is not None:
            self._numbers = numbers._numbers

    def _describe(self, function: Callable[..., Any]) -> tuple[bytes, Serializer]:
        serializer = self._data.serializer_of(function, self._how)
        if type(function) in self._plain:
            with suppress(JobNotPicklableError):  # each call of it is refused
                return self._data.describe(function, self._how), serializer
        return b"", serializer


def _spec(how: Format) -> str:
    if how.codec is None:
        return how.name
    return b2a_base64(pickle.dumps(how.codec)).decode()
