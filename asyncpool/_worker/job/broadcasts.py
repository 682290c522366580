"""Run the broadcasts that came before this worker, as those ran that were there.

They ran them as jobs, so here they find what a job finds: a context of its own, the current
job, heartbeats.  But there is no such job in the pool, which has number 0 here, and nobody
hears its heartbeats.
"""

from __future__ import annotations

import os
import pickle
from contextvars import copy_context
from types import CoroutineType

from asyncpool._core.wire.context import PLAIN
from asyncpool._core.wire.page import BEGUN
from asyncpool._worker.api.context import NO_JOB, running

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from asyncpool._worker.job.coroutines import Coroutines
    from asyncpool._worker.job.heartbeats import HeartbeatWriter
    from asyncpool._worker.job.interrupts import Interrupts


class Broadcasts:
    """What runs them.

    Args:
        interrupts: Which know whether a job is running.
        beats: The heartbeats, which go nowhere meanwhile.
        coroutines: What runs those of async functions.
    """

    def __init__(
        self, interrupts: Interrupts, beats: HeartbeatWriter, coroutines: Coroutines
    ) -> None:
        self._interrupts = interrupts
        self._beats = beats
        self._coroutines = coroutines

    def run(self, call: bytes) -> None:
        """Run a pickled call.

        Raises:
            BaseException: What it raises.
        """
        worker = os.getpid()
        BEGUN.pack_into(self._beats.page, 0, NO_JOB, 1)
        self._interrupts.running, self._beats.mute = NO_JOB, True
        try:
            # What it sets there is not for the next one.
            copy_context().run(self._run, call)
        finally:
            if os.getpid() != worker:
                os._exit(0)  # a copy that it made, back from the call
            self._interrupts.running, self._beats.mute = None, False

    def _run(self, call: bytes) -> None:
        running.set((NO_JOB, 1, PLAIN, 0.0))
        function, args, kwargs = pickle.loads(call)
        value = function(*args, **kwargs)
        if type(value) is CoroutineType:
            self._coroutines.run(value)
