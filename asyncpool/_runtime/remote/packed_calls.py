"""Calls that are packed already, and outcomes that stay packed: what an agent passes on.

To the agent's pool each function of a client is one of its own, whose serializer does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncpool._core.figures import FunctionTotals
from asyncpool._core.pickling.functions import Function, FunctionTable
from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._core.pickling.serializers import Serializer
from asyncpool.events import Via


class PackedError(Exception):
    """What a job has raised, as its worker has packed it."""

    def __init__(self, payload: bytes) -> None:
        super().__init__("an error of a job that its client reads")
        self.payload = payload


def _pack(
    function: object, args: tuple[Any, ...], kwargs: object, **_: Any
) -> bytes | OutOfBandPickle:
    del function, kwargs
    packed: bytes | OutOfBandPickle = args[0]
    return packed


def _keep(payload: Any, pause: object = None) -> Any:
    del pause
    return payload


def _error(payload: Any, pause: object = None) -> PackedError:
    del pause
    return PackedError(bytes(payload))


def _is_light(payload: object) -> bool:
    del payload
    return False  # it is passed on as it is


class PackedSerializer(Serializer):
    """Leaves all as it is."""

    pack_job = staticmethod(_pack)
    load_value = load_item = load_details = staticmethod(_keep)
    load_error: Callable[..., BaseException] = staticmethod(_error)
    is_heavy = staticmethod(_is_light)


PACKED = PackedSerializer()


class PackedFunctions(FunctionTable):
    """The functions of all clients of an agent.

    Args:
        totals: Where their jobs are counted.
        numbers: The pool's own table, whose numbers these continue.
    """

    def __init__(self, totals: FunctionTotals, numbers: FunctionTable) -> None:
        super().__init__(totals)
        self._numbers = numbers._numbers  # noqa: SLF001 - of its own class

    def named(self, name: str, reference: bytes) -> Function:
        """Return the function that a client calls *name*.

        Args:
            name: Its name.
            reference: What a worker makes it of; empty if it travels with each call.
        """
        found = self.known.get((name, reference))
        if found is not None:
            return found
        number = next(self._numbers) if reference else 0
        return self._enter((name, reference), number, reference, name, PACKED)

    def find(
        self, function: Callable[..., Any], name: str = "", via: Via = "submit"
    ) -> Function:
        """Return *function*, which is one of :meth:`named`."""
        del name
        known: Any = function
        assert isinstance(known, Function)
        if via == "submit":
            return known
        return known.known_as(known.name, self._totals.of(known.name, via))
