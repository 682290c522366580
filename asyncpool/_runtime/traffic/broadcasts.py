"""Calls for every worker: for those that are there as jobs, for others at their start.

A worker that is up or starting when a broadcast begins, or is started before it is over,
has an *call*: a job for this one worker, before which it gets no other.  When all have
run theirs, the broadcast is over and remembered, and workers that are started from then on
find it in their configuration.  So each worker has it from one of the two, and an error
meets the caller, and not the pool's starts, as long as there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from asyncpool._core.main.main_module import is_in_use
from asyncpool._core.pickling.out_of_band import StreamTooLongError, dump
from asyncpool._core.placement.broadcasts import Broadcast, Remembered
from asyncpool._core.policies.attempts import AttemptPolicy
from asyncpool._core.policies.job_limits import JobOptions
from asyncpool._core.slots.slots import UP
from asyncpool._core.wire.messages import MAX_BROADCASTS, WorkerConfig
from asyncpool._runtime.base.threads import Pause, Threads
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.admission import Admission
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool._runtime.traffic.large_jobs import too_large, unpicklable
from asyncpool._runtime.traffic.traffic import Traffic
from asyncpool.enums import SlotState
from asyncpool.errors import (
    BroadcastError,
    PoolBrokenError,
    PoolClosedError,
)

_COMING = UP | {SlotState.STARTING}


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    """One broadcast that is not over.

    Attributes:
        broadcast: The call.
        options: What each pinned job is to have.
        over: What the caller awaits.
        calls: Those that are open, by slot.
        results: What the others have returned.
        errors: Or raised.
    """

    broadcast: Broadcast
    options: JobOptions
    over: asyncio.Future[dict[int, Any]]
    calls: dict[int, Job[Any]] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)


class Broadcaster:
    """The broadcasts of one pool.

    Args:
        state: The pool.
        admission: Who may come in.
        traffic: The way to the workers.
        threads: Where calls are pickled.
        config: What workers are told that are started before any broadcast.
    """

    def __init__(
        self,
        state: PoolState,
        admission: Admission,
        traffic: Traffic,
        threads: Threads,
        config: WorkerConfig,
    ) -> None:
        self._state = state
        self._admission = admission
        self._traffic = traffic
        self._threads = threads
        self._config = config
        self._packed: bytes | None = None
        self._remembered = Remembered(MAX_BROADCASTS)
        self._numbers = itertools.count(1)
        self._runs: list[_Run] = []
        self._turns: list[asyncio.Future[None]] = []  # of those that have not begun

    def config(self) -> bytes:
        """Return what a worker is told that is started now, packed."""
        # A job that is the first to need the script waits for its import; once one has
        # needed it, workers that start later are not ready before they have it.
        first = is_in_use()
        if self._packed is None or first != self._config.script_first:
            self._config = self._config._replace(script_first=first)
            calls = self._remembered.calls
            self._packed = self._config._replace(broadcasts=calls).pack()
        return self._packed

    async def broadcast(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> dict[int, Any]:
        """Run a call in every worker; see :meth:`asyncpool.Pool.broadcast`."""
        if options.key is not None or options.lease is not None:
            raise ValueError("a broadcast is for every worker: it has no key, no lease")
        async with self._turn() as turn:
            payload = await self._pack(function, args, kwargs)
            await turn
            self._admission.check_open()
            broadcast = Broadcast.of(next(self._numbers), function, payload)
            self._remembered.check(broadcast, [run.broadcast for run in self._runs])
            run = self._begin(broadcast, options)
        try:
            return await run.over
        finally:
            if run in self._runs:  # the caller has left
                self._runs.remove(run)
            for call in list(run.calls.values()):
                call.cancel()

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncGenerator[asyncio.Future[None], None]:
        """Take a turn in the order of the calls; what is yielded is done when it has come.

        What takes long to be pickled is overtaken in the threads, and the last one is
        what all workers are to know in the end.
        """
        turn: asyncio.Future[None] = self._state.loop.create_future()
        self._turns.append(turn)
        self._next_turn()
        try:
            yield turn
        finally:
            self._turns.remove(turn)
            self._next_turn()

    def _next_turn(self) -> None:
        if self._turns and not self._turns[0].done():
            self._turns[0].set_result(None)

    def _begin(self, broadcast: Broadcast, options: JobOptions) -> _Run:
        """Have the workers that there are run it."""
        run = _Run(
            broadcast=broadcast,
            options=replace(options, attempts=AttemptPolicy(), name=broadcast.name),
            over=self._state.loop.create_future(),
        )
        self._runs.append(run)
        for slot in self._state.core.slots:
            if slot.state in _COMING and not slot.draining:
                self._run_in(slot.index, run)
        self._state.loop.call_soon(self._look, run)
        return run

    async def _pack(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> bytes:
        unwanted, call = threading.Event(), (function, args, kwargs)
        packing = self._threads.pickle(_pack, call, unwanted=unwanted.is_set)
        try:
            await asyncio.wait([packing])
        finally:
            unwanted.set()
            packing.cancel()  # if it was not waited for to its end
        if packing.cancelled():
            raise PoolClosedError
        error = packing.exception()
        if isinstance(error, StreamTooLongError):
            raise ValueError(  # noqa: TRY004 - of the argument, which is too large
                f"the call has more than {MAX_BROADCASTS} bytes when pickled, which is "
                "the most, since every new worker gets it: have the function load what "
                "is large, from a file for example"
            )
        if error is not None:  # also a SystemExit, which is the argument's
            raise unpicklable(error)
        payload = packing.result()
        most = self._config.max_payload
        if len(payload) > most:
            raise too_large(len(payload), most)
        return payload

    # What happens to workers meanwhile.

    def on_spawn(self, slot: int) -> None:
        """Take note that a worker is being started: it is one of those there are."""
        for run in self._runs:
            last = run.calls.get(slot)
            dying = last is not None and not last.done()  # with the worker before
            if not dying and not run.errors:  # which end it; nobody else need try
                self._run_in(slot, run)

    def on_dropped(self, numbers: Iterable[int]) -> None:
        """Take note that the workers of these pinned jobs go, and have not begun them."""
        for number in numbers:
            call = self._state.registry.jobs[number]
            self._state.registry.cancelled(call)
            super(Job, call).cancel()  # its owner knows

    def _run_in(self, slot: int, run: _Run) -> None:
        call = self._traffic.send_pinned(slot, run.broadcast.payload, run.options)
        run.calls[slot] = call
        call.add_done_callback(functools.partial(self._on_done, slot, run))

    def _on_done(self, slot: int, run: _Run, call: Job[Any]) -> None:
        error = None if call.cancelled() else call.exception()
        if run.calls.get(slot) is not call:
            return  # there is another worker by now, which has its own
        del run.calls[slot]
        run.results.pop(slot, None)
        if error is not None:
            run.errors[slot] = error
        elif not call.cancelled():
            run.results[slot] = call.result()
        self._look(run)

    def _look(self, run: _Run) -> None:
        """End a broadcast if all have run it, or none ever will."""
        if run not in self._runs:
            return
        ended = (PoolClosedError, PoolBrokenError)
        end = next((e for e in run.errors.values() if isinstance(e, ended)), None)
        if run.calls and end is None:
            return
        self._runs.remove(run)
        if run.over.done():
            return
        if end is not None:
            run.over.set_exception(end)
        elif run.errors:
            name = run.broadcast.name
            run.over.set_exception(
                BroadcastError(name, results=run.results, errors=run.errors)
            )
        else:
            self._remembered.add(run.broadcast)
            self._packed = None
            run.over.set_result(dict(sorted(run.results.items())))


def _pack(call: tuple[Any, ...], pause: Pause) -> bytes:
    # In one piece, which is the same for a job and for a configuration.
    return b"".join(dump(call, limit=MAX_BROADCASTS, pause=pause, whole=True).pieces)
