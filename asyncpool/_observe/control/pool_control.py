"""The control socket of a pool: what commands may see of it, and do to it."""

from __future__ import annotations

import logging
import os
from typing import Any

from asyncpool._core.base import pool_messages as say
from asyncpool._core.control.control_protocol import Request
from asyncpool._core.profile.profile_messages import ProfileRequest
from asyncpool._observe.control.job_feed import JobFeed
from asyncpool._observe.control.plain import plain
from asyncpool._observe.control.watch import Watching
from asyncpool._runtime.base.event_loop import shielded
from asyncpool._runtime.control.opening import Control, ControlOwner, open_control
from asyncpool._runtime.pool.lifecycle import SupervisorRunner
from asyncpool.errors import ProtocolError

# Samples a second of each worker.
_RATE = 100.0

_LOGGER = logging.getLogger("asyncpool")


def open_pool_control(
    life: SupervisorRunner, name: str, control: str | None, concurrency: int
) -> Control | None:
    """Open the control socket of a pool that starts; the pool closes it at its end.

    Args:
        life: The pool's life.  Not the pool itself: who drops it would not be noticed then.
        name: The pool's name.
        control: The name or path that was asked for; ``None`` for the pool's name.
        concurrency: How many jobs each worker runs at once.

    Raises:
        OSError: If a socket at that path cannot be made.
    """
    owner = ControlOwner(
        kind="pool",
        name=name,
        advice="Pool(control='/path') has it elsewhere",
        # Several processes of one service have pools of one name.
        keeps_name=False,
    )
    answers = PoolAnswers(life, name, concurrency)
    opened = open_control(owner, control, answers.answer, answers.watching.watch)
    if opened is not None:
        answers.name, answers.which = opened.name, opened.which
        life.hub.add_companion(opened.socket)
    return opened


class PoolAnswers:
    """Answers what clients ask a pool.

    Args:
        life: The pool's life.
        name: What it is called.
        concurrency: How many jobs each worker runs at once.

    Attributes:
        name: What commands call it.
        which: What commands are told to find it.
        watching: Lets clients watch it.
    """

    def __init__(self, life: SupervisorRunner, name: str, concurrency: int) -> None:
        self.name = self._pool = name
        self.which = ""
        self._life = life
        self._concurrency = concurrency
        jobs = JobFeed(life.hub, concurrency)
        self.watching = Watching(life.hub, self._status, jobs)

    async def answer(self, request: Request) -> dict[str, Any]:
        """Do what a client asks for, and return what it is told.

        Raises:
            ProtocolError: If a pool has no such action.
        """
        match request.action:
            case "status":
                return self._status()
            case "stacks":
                return {"stacks": await self._stacks(request)}
            case "profile":
                return await self._profile(request)
            case "kill":
                return self._kill(request.slot)
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
        supervisor = self._life.running()
        if request.job is None:
            found = await supervisor.traffic.live_stacks.of_workers(request.slot)
            return {str(slot): text for slot, text in found.items()}
        job = supervisor.job(request.job)
        if job is None:
            raise ProtocolError(f"job {request.job} is over, or never was")
        slot, text = job._slot, await job.stack()
        if not text:
            raise ProtocolError(f"job {request.job} has not begun, or is over by now")
        return {str(slot): text}

    async def _profile(self, request: Request) -> dict[str, Any]:
        wanted = ProfileRequest(request.seconds, _RATE, request.function or "")
        profile = await self._life.open().profiles.take(wanted, request.slot)
        found = plain(profile)
        found["stacks"] = [
            [";".join((each.function, *each.frames)), each.samples]
            for each in profile.stacks
        ]
        return {"samples": profile.samples, **found}

    def _kill(self, slot: int | None) -> dict[str, Any]:
        assert slot is not None
        self._life.running().replacement.kill(slot)
        text = f"the worker in slot {slot} was killed"
        self._tell(text)
        return {"text": text}

    async def _recycle(self, slot: int | None) -> dict[str, Any]:
        if slot is not None:
            self._life.open().replacement.retire_from(slot)
            text = f"the worker in slot {slot} is being replaced"
            self._tell(text)
            return {"text": text}
        self._tell("all workers are being replaced, one after the other")
        result = await shielded(self._life.trying().replacement.roll())
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
        supervisor = self._life.open()
        before = supervisor.stats().workers
        await shielded(supervisor.replacement.resize(workers, workers))
        text = (
            f"{workers} {'worker' if workers == 1 else 'workers'} now, {before} before"
        )
        self._tell(text)
        return {"workers": workers, "text": text}

    def _tell(self, text: str) -> None:
        """Have the log say what a command has done, which nobody else would know."""
        title = f"pool {self._pool}"
        say.COMMANDED.log(_LOGGER, {"pool": self._pool}, title=title, done=text)

    def _status(self) -> dict[str, Any]:
        return {
            "kind": "pool",
            "name": self.name,
            "which": self.which,
            "pid": os.getpid(),
            "concurrency": self._concurrency,
            **plain(self._life.running().stats()),
        }


def _workers(count: int) -> str:
    return "worker is" if count == 1 else "workers are"
