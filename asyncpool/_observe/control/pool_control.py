"""The control socket of a pool: what commands may see of it, and do to it."""

from __future__ import annotations

import os
from typing import Any

from asyncpool._core import log_messages as say
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.life_log import NamedLog
from asyncpool._observe.control.local_orders import PoolOrders
from asyncpool._observe.control.opening import Control, ControlOwner, open_control
from asyncpool._observe.control.protocol import Request
from asyncpool._observe.control.watch import JobFeed, Watching, plain
from asyncpool.errors import ProtocolError
from asyncpool.stats import PoolStats


async def open_pool_control(
    orders: PoolOrders,
    hub: PoolHub,
    name: str,
    control: str | None,
    concurrency: int,
) -> Control | None:
    """Open the control socket of a pool that starts; the pool closes it at its end.

    Args:
        orders: What can be asked of the pool.
        hub: What tells its events.
        name: The pool's name.
        control: The name or path that was asked for; ``None`` for the pool's name.
        concurrency: How many jobs each worker runs at once.

    Raises:
        OSError: If a socket at that path cannot be made.

    Cancellation:
        Opens none.
    """
    owner = ControlOwner(
        kind="pool",
        name=name,
        advice="Pool(control='/path') has it elsewhere",
        # Several processes of one service have pools of one name.
        keeps_name=False,
    )
    answers = PoolAnswers(orders, hub, name, concurrency)
    opened = await open_control(owner, control, answers.answer, answers.watching.watch)
    if opened is not None:
        answers.name, answers.which = opened.name, opened.which
        hub.companions.append(opened.socket.close)
    return opened


class PoolAnswers:
    """Answers what clients ask a pool.

    Args:
        orders: What can be asked of the pool.
        hub: What tells its events.
        name: What it is called.
        concurrency: How many jobs each worker runs at once.

    Attributes:
        name: What commands call it.
        which: What commands are told to find it.
        watching: Lets clients watch it.
    """

    def __init__(
        self, orders: PoolOrders, hub: PoolHub, name: str, concurrency: int
    ) -> None:
        self.name = name
        self._log = NamedLog(name, f"pool {name}")
        self.which = ""
        self._orders = orders
        self._concurrency = concurrency
        jobs = JobFeed(hub, concurrency)
        self.watching = Watching(hub, lambda: self._status(orders.latest()), jobs)

    async def answer(self, request: Request) -> dict[str, Any]:
        """Do what a client asks for, and return what it is told.

        Raises:
            ProtocolError: If a pool has no such action.
        """
        match request.action:
            case "status":
                return self._status(await self._orders.stats())
            case "stacks":
                return {"stacks": await self._stacks(request)}
            case "profile":
                return await self._profile(request)
            case "kill":
                return await self._kill(request.slot)
            case "recycle":
                return await self._recycle(request.slot)
            case "resize":
                return await self._resize(request.workers)
            case "reload" | "stop":
                raise ProtocolError(
                    f"a pool cannot {request.action}: its program decides that"
                )
            case _:
                raise ProtocolError(f"a pool has no action {request.action!r}")

    async def _stacks(self, request: Request) -> dict[str, str]:
        if request.job is None:
            found = await self._orders.stacks(request.slot)
            return {str(slot): text for slot, text in found.items()}
        slot, text = await self._orders.stack_of(request.job)
        if not text:
            raise ProtocolError(f"job {request.job} has not begun, or is over by now")
        return {str(slot): text}

    async def _profile(self, request: Request) -> dict[str, Any]:
        profile = await self._orders.profile(
            request.seconds, request.function, request.slot
        )
        found = plain(profile)
        found["stacks"] = [
            [";".join((each.function, *each.frames)), each.samples]
            for each in profile.stacks
        ]
        return {"samples": profile.samples, **found}

    async def _kill(self, slot: int | None) -> dict[str, Any]:
        assert slot is not None
        await self._orders.kill(slot)
        text = f"the worker in slot {slot} was killed"
        self._tell(text)
        return {"text": text}

    async def _recycle(self, slot: int | None) -> dict[str, Any]:
        if slot is not None:
            await self._orders.retire(slot)
            text = f"the worker in slot {slot} is being replaced"
            self._tell(text)
            return {"text": text}
        self._tell("all workers are being replaced, one after the other")
        result = await self._orders.roll()
        text = f"{result.replaced} {_workers(result.replaced)} new"
        if not result.ok:
            text = f"{text}, and the others stay: {result.reason}"
        self._tell(text)
        return {
            "replaced": result.replaced,
            "filled": result.filled,
            "reason": result.reason,
            "text": text,
        }

    async def _resize(self, workers: int | None) -> dict[str, Any]:
        assert workers is not None
        before = self._orders.latest()
        await self._orders.resize(workers)
        count = f"{workers} {'worker' if workers == 1 else 'workers'}"
        text = f"{count} now, {before.workers} before"
        if before.nodes:
            text = f"{count} on each node now, {before.workers} on all before"
        self._tell(text)
        return {"workers": workers, "text": text}

    def _tell(self, text: str) -> None:
        """Have the log say what a command has done, which nobody else would know."""
        self._log.now(say.COMMANDED, done=text)

    def _status(self, stats: PoolStats) -> dict[str, Any]:
        return {
            "kind": "pool",
            "name": self.name,
            "which": self.which,
            "pid": os.getpid(),
            "concurrency": self._concurrency,
            **plain(stats),
        }


def _workers(count: int) -> str:
    return "worker is" if count == 1 else "workers are"
