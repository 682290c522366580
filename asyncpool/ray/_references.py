"""Objects in Ray's store as arguments of jobs.

The client gives Ray the references, and Ray brings the values to the node.  The agent hands them to
its pool as it does with all large arguments, and the worker puts them into the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from asyncpool._engine.job import PoolJob
from asyncpool._remote.messages import PLAIN, STORED
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.pickling import dump, loads, pack_job
from asyncpool._wire.scripts import Abroad
from asyncpool.errors import JobNotPicklableError
from asyncpool.ray._ends import ClientEnd
from asyncpool.ray._engine import Engine


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


class RayCall:
    """A call with references among its arguments, in the place of the call in :attr:`PoolJob.payload`.

    Args:
        engine: The connection to Ray.
        call: The call, with places for the values.
        references: What Ray knows these by.
    """

    def __init__(self, engine: Engine, call: bytes, references: list[Any]) -> None:
        self._engine, self._call, self._references = engine, call, references

    def __len__(self) -> int:
        return len(self._call)

    async def bring(self, carrier: ClientEnd, node: str, job: PoolJob[Any]) -> bytes:
        """Have Ray bring it to the node of that name, ahead of its job."""
        try:
            await carrier.take(job.id, self._call, self._references)
        except Exception as error:
            name, why = job.function.name, f"{type(error).__name__}: {error}"
            if self._engine.is_full(error):
                why = "a store on its way is full, and writes nothing to disk"
            place = node.rpartition("/")[0]
            raise JobNotPicklableError(
                f"an argument of {name} is in Ray's store and cannot be had on the node {place}: "
                f"{why}",
                direction="arguments",
                name=name,
            ) from error
        return STORED


class References:
    """Finds references among the arguments of calls, and packs such calls.

    Args:
        engine: The connection to Ray.
        data_only: Whether the pool pickles nothing, and so takes none.
    """

    function: Callable[..., Any] = staticmethod(run_stored)

    def __init__(self, engine: Engine, *, data_only: bool) -> None:
        self._engine, self._kind = engine, engine.reference
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
    ) -> RayCall:
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
        return RayCall(self._engine, b"".join(packed.pieces), references)
