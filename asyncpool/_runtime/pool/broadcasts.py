"""Calls that every worker makes: present workers as a job, later ones at their start.

While a broadcast is open, each worker that is ready, that is starting, or that starts
before the broadcast is over gets a *call*: a pinned job, which the worker runs before any
other job.  The broadcast is over when all of them have made their call.  From then on, new
workers find it in their configuration.  So each worker makes the call once, in one of the
two ways.  An error reaches the caller while there is one, and only later fails a start.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from asyncpool._core.base.names import function_name
from asyncpool._core.main.main_module import Abroad, is_in_use
from asyncpool._core.pickling.out_of_band import StreamTooLongError, dump
from asyncpool._core.pickling.serializers import PICKLE, Serializer
from asyncpool._core.policies.job_options import AttemptPolicy, JobOptions
from asyncpool._core.slots.slots import UP
from asyncpool._core.supervision.broadcasts import Broadcast, StartBroadcasts
from asyncpool._core.wire.messages import MAX_BROADCASTS, WorkerConfig
from asyncpool._runtime.base.threads import Pause, Threads
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.pool.large import Call, too_large, unpicklable
from asyncpool.enums import SlotState
from asyncpool.errors import (
    BroadcastError,
    JobNotPicklableError,
    PoolBrokenError,
    PoolClosedError,
)

if TYPE_CHECKING:
    from asyncpool._core.codec.data_only import DataOnly
    from asyncpool._core.codec.formats import Format
    from asyncpool._runtime.pool.engine import Engine


# The calls of broadcasts, which a thread pickles in one piece: a worker's configuration has no other.


def check_broadcast(options: JobOptions) -> None:
    """Check that a broadcast can have these options.

    Raises:
        ValueError: If it cannot.
    """
    if options.key is not None or options.lease is not None:
        raise ValueError("a broadcast is for every worker: it has no key, no lease")


def serializer_of(
    data: DataOnly | None, function: Any, options: JobOptions
) -> Serializer:
    """Return what loads the results of a broadcast of *function*."""
    if data is None:
        return PICKLE
    return data.serializer_of(function, options.codec or data.how)


async def pack_broadcast(
    threads: Threads,
    data: DataOnly | None,
    call: Call,
    options: JobOptions,
    *,
    abroad: bool = False,
) -> bytes:
    """Return the call of a broadcast, pickled.

    Args:
        threads: They pickle it.
        data: What calls may be, if the pool is data only.
        call: The function and its arguments.
        options: Those of the broadcast.
        abroad: Whether the workers are another program's.

    Raises:
        JobNotPicklableError: If it cannot be pickled.
        ValueError: If it is too large.
        PoolClosedError: If the threads are closed meanwhile.

    Cancellation:
        Safe.
    """
    unwanted, pack = threading.Event(), _pack_abroad if abroad else _pack
    if data is not None:
        pack = functools.partial(_pack_data, data, options.codec or data.how)
    packing = threads.pickle(pack, call, unwanted=unwanted.is_set)
    try:
        await asyncio.wait([packing])
    finally:
        unwanted.set()
        packing.cancel()  # if the caller was cancelled before it was done
    if packing.cancelled():
        raise PoolClosedError
    error = packing.exception()
    if isinstance(error, StreamTooLongError):
        raise ValueError(  # noqa: TRY004 - of the argument, which is too large
            f"the call has more than {MAX_BROADCASTS} bytes when pickled, which is "
            "the most, since every new worker gets it: have the function load "
            "large objects itself, for example from a file"
        )
    if isinstance(error, JobNotPicklableError):
        raise error
    if error is not None:  # even a SystemExit, since an argument has raised it
        raise unpicklable(error)
    return packing.result()


def _pack(call: tuple[Any, ...], pause: Pause) -> bytes:
    return b"".join(dump(call, limit=MAX_BROADCASTS, pause=pause, in_band=True).pieces)


def _pack_abroad(call: tuple[Any, ...], pause: Pause) -> bytes:
    with Abroad():
        return _pack(call, pause)


def _pack_data(
    data: DataOnly, how: Format, call: tuple[Any, ...], pause: Pause
) -> bytes:
    pause()
    function, args, kwargs = call
    payload = data.pack_alone(function, args, kwargs, how)
    if len(payload) > MAX_BROADCASTS:
        raise StreamTooLongError
    return payload


_COMING = UP | {SlotState.STARTING}


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    """One broadcast that is not over.

    Attributes:
        broadcast: The function and its arguments.
        options: The options of each pinned job.
        over: The future that the caller awaits.
        serializer: Loads what the calls return.
        calls: The pinned jobs that are open, by slot.
        results: What the calls have returned, by slot.
        errors: What they have raised, by slot.
    """

    broadcast: Broadcast
    options: JobOptions
    over: asyncio.Future[dict[int, Any]]
    serializer: Serializer
    calls: dict[int, Job[Any]] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)


class Broadcaster:
    """The broadcasts of one pool.

    Args:
        engine: The pool's engine.
        config: The configuration of workers before any broadcast.
    """

    def __init__(self, engine: Engine, config: WorkerConfig) -> None:
        self._engine = engine
        self._config = config
        self._packed: bytes | None = None
        self._remembered = StartBroadcasts(MAX_BROADCASTS)
        self._numbers = itertools.count(1)
        self._runs: list[_Run] = []
        # They begin in the order of the calls, however long one is pickled: the last call is
        # the one whose effect all workers have in the end.
        self._order = asyncio.Lock()

    def config(self) -> bytes:
        """Return the configuration for a worker that is started now, packed."""
        # Until a job has needed the script, workers import it when they need it.  After that,
        # a new worker imports it before it is ready.
        first = is_in_use() or self._config.script_first
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
        check_broadcast(options)
        data = self._engine.config.data
        serializer = serializer_of(data, function, options)
        async with self._order:
            payload = await pack_broadcast(
                self._engine.threads, data, (function, args, kwargs), options
            )
            number = next(self._numbers)
            broadcast = Broadcast(number, function_name(function), payload)
            run = self._begin(broadcast, options, serializer)
        return await self._result(run)

    async def broadcast_packed(
        self,
        name: str,
        payload: bytes,
        options: JobOptions,
        serializer: Serializer,
    ) -> dict[int, Any]:
        """Do the same with a call that is pickled already."""
        async with self._order:
            broadcast = Broadcast(next(self._numbers), name, payload)
            run = self._begin(broadcast, options, serializer)
        return await self._result(run)

    async def _result(self, run: _Run) -> dict[int, Any]:
        try:
            return await run.over
        finally:
            if run in self._runs:  # the caller has been cancelled
                self._runs.remove(run)
            for call in list(run.calls.values()):
                call.cancel()

    def _begin(
        self, broadcast: Broadcast, options: JobOptions, serializer: Serializer
    ) -> _Run:
        """Send the call to all workers that there are, if the pool takes it."""
        self._engine.admission.check_open()
        if len(broadcast.payload) > self._config.max_payload:
            raise too_large(len(broadcast.payload), self._config.max_payload)
        self._remembered.check(broadcast, [run.broadcast for run in self._runs])
        run = _Run(
            broadcast=broadcast,
            options=replace(
                options,
                attempts=AttemptPolicy(),
                via="broadcast",
                name=broadcast.name,
            ),
            over=self._engine.loop.create_future(),
            serializer=serializer,
        )
        self._runs.append(run)
        for slot in self._engine.core.slots:
            if slot.state in _COMING and not slot.draining:
                self._run_in(slot.index, run)
        self._engine.loop.call_soon(self._look, run)
        return run

    # What happens to workers while a broadcast is open.

    def on_spawn(self, slot: int) -> None:
        """Send the open broadcasts to a worker that is being started."""
        for run in self._runs:
            last = run.calls.get(slot)
            dying = last is not None and not last.done()  # of the previous worker
            if not dying and not run.errors:  # an error ends the broadcast
                self._run_in(slot, run)

    def on_dropped(self, numbers: Iterable[int]) -> None:
        """Cancel pinned jobs whose workers leave before they begin them."""
        for number in numbers:
            call = self._engine.registry.jobs[number]
            self._engine.registry.cancelled(call)
            super(Job, call).cancel()  # not Job.cancel(), which would tell the pool

    def _run_in(self, slot: int, run: _Run) -> None:
        payload = run.broadcast.payload
        call = self._engine.traffic.send_pinned(
            slot, payload, run.options, run.serializer
        )
        run.calls[slot] = call
        call.add_done_callback(functools.partial(self._on_done, slot, run))

    def _on_done(self, slot: int, run: _Run, call: Job[Any]) -> None:
        error = None if call.cancelled() else call.exception()
        if run.calls.get(slot) is not call:
            return  # another worker is in the slot now, and has its own call
        del run.calls[slot]
        run.results.pop(slot, None)
        if error is not None:
            run.errors[slot] = error
        elif not call.cancelled():
            run.results[slot] = call.result()
        self._look(run)

    def _look(self, run: _Run) -> None:
        """End a broadcast if no call is open, or if the pool has ended."""
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
