"""What commands are answered that ask a cluster in operation, and what they may have done."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

from asyncpool._core.control.control_protocol import Request
from asyncpool._core.logs import pool_messages as say
from asyncpool._observe.control.watch import Watching, plain
from asyncpool._runtime.control.opening import Control, ControlOwner, open_control
from asyncpool._runtime.state.life_log import describe_roll, roll_trouble
from asyncpool.cluster._stats import ClusterStats
from asyncpool.errors import ProtocolError
from asyncpool.events import Event, RollResult

_LOGGER = logging.getLogger("asyncpool")


class Asked(Protocol):
    """What of a :class:`asyncpool.Cluster` commands see and reach."""

    name: str

    async def stacks(self) -> dict[int, str]: ...
    def kill(self, slot: int) -> None: ...
    def retire(self, slot: int) -> None: ...
    def add_listener(self, listener: Callable[[Event], object]) -> None: ...
    def remove_listener(self, listener: Callable[[Event], object]) -> int: ...
    def stats(self) -> ClusterStats: ...


class Orders(Protocol):
    """What commands have the operation of a cluster do."""

    async def reload_for_client(self) -> RollResult:
        """Replace the workers."""
        ...

    async def resize_for_client(self, workers: int) -> str:
        """Change the number of workers; return what has changed, in words."""
        ...

    def stop_for_client(self, *, now: bool) -> None:
        """End the cluster, after a drain or at once."""
        ...


class ClusterAnswers:
    """Answers what clients ask a cluster.

    Args:
        cluster: The cluster.
        orders: Its operation.

    Attributes:
        name: What commands call it.
        which: What commands are told to find it.
    """

    def __init__(self, cluster: Asked, orders: Orders) -> None:
        self.name = cluster.name
        self.which = ""
        self._cluster = cluster
        self._orders = orders
        self._watching = Watching(cluster, self._status)

    async def open(self, control: str | None) -> Control | None:
        """Open the control socket; see :func:`open_control`.

        Args:
            control: Its name or path; ``None`` for the cluster's name, ``""`` for none.
        """
        if control == "":
            return None
        owner = ControlOwner(
            kind="cluster",
            name=self.name,
            advice="--control PATH has it elsewhere",
            # A name that was given and is another one's is more likely to be a mistake.
            keeps_name=True,
        )
        opened = await open_control(owner, control, self.answer, self._watching.watch)
        if opened is not None:
            self.name, self.which = opened.name, opened.which
        return opened

    async def answer(self, request: Request) -> dict[str, Any]:
        """Do what a client asks for, and return what it is told.

        Raises:
            ProtocolError: If a cluster has no such action.
        """
        match request.action:
            case "status":
                return self._status()
            case "stacks":
                return {"stacks": await self._stacks(request)}
            case "reload":
                return await self._reload()
            case "kill" | "recycle":
                return await self._end_worker(request)
            case "resize" | "stop":
                return await self._order(request)
            case "profile":
                raise ProtocolError(
                    "a profile is of the jobs of a pool, and a server has none: 'asyncpool "
                    "stacks' shows where its workers are now"
                )
            case _:
                raise ProtocolError(f"a server has no action {request.action!r}")

    async def _order(self, request: Request) -> dict[str, Any]:
        if request.workers is not None:
            text = await self._orders.resize_for_client(request.workers)
            return {"workers": request.workers, "text": text}
        self._orders.stop_for_client(now=request.now)
        return {"pid": os.getpid(), "name": self.name}

    async def _end_worker(self, request: Request) -> dict[str, Any]:
        slot = request.slot
        if slot is None:
            return await self._reload()
        if request.action == "kill":
            self._cluster.kill(slot)
            text = f"the worker in slot {slot} was killed"
        else:
            self._cluster.retire(slot)
            text = f"the worker in slot {slot} is being replaced"
        # The operation has a record of a reload, a resize and a stop.
        name = self._cluster.name
        say.COMMANDED.log(_LOGGER, {"pool": name}, title=f"cluster {name}", done=text)
        return {"text": text}

    async def _reload(self) -> dict[str, Any]:
        result = await self._orders.reload_for_client()
        return {
            "replaced": result.replaced,
            "filled": result.filled,
            "reason": "" if result.ok else roll_trouble(result),
            "text": describe_roll(result),
        }

    async def _stacks(self, request: Request) -> dict[str, str]:
        if request.job is not None:
            raise ProtocolError("a server has no jobs: name a slot, or none")
        found = await self._cluster.stacks()
        wanted = request.slot
        return {
            str(slot): text for slot, text in found.items() if wanted in {None, slot}
        }

    def _status(self) -> dict[str, Any]:
        return {
            "kind": "cluster",
            "name": self.name,
            "which": self.which,
            "pid": os.getpid(),
            **plain(self._cluster.stats()),
        }
