"""The service's half of a pool that is data only."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from asyncpool._core.functions import FunctionTable
from asyncpool._wire.buffers import HEAVY, SURELY_QUICK, OverLimitError, ReceivedPickle
from asyncpool._wire.formats import JSON, Format, Kind, unsendable
from asyncpool._wire.pickling import Serializer
from asyncpool._wire.plain_data import in_one_piece, short, weigh, write
from asyncpool._wire.schemas import FunctionNames, Signature, load_failure, registered
from asyncpool._wire.scripts import CACHED
from asyncpool.errors import JobNotPicklableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from asyncpool._core.figures import FunctionTotals
    from asyncpool._wire.buffers import Packed
    from asyncpool._wire.schemas import AnyFunction

    Call = tuple[AnyFunction, tuple[Any, ...], Mapping[str, Any]]

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

    @property
    def config(self) -> bytes:
        """What a worker is told of it."""
        return json.dumps({"functions": self.names.allowed}).encode()

    def describe(self, function: AnyFunction, how: Format) -> bytes:
        """Return what tells a worker of *function*, and in which format its calls are.

        Raises:
            JobNotPicklableError: If it has no name, or may not be called.
        """
        name = self.names.name_of(function)
        return json.dumps({"function": name, "codec": how.spec}).encode()

    def serializer_of(self, function: AnyFunction, how: Format) -> DataSerializer:
        """Return how the calls and outcomes of *function* travel."""
        return DataSerializer(self, function, how)

    def pack_alone(self, call: Call, how: Format) -> bytes:
        """Return a call in one piece, for a worker that may not know the function.

        Raises:
            JobNotPicklableError: If it cannot be sent.
        """
        head, serializer = self.describe(call[0], how), self.serializer_of(call[0], how)
        packed = in_one_piece(serializer.pack_job(*call, number=1, in_band=True))
        return len(head).to_bytes(4) + head + packed


class DataSerializer(Signature, Serializer):
    """How the calls and outcomes of one function travel in a data-only pool."""

    load_details: Callable[..., Any] = staticmethod(_DETAILS.load)

    def __init__(self, data: DataOnly, function: AnyFunction, how: Format) -> None:
        super().__init__(function, how)
        self._names = data.names
        self.load_value: Callable[..., Any] = self.result.load
        self.load_item: Callable[..., Any] = self.item.load
        self.load_error: Callable[..., BaseException] = partial(
            load_failure, data.errors
        )

    def pack_job(
        self,
        function: AnyFunction,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        number: int = 0,
        limit: int | None = None,
        pause: Callable[[], None] | None = None,
        in_band: bool = False,
    ) -> Packed:
        """Pack a call; if *in_band*, with large buffers in the message.

        Raises:
            OverLimitError: If it becomes larger than *limit*, roughly.
            JobNotPicklableError: If an argument is no plain data, and not of the annotated type; or if
                the function has no *number*.
        """
        if not number:
            self._names.name_of(function, numbered=False)  # which says why it has none
        if pause is not None:
            pause()  # a message is written in one step, so there is no other place for a break
        how, values = self.how, [*args, *kwargs.values()]
        call = [values, [*kwargs]]
        beside = how.codec is None
        try:
            # Short plain data is sent as it is: the worker turns it into the annotated types.
            if beside and (message := short(self.call, call)) is not None:
                return message
            if limit is None or weigh(values, limit, beside=beside) is not None:
                if self.typed:
                    for at, (_, kind) in enumerate(self.kinds(len(args), kwargs)):
                        values[at] = kind.plain(values[at])
                return write(self.call, call, in_band=in_band)
        except Exception as error:  # noqa: BLE001 - an argument may raise anything
            name, where, why = "the call", "$", error
            kinds, values = self.kinds(len(args), kwargs), [*args, *kwargs.values()]
            for (one, kind), value in zip(kinds, values, strict=True):
                if (found := kind.culprit([(f"$.{one}", value)])) is not None:
                    name, (where, why) = one, found
                    break
            raise unsendable(how, name, "arguments", name, where, why) from why
        raise OverLimitError

    @staticmethod
    def is_heavy(payload: bytes | memoryview | ReceivedPickle) -> bool:
        """Tell whether an outcome takes long to load."""
        # Buffers beside a message are copied, which takes a while.  A message in parts (its second
        # byte is 1) may hold dicts whose keys have the same hash: then a short one takes long, too.
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
        self._data, self._how = data, how
        if numbers is not None:
            self._numbers = numbers._numbers

    def _describe(self, function: AnyFunction) -> tuple[bytes, Serializer]:
        serializer = self._data.serializer_of(function, self._how)
        if type(function) in self._plain:
            with suppress(JobNotPicklableError):  # each call of it is refused
                return self._data.describe(function, self._how), serializer
        return b"", serializer
