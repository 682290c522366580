"""Parts of a worker in the process of the test, without signals and without a control thread."""

from __future__ import annotations

import asyncio
import os
from threading import get_ident
from typing import Any

from asyncpool._core.pickling.calls import load_value, pack_job
from asyncpool._core.pickling.errors import load_error
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._runtime.channel.page import WorkerPage
from asyncpool._worker.job.coroutines import Coroutines
from asyncpool._worker.job_ending.interrupts import Interrupts
from tests.helpers.parcels import plain

__all__ = ["Loops", "Quiet", "SharedPage", "call_of", "opened"]


class Quiet(Interrupts):
    """Ends jobs only by means of their loop."""

    def __init__(self) -> None:
        self.running = None
        self.instead = self.stacks = self.lanes = self.fences = None
        self._held = False
        self._wanted = set()
        self.main = get_ident()


class Loops(Coroutines):
    """The event loop of a worker, which leaves no trace of it behind."""

    def close(self) -> None:
        """End the loop; more than once does no harm."""
        super().close()
        asyncio.set_event_loop(None)
        self._loop = None


class SharedPage:
    """The memory that a worker shares with the pool.

    Args:
        width: How many jobs the worker runs at once.

    Attributes:
        seen: What the pool sees of it.
        fd: What the worker has of it.
    """

    def __init__(self, width: int) -> None:
        self.seen = WorkerPage(width)
        self.fd = self.seen.open()

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)
        self.seen.close()


def call_of(job: int, function: Any, *args: Any) -> Frame:
    """Return a first attempt at a call."""
    return Frame(FrameKind.JOB, job, 1, 0, plain(pack_job(function, args, {})))


def opened(kind: FrameKind, payload: Any) -> Any:
    """Return a value, or the exception that was raised."""
    return load_value(payload) if kind is FrameKind.VALUE else load_error(payload)
