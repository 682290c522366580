"""The jobs of clients in an agent's pool: calls that are packed already, and outcomes that stay packed.

To the agent's pool each function of a client is one of its own, whose serializer does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncpool._core.figures import FunctionTotals
from asyncpool._core.functions import Function, FunctionTable
from asyncpool._engine.job import ChunkJob, Holder, PoolJob, StreamJob
from asyncpool._remote.objects import pack_log, pack_result
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.pickling import Serializer
from asyncpool.events import Via

if TYPE_CHECKING:
    from asyncpool._engine.page import WorkerPage
    from asyncpool._remote.agent import AgentClient


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


class RelayedJob(PoolJob[Any]):
    """Tells of its end in the step that ends it.

    A callback of the future would come in the next iteration of the loop.  That is 20 us more for a
    call that is awaited, and 2 us of CPU time for each of many.

    Attributes:
        client: The agent's client that it belongs to, and which hears of its end.
        number: The client's number of it.
    """

    # They are set when the pool has taken the job: to set them before costs 0.4 us for each.
    __slots__ = ("client", "number")

    client: AgentClient
    number: int

    @property
    def awaited(self) -> bool:
        """Its client waits for it."""
        return True

    def set_result(self, result: Any, /) -> None:
        """End with a result."""
        super().set_result(result)
        self._tell()

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        """End with an error."""
        super().set_exception(exception)
        self._tell()

    def cancel(self, msg: Any | None = None) -> bool:
        """End without either."""
        if not super().cancel(msg):
            return False
        self._tell()
        return True

    def _tell(self) -> None:
        client = getattr(self, "client", None)
        if client is not None:
            client.on_end(self)


class RelayedChunk(RelayedJob, ChunkJob[Any]):
    """A chunk of a client's map.

    Attributes:
        found: What tells the client which items are done; ``None`` if it has not begun.
    """

    __slots__ = ()

    found: bytes | None

    def salvage(self, page: WorkerPage) -> bool:
        """Find what its worker has noted; return whether it has begun with its first item."""
        log = page.copy_log(self.id, self.attempt)
        self.found = None if log is None else pack_log(log)
        return log is not None

    def find_in_result(self, result: Any) -> None:
        """Find it in a result that came after the time was over."""
        self.found = pack_result(result)

    def assume_lost(self) -> None:
        """Take it that each item may have begun."""
        self.found = b""


# The class of jobs for each way to call a function that a client may choose.
JOB_TYPES: dict[Via, type[PoolJob[Any]]] = {
    "submit": RelayedJob,
    "map": RelayedChunk,
    "stream": StreamJob,
}


class ClientKeeper:
    """A lease keeper for the pool of an agent; a lease is the client's number of the job.

    Args:
        on_free: Called with the number of each job that no worker has any more.
    """

    def __init__(self, on_free: Callable[[int], object]) -> None:
        self._on_free = on_free
        self._until: dict[int, float] = {}
        self._holders: dict[int, Holder] = {}

    def keep(self, lease: Hashable, holder: Holder, /) -> None:
        """Keep a lease until *holder* is done."""
        assert isinstance(lease, int)
        self._holders[lease] = holder
        holder.add_done_callback(partial(self._done, lease))
        holder.until = self._until.pop(lease, None)

    def extend(self, number: int, until: float, *, is_coming: bool) -> None:
        """Hear until when the lease of a job lasts, on this loop's clock.

        Nothing is kept of a job that no worker has any more: it has none unless it *is coming*.
        """
        if number in self._holders:
            self._holders[number].extended(until)
        elif is_coming:
            self._until[number] = until

    def forget(self, number: int) -> None:
        """Forget a job that the pool never got."""
        self._until.pop(number, None)
        self._on_free(number)

    def _done(self, number: int, _: asyncio.Future[None]) -> None:
        del self._holders[number]
        self._on_free(number)


class PackedFunctions(FunctionTable):
    """The functions of all clients of an agent.

    Args:
        totals: Where their jobs are counted.
        numbers: The pool's own table, whose numbers these continue.
    """

    job_types: dict[Via, Any] | None = JOB_TYPES

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
