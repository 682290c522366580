"""The control socket of a pool: what commands may see of it, and do to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from asyncpool._core import log_messages as say
from asyncpool._engine.engine import PoolLife
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.loop import shielded
from asyncpool._engine.options import EngineConfig
from asyncpool._observe.control.opening import Control, ControlOwner, open_control
from asyncpool._observe.control.protocol import Request
from asyncpool._observe.control.watch import JobFeed, Watching, plain
from asyncpool._wire.profile import ProfileRequest
from asyncpool.errors import ProtocolError
from asyncpool.events import RollResult
from asyncpool.profile import Profile
from asyncpool.stats import PoolStats

# Samples a second of each worker.
RATE = 100.0


def over(number: int) -> ProtocolError:
    """Return the error for a job that there is not."""
    return ProtocolError(f"job {number} is over, or never was")


class LocalOrders:
    """What commands may ask of a pool that this process has, and have it do.

    Each method raises what the method of a pool raises.

    Args:
        life: The pool's life.
    """

    def __init__(self, life: PoolLife) -> None:
        self._life = life

    def latest(self) -> PoolStats:
        """Return the figures, at once."""
        return self._life.running().stats()

    async def stats(self) -> PoolStats:
        """Return the figures as they are now."""
        return self.latest()

    async def stacks(self, slot: int | None) -> Mapping[int, str]:
        """Return the stacks of one worker or of all."""
        return await self._life.running().stacks.of_workers(slot)

    async def stack_of(self, number: int) -> tuple[int, str]:
        """Return the slot of a job and its stack, which is empty if it does not run.

        Raises:
            ProtocolError: If there is no such job.
        """
        job = self._life.running().registry.jobs.get(number)
        if job is None:
            raise over(number)
        slot = job.slot
        return slot or 0, await job.stack()

    async def profile(
        self, seconds: float, function: str | None, slot: int | None
    ) -> Profile:
        """Sample one worker or all."""
        wanted = ProfileRequest(seconds, RATE, function or "")
        return await self._life.open_engine().profiles.take(wanted, slot)

    async def kill(self, slot: int) -> None:
        """Kill a worker."""
        self._life.running().replacement.kill(slot)

    async def retire(self, slot: int) -> None:
        """Replace a worker."""
        self._life.open_engine().replacement.retire(slot)

    async def roll(self) -> RollResult:
        """Replace all workers."""
        return await shielded(self._life.open_engine(retrying=True).replacement.roll())

    async def resize(self, workers: int) -> None:
        """Change how many there are, on each node."""
        await self._life.open_engine().replacement.resize(workers, workers)


class PoolAnswers:
    """Answers what clients ask a pool.

    Args:
        orders: What can be asked of the pool: :class:`LocalOrders`, or the same of a remote one.
        hub: What tells its events.
        name: What it is called.
        concurrency: How many jobs each worker runs at once.

    Attributes:
        name: What commands call it.
        which: What commands are told to find it.
        watching: Lets clients watch it.
    """

    def __init__(self, orders: Any, hub: PoolHub, name: str, concurrency: int) -> None:
        self.name = name
        self.which = ""
        self._log = NamedLog(name, f"pool {name}")
        self._orders = orders
        self._concurrency = concurrency
        jobs = JobFeed(hub, concurrency)
        self.watching = Watching(hub, lambda: self._shown(orders.latest()), jobs)

    async def answer(self, request: Request) -> dict[str, Any]:
        """Do what a client asks for, and return what it is told.

        Raises:
            ProtocolError: If a pool has no such action.
        """
        if request.action in {"reload", "stop"}:
            raise ProtocolError(
                f"a pool cannot {request.action}: its program decides that"
            )
        found: dict[str, Any] = await getattr(self, f"_{request.action}")(request)
        return found

    async def _status(self, _: Request) -> dict[str, Any]:
        return self._shown(await self._orders.stats())

    async def _stacks(self, request: Request) -> dict[str, Any]:
        if request.job is None:
            found = await self._orders.stacks(request.slot)
            return {"stacks": {str(slot): text for slot, text in found.items()}}
        slot, text = await self._orders.stack_of(request.job)
        if not text:
            raise ProtocolError(f"job {request.job} has not begun, or is over by now")
        return {"stacks": {str(slot): text}}

    async def _profile(self, request: Request) -> dict[str, Any]:
        profile: Profile = await self._orders.profile(
            request.seconds, request.function, request.slot
        )
        stacks = [
            [";".join((each.function, *each.frames)), each.samples]
            for each in profile.stacks
        ]
        return {"samples": profile.samples, **plain(profile), "stacks": stacks}

    async def _kill(self, request: Request) -> dict[str, Any]:
        await self._orders.kill(request.slot)
        return self._done(f"the worker in slot {request.slot} was killed")

    async def _recycle(self, request: Request) -> dict[str, Any]:
        if request.slot is not None:
            await self._orders.retire(request.slot)
            return self._done(f"the worker in slot {request.slot} is being replaced")
        self._done("all workers are being replaced, one after the other")
        result: RollResult = await self._orders.roll()
        workers = "worker is" if result.replaced == 1 else "workers are"
        text = f"{result.replaced} {workers} new"
        if not result.ok:
            text = f"{text}, and the others stay: {result.reason}"
        told = {
            name: getattr(result, name) for name in ("replaced", "filled", "reason")
        }
        return told | self._done(text)

    async def _resize(self, request: Request) -> dict[str, Any]:
        workers, before = request.workers, self._orders.latest()
        await self._orders.resize(workers)
        count = f"{workers} {'worker' if workers == 1 else 'workers'}"
        text = f"{count} now, {before.workers} before"
        if before.nodes:
            text = f"{count} on each node now, {before.workers} on all before"
        return {"workers": workers} | self._done(text)

    def _done(self, text: str) -> dict[str, Any]:
        """Have the log say what a command has done, which nobody else would know."""
        self._log.now(say.COMMANDED, done=text)
        return {"text": text}

    def _shown(self, stats: PoolStats) -> dict[str, Any]:
        return {
            "kind": "pool",
            "name": self.name,
            "which": self.which,
            "pid": os.getpid(),
            "concurrency": self._concurrency,
            **plain(stats),
        }


async def open_pool_control(
    orders: Any, hub: PoolHub, name: str, control: str | None, concurrency: int
) -> Control | None:
    """Open the control socket of a pool that starts; the pool closes it at its end.

    Args:
        orders: As of :class:`PoolAnswers`, as are the next two.
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


async def open_beside(
    life: PoolLife, config: EngineConfig, control: str | None
) -> None:
    """Open what a pool was asked to have beside it, before anything happens in it.

    Args:
        life: The pool's life.  Not the pool itself: who drops it would not be noticed then.
        config: What the pool was told; the trace is there.
        control: The name or path of the control socket; ``""`` for the pool's name, ``None``
            for no socket.

    Raises:
        OSError: If the file cannot be written, or the socket cannot be made at its path.

    Cancellation:
        Opens neither.
    """
    orders, hub, opened = LocalOrders(life), life.hub, None
    concurrency = config.worker.concurrency
    if control is not None:
        opened = await open_pool_control(
            orders, hub, config.name, control or None, concurrency
        )
    if config.trace is None or hub.ended:  # the pool may be closed meanwhile
        return
    from asyncpool._observe.trace import Trace  # noqa: PLC0415 - few have one

    try:
        Trace(
            config.trace,
            name=config.name,
            concurrency=concurrency,
            hub=hub,
            stats=orders.latest,
            most=config.max_traced,
        )
    except BaseException:
        if opened is not None:
            opened.socket.shut()
        raise
