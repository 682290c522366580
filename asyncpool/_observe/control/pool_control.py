"""The control socket of a pool: what commands may see of it, and do to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from asyncpool._core import log_messages as say
from asyncpool._engine.engine import PoolLife
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.options import EngineConfig
from asyncpool._observe.control.protocol import Request, carry_out, fields_of
from asyncpool._observe.control.server import ControlSocket, open_control
from asyncpool._observe.control.watch import JobFeed, watching
from asyncpool.errors import ProtocolError
from asyncpool.events import RollResult
from asyncpool.profile import Profile
from asyncpool.stats import PoolStats

# What a pool cannot do, and a server can.
_REFUSED = {
    "reload": "a pool cannot reload: its program decides that",
    "stop": "a pool cannot stop: its program decides that",
    "requests": "a pool has no requests, only a server has",
}


class PoolAnswers:
    """Answers what clients ask a pool.

    Args:
        pool: What has the methods of the pool that :data:`ORDERS` names.
        engine: Returns what makes the calls: an engine, or the client of a remote pool.
        concurrency: How many jobs each worker runs at once.

    Attributes:
        name: What commands call it.
        which: What commands are told to find it.
    """

    def __init__(self, pool: Any, engine: Callable[[], Any], concurrency: int) -> None:
        self.name, self.which = pool.name, ""
        self._log = NamedLog(pool.name, f"pool {pool.name}")
        self._pool, self._engine = pool, engine
        self._concurrency = concurrency

    async def open(self, control: str | None) -> ControlSocket | None:
        """Open the control socket of a pool that starts; the pool closes it at its end.

        Args:
            control: The name or path that was asked for; ``None`` for the pool's name.

        Raises:
            OSError: If a socket at that path cannot be made.

        Cancellation:
            Opens none.
        """
        hub = self._pool._life.hub  # noqa: SLF001 - the pool's own
        feed = JobFeed(hub, self._concurrency)
        watch = watching(hub, lambda: self._shown(self._engine().stats()), feed)
        opened = await open_control("pool", self.name, control, self.answer, watch)
        if opened is not None:
            self.name, self.which = opened.name, opened.which
            hub.companions.append(opened.close)
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
            return {"stacks": await self._do("stacks", slot=request.slot)}
        job = self._engine().registry.jobs.get(request.job)
        if job is None:
            raise ProtocolError(f"job {request.job} is over, or never was")
        slots = (await self._do("stats")).slots
        slot = next((it.slot for it in slots if request.job in it.job_ids), 0)
        text = await job.stack()
        if not text:
            raise ProtocolError(f"job {request.job} has not begun, or is over by now")
        return {"stacks": {slot: text}}

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
        return {"samples": profile.samples, **fields_of(profile), "stacks": stacks}

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
        told = {it: getattr(result, it) for it in ("replaced", "filled", "reason")}
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
            **fields_of(stats),
        }


async def open_beside(pool: Any, config: EngineConfig, control: str | None) -> None:
    """Open what a pool was asked to have beside it, before anything happens in it.

    Args:
        pool: The pool, in a form that does not keep it.
        config: What the pool was told; the trace is there.
        control: The name or path of the control socket; ``""`` for the pool's name, ``None``
            for no socket.

    Raises:
        OSError: If the file cannot be written, or the socket cannot be made at its path.

    Cancellation:
        Opens neither.
    """
    life: PoolLife = pool._life  # noqa: SLF001 - the pool's own
    hub, opened = life.hub, None
    if control is not None:
        answers = PoolAnswers(pool, life.running, config.worker.concurrency)
        opened = await answers.open(control or None)
    if config.trace is None or hub.ended:  # the pool may be closed meanwhile
        return
    from asyncpool._observe.trace import Trace  # noqa: PLC0415 - few have one

    try:
        Trace(config, hub, pool.stats)
    except BaseException:
        if opened is not None:
            opened.shut()
        raise
