"""Objects in Ray's store as arguments of jobs.

The client gives Ray the references, and Ray brings the values to the node.  The agent hands them to
its pool as it does with all large arguments, and the worker puts them into the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from asyncpool._remote.messages import PLAIN
from asyncpool._remote.stored_calls import StoredCall
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.pickling import dump, loads, pack_job
from asyncpool._wire.scripts import Abroad


class Stored:
    """Stands for a value in a call.

    Args:
        place: Its place among the values of the call.
    """

    def __init__(self, place: int) -> None:
        self.place = place


def run_stored(call: bytes, values: tuple[Any, ...]) -> Any:
    """Make a call with *values* in the places that are kept for them; workers run this."""
    function, args, kwargs = loads(call)
    return function(
        *(_filled(each, values) for each in args),
        **{name: _filled(each, values) for name, each in kwargs.items()},
    )


def _filled(value: Any, values: tuple[Any, ...]) -> Any:
    return values[value.place] if type(value) is Stored else value


def payload_of(call: bytes, values: tuple[Any, ...]) -> bytes | OutOfBandPickle:
    """Return the call of :func:`run_stored`, as a client sends that of a function with a number."""
    packed = pack_job(run_stored, (call, values), {}, number=1)
    return PLAIN + packed if isinstance(packed, bytes) else packed


class References:
    """Finds references among the arguments of calls, and packs such calls.

    Args:
        kind: The class of references, Ray's ``ObjectRef``.
        data_only: Whether the pool pickles nothing, and so takes none.
    """

    function: Callable[..., Any] = staticmethod(run_stored)

    def __init__(self, kind: type, *, data_only: bool) -> None:
        self._kind = kind
        self._data_only = data_only

    def are_in(self, values: Iterable[Any]) -> bool:
        """Tell whether there are references among *values*.

        Raises:
            TypeError: If there are, and the pool pickles nothing.
        """
        found = any(isinstance(value, self._kind) for value in values)
        if found and self._data_only:
            raise TypeError(
                "an ObjectRef is no argument of a job whose pool has a codec, since Ray pickles "
                "what is in its store: pass 'await ref'"
            )
        return found

    def pack(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> StoredCall:
        """Pack a call that has references among its arguments."""
        references: list[Any] = []

        def held(value: Any) -> Any:
            if not isinstance(value, self._kind):
                return value
            references.append(value)
            return Stored(len(references) - 1)

        call = (
            function,
            tuple(held(each) for each in args),
            {name: held(each) for name, each in kwargs.items()},
        )
        with Abroad():
            packed = dump(call, in_band=True)
        return StoredCall(b"".join(packed.pieces), tuple(references))
