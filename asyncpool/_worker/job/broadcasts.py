"""Run the broadcasts that were made before this worker was started.

The other workers have run them as jobs.  So here too a broadcast has a context of its own, a
current job, and heartbeats.  But the pool has no such job: its number here is 0, and its
heartbeats have no effect.
"""

from __future__ import annotations

import os
from contextvars import copy_context
from types import CoroutineType

from asyncpool._core.wire.context import PLAIN
from asyncpool._core.wire.page import BEGUN
from asyncpool._worker.api.context import NO_JOB, name_function, running

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from asyncpool._worker.job.around import Hook
    from asyncpool._worker.job.coroutines import Coroutines
    from asyncpool._worker.job.heartbeats import HeartbeatWriter
    from asyncpool._worker.job_ending.interrupts import Interrupts


class Broadcasts:
    """What runs them.

    Args:
        interrupts: Know whether a job is running.
        beats: The heartbeats, which have no effect meanwhile.
        coroutines: Run the coroutines of async functions.
        hook: What is entered around each, as around jobs.
        load: Loads a call.
    """

    def __init__(
        self,
        interrupts: Interrupts,
        beats: HeartbeatWriter,
        coroutines: Coroutines,
        hook: Hook | None,
        load: Callable[[bytes], Any],
    ) -> None:
        self._hook = hook
        self._load = load
        self._interrupts = interrupts
        self._beats = beats
        self._coroutines = coroutines

    def run(self, call: bytes) -> None:
        """Run a pickled call.

        Raises:
            BaseException: Whatever the call raises.
        """
        worker = os.getpid()
        BEGUN.pack_into(self._beats.page, 0, NO_JOB, 1)
        self._interrupts.running, self._beats.mute = NO_JOB, True
        try:
            # The next broadcast does not see what this one sets in its context.
            copy_context().run(self._run, call)
        finally:
            if os.getpid() != worker:
                os._exit(0)  # a copy that it made, back from the call
            self._interrupts.running, self._beats.mute = None, False

    def _run(self, call: bytes) -> None:
        running.set((NO_JOB, 1, PLAIN, 0.0, None))
        function, args, kwargs = self._load(call)
        name_function(function)
        if self._hook is None:
            self._make(function, args, kwargs)
        else:
            self._hook.run(self._make, function, args, kwargs)

    def _make(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        value = function(*args, **kwargs)
        if type(value) is CoroutineType:
            self._coroutines.run(value)
