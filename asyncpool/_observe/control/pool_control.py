"""The control socket of a pool: what commands may see of it, and do to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from asyncpool._core import log_messages as say
from asyncpool._engine.engine import PoolLife
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.loop import shielded
from asyncpool._engine.options import EngineConfig
from asyncpool._observe.control.opening import Control, ControlOwner, open_control
from asyncpool._observe.control.protocol import Request, carry_out
from asyncpool._observe.control.watch import JobFeed, Watching, plain
from asyncpool._wire.profile import ProfileRequest
from asyncpool.errors import ProtocolError
from asyncpool.events import RollResult
from asyncpool.profile import Profile
from asyncpool.stats import PoolStats

# Samples a second of each worker.
_RATE = 100.0

# What a pool cannot do, and a server can.
_REFUSED = {
    "reload": "a pool cannot reload: its program decides that",
    "stop": "a pool cannot stop: its program decides that",
    "requests": "a pool has no requests, only a server has",
}


class LocalOrders:
    """The methods of a pool that :data:`ORDERS` names, for its control socket.

    It stands for the pool itself: who drops that would not be noticed if anything else held it.

    Args:
        life: The pool's life.
    """

    def __init__(self, life: PoolLife) -> None:
        self._life = life

    def stats(self) -> PoolStats:
        """Return the figures."""
        return self._life.running().stats()

    async def stacks(self, *, slot: int | None) -> Mapping[int, str]:
        """Return the stacks of one worker or of all."""
        return await self._life.running().stacks.of_workers(slot)

    async def profile(
        self, seconds: float, *, slot: int | None, function: str | None
    ) -> Profile:
        """Sample one worker or all."""
        wanted = ProfileRequest(seconds, _RATE, function or "")
        return await self._life.open_engine().profiles.take(wanted, slot)

    def kill(self, slot: int) -> None:
        """Kill a worker."""
        self._life.running().replacement.kill(slot)

    def retire(self, slot: int) -> None:
        """Replace a worker."""
        self._life.open_engine().replacement.retire(slot)

    async def roll(self) -> RollResult:
        """Replace all workers."""
        return await shielded(self._life.open_engine(retrying=True).replacement.roll())

    async def resize(self, workers: int) -> None:
        """Change how many there are."""
        await self._life.open_engine().replacement.resize(workers, workers)


class PoolAnswers:
    """Answers what clients ask a pool.

    Args:
        pool: What has the methods of the pool: :class:`LocalOrders`, or a remote pool itself.
        engine: Returns what makes the calls: an engine, or the client of a remote pool.
        hub: What tells its events.
        name: What it is called.
        concurrency: How many jobs each worker runs at once.

    Attributes:
        name: What commands call it.
        which: What commands are told to find it.
        watching: Lets clients watch it.
    """

    def __init__(
        self,
        pool: Any,
        engine: Callable[[], Any],
        hub: PoolHub,
        name: str,
        concurrency: int,
    ) -> None:
        self.name, self.which, self._hub = name, "", hub
        self._log = NamedLog(name, f"pool {name}")
        self._pool, self._engine = pool, engine
        self._concurrency = concurrency
        feed = JobFeed(hub, concurrency)
        self.watching = Watching(hub, lambda: self._shown(engine().stats()), feed)

    async def open(self, control: str | None) -> Control | None:
        """Open the control socket of a pool that starts; the pool closes it at its end.

        Args:
            control: The name or path that was asked for; ``None`` for the pool's name.

        Raises:
            OSError: If a socket at that path cannot be made.

        Cancellation:
            Opens none.
        """
        owner = ControlOwner(
            kind="pool",
            name=self.name,
            advice="Pool(control='/path') has it elsewhere",
            # Several processes of one service have pools of one name.
            keeps_name=False,
        )
        opened = await open_control(owner, control, self.answer, self.watching.watch)
        if opened is not None:
            self.name, self.which = opened.name, opened.which
            self._hub.companions.append(opened.socket.close)
        return opened

    async def answer(self, request: Request) -> dict[str, Any]:
        """Do what a client asks for, and return what it is told.

        Raises:
            ProtocolError: If a pool has no such action.
        """
        if request.action in _REFUSED:
            raise ProtocolError(_REFUSED[request.action])
        found: dict[str, Any] = await getattr(self, f"_{request.action}")(request)
        return found

    async def _do(self, order: str, **given: Any) -> Any:
        return await carry_out(self._pool, order, **given)

    async def _status(self, _: Request) -> dict[str, Any]:
        return self._shown(await self._do("stats"))

    async def _stacks(self, request: Request) -> dict[str, Any]:
        if request.job is None:
            found = await self._do("stacks", slot=request.slot)
            return {"stacks": {str(slot): text for slot, text in found.items()}}
        job = self._engine().registry.jobs.get(request.job)
        if job is None:
            raise ProtocolError(f"job {request.job} is over, or never was")
        slots = (await self._do("stats")).slots
        slot = next((it.slot for it in slots if request.job in it.job_ids), 0)
        text = await job.stack()
        if not text:
            raise ProtocolError(f"job {request.job} has not begun, or is over by now")
        return {"stacks": {str(slot): text}}

    async def _profile(self, request: Request) -> dict[str, Any]:
        profile: Profile = await self._do(
            "profile",
            seconds=request.seconds,
            slot=request.slot,
            function=request.function,
        )
        stacks = [
            [";".join((each.function, *each.frames)), each.samples]
            for each in profile.stacks
        ]
        return {"samples": profile.samples, **plain(profile), "stacks": stacks}

    async def _kill(self, request: Request) -> dict[str, Any]:
        await self._do("kill", slot=request.slot)
        return self._done(f"the worker in slot {request.slot} was killed")

    async def _recycle(self, request: Request) -> dict[str, Any]:
        if request.slot is not None:
            await self._do("retire", slot=request.slot)
            return self._done(f"the worker in slot {request.slot} is being replaced")
        self._done("all workers are being replaced, one after the other")
        result: RollResult = await self._do("roll")
        workers = "worker is" if result.replaced == 1 else "workers are"
        text = f"{result.replaced} {workers} new"
        if not result.ok:
            text = f"{text}, and the others stay: {result.reason}"
        told = {
            name: getattr(result, name) for name in ("replaced", "filled", "reason")
        }
        return told | self._done(text)

    async def _resize(self, request: Request) -> dict[str, Any]:
        workers, before = request.workers, self._engine().stats()
        await self._do("resize", workers=workers)
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
        answers = PoolAnswers(orders, life.running, hub, config.name, concurrency)
        opened = await answers.open(control or None)
    if config.trace is None or hub.ended:  # the pool may be closed meanwhile
        return
    from asyncpool._observe.trace import Trace  # noqa: PLC0415 - few have one

    try:
        Trace(
            config.trace,
            name=config.name,
            concurrency=concurrency,
            hub=hub,
            stats=orders.stats,
            most=config.max_traced,
        )
    except BaseException:
        if opened is not None:
            opened.socket.shut()
        raise
