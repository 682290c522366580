"""The control socket of a pool: what commands may see of it, and do to it."""

from __future__ import annotations

import os
from typing import Any

from asyncpool._core.control.control_protocol import Request
from asyncpool._observe.control.job_feed import JobFeed
from asyncpool._observe.control.plain import plain
from asyncpool._observe.control.watch import Watching
from asyncpool._runtime.control.opening import Control, ControlOwner, open_control
from asyncpool._runtime.pool.lifecycle import SupervisorRunner
from asyncpool.errors import ProtocolError


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
        which: The option of commands that names it.
        watching: Lets clients watch it.
    """

    def __init__(self, life: SupervisorRunner, name: str, concurrency: int) -> None:
        self.name = name
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
            case _:
                raise ProtocolError(f"a pool has no action {request.action!r}")

    def _status(self) -> dict[str, Any]:
        return {
            "kind": "pool",
            "name": self.name,
            "which": self.which,
            "pid": os.getpid(),
            "concurrency": self._concurrency,
            **plain(self._life.running().stats()),
        }
