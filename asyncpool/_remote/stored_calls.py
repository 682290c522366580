"""Calls that are packed already or are in a store, and outcomes that stay packed: what an agent passes on.

To the agent's pool each function of a client is one of its own, whose serializer does nothing.

A job whose arguments are in a store comes without its call.  The engine brings the call and the
values of these arguments by itself, and the job begins when they are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from asyncpool._core.figures import FunctionTotals
from asyncpool._core.functions import Function, FunctionTable
from asyncpool._remote.carrier import Carrier
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.pickling import Serializer
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
        new = Function(number, reference, name, self._totals.of(name, "submit"), PACKED)
        return self._enter((name, reference), new)

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


# Stands for the call in the message of such a job.  Other calls begin with a number of parts, which
# is never as large, or with LENT.
STORED = b"\xff\xff\xff\xfe"

# So many jobs are remembered that want their calls no more.
_OVER = 4096


class StoredCall(NamedTuple):
    """A call as its client keeps it.

    Attributes:
        call: The call, in which something stands for the values.
        references: What the engine knows the values by.
    """

    call: bytes
    references: tuple[Any, ...]


class StoredArguments(Protocol):
    """What finds such arguments, and packs calls that have some."""

    # What workers run: it is given the call and the values.
    function: Callable[..., Any]

    def are_in(self, values: Iterable[Any], /) -> bool:
        """Tell whether there are any among *values*.

        Raises:
            TypeError: If the pool takes none.
        """
        ...

    def pack(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, /
    ) -> StoredCall:
        """Pack a call."""
        ...


class StoringCarrier(Carrier, Protocol):
    """A carrier whose engine has a store."""

    def store(self, job: int, stored: StoredCall) -> None:
        """Bring the call of *job* and its values to the agent."""
        ...


class StoredPayloads:
    """The calls of an agent that the engine brings, each of which its job waits for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._coming: dict[int, asyncio.Future[bytes | OutOfBandPickle]] = {}
        self._kept: dict[int, asyncio.Future[None]] = {}  # of calls that are here
        # Of jobs that want their calls no more: these may come later, or once more.
        self._over: dict[int, None] = {}

    async def put(self, job: int, payload: bytes | OutOfBandPickle) -> None:
        """Take the call of a job, and wait until the pool has it: so much memory is in use.

        Cancellation:
            Safe.
        """
        if job in self._over:
            return
        kept = self._kept.setdefault(job, self._loop.create_future())
        coming = self._future(job)
        if not coming.done():  # it may be brought twice
            coming.set_result(payload)
        await asyncio.wait([kept])

    async def get(self, job: int) -> bytes | OutOfBandPickle:
        """Wait for the call of a job, and return it.

        Cancellation:
            Safe; the job may be forgotten then.
        """
        payload = await asyncio.shield(self._future(job))
        self._coming.pop(job, None)
        return payload

    def taken(self, job: int) -> None:
        """Note that the pool has the call of a job."""
        kept = self._kept.get(job)
        if kept is not None:
            self.forget(job)

    def forget(self, job: int) -> None:
        """Forget the call of a job that wants it no more, also if it comes later."""
        self._coming.pop(job, None)
        kept = self._kept.pop(job, None)
        if kept is not None:
            kept.set_result(None)
        self._over[job] = None
        if len(self._over) > _OVER:
            del self._over[next(iter(self._over))]

    def _future(self, job: int) -> asyncio.Future[bytes | OutOfBandPickle]:
        found = self._coming.get(job)
        if found is None:
            found = self._coming[job] = self._loop.create_future()
        return found
