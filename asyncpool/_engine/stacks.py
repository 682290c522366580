"""What a worker is asked for while it runs: stacks, before it is killed, and profiles.

For stacks, the pool asks the worker's control thread, which writes the stacks of all threads on the
page.  That thread cannot run while another thread holds the GIL.  Then the pool sends a signal,
whose handler in C writes the stacks.  For a profile, workers send samples, and the pool puts them
together.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import field, fields
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from asyncpool._core.slots import ALIVE, UP
from asyncpool._dataclass import dataclass
from asyncpool._engine.loop import shielded
from asyncpool._engine.machine import is_stopped
from asyncpool._engine.worker import WorkerHandle
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.messages import are_whole
from asyncpool._wire.text import printable_block
from asyncpool.errors import NoWorkerError, ProfileInProgressError, ProtocolError

if TYPE_CHECKING:
    from asyncpool._core.profile_book import ProfileBook
    from asyncpool._engine.engine import Engine
    from asyncpool._wire.profile import ProfileRequest
    from asyncpool.profile import Profile

# Seconds that a worker has to answer, which takes 1 ms on a machine that has time.
_PATIENCE = 2.0

MAX_TEXT = 1 << 16

# How many seconds before the worker's end the pool sends that signal.  Until then the control
# thread has had its chance to run, which comes every 5 ms.  24 ms were sometimes not enough, on
# two cores that other processes computed on.
_DUMP_TIME = 0.15
_NEXT_LOOK = 0.001


class Stacks:
    """Gets the stacks of the workers of a pool.

    Args:
        engine: The pool's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # The questions that have no answer yet, by worker and job.
        self._asked: WeakKeyDictionary[WorkerHandle, dict[int, asyncio.Future[str]]]
        self._asked = WeakKeyDictionary()

    # Of workers that go on.
    #
    # Only the control thread answers then, and it cannot while C code holds the GIL: the signal may
    # only be sent to a worker that is about to be killed, since it could come just when the GIL was
    # let go of.

    def answered(self, handle: WorkerHandle, job: int, payload: bytes) -> None:
        """Hear where a worker is, or a job of it.

        Raises:
            ProtocolError: If it tells too much.
        """
        if len(payload) > MAX_TEXT:
            raise ProtocolError(f"it sent stacks of {len(payload)} bytes")
        answer = self._asked.get(handle, {}).pop(job, None)
        if answer is None:
            return  # to look at 64 KiB of text takes 3 ms, and a worker may send it often
        answer.set_result(printable_block(payload))

    async def of_workers(self, slot: int | None = None) -> dict[int, str]:
        """Return the stacks of all workers, or of that in *slot*, by slot.

        Raises:
            NoWorkerError: If there is none in *slot*.

        Cancellation:
            Safe.
        """
        core, handles = self._engine.core, self._engine.handles
        there = {it.index: handles[it.index] for it in core.slots if it.state in ALIVE}
        if slot is not None:
            if slot not in there:
                raise NoWorkerError(slot, there=tuple(there))
            there = {slot: there[slot]}
        texts = await asyncio.gather(*(self.ask(each, 0) for each in there.values()))
        return dict(zip(there, texts, strict=True))

    async def ask(self, handle: WorkerHandle, job: int) -> str:
        """Return the stacks of a worker, or that of a *job* of it; empty if there is none.

        Cancellation:
            Safe.
        """
        if handle.pid is None or self._ends(handle):
            return ""
        asked = self._asked.setdefault(handle, {})
        answer = asked.get(job)
        if answer is None:
            answer = asked[job] = self._engine.loop.create_future()
            handle.ask(FrameKind.WHERE, b"", job)
        try:
            async with asyncio.timeout(_PATIENCE):
                return await shielded(answer)  # which others may wait for, too
        except TimeoutError:
            return self._silence(handle, handle.pid)

    def _silence(self, handle: WorkerHandle, pid: int) -> str:
        if self._engine.handles.get(handle.slot) is not handle or self._ends(handle):
            return ""
        if is_stopped(pid):
            return f"The process {pid} is stopped, and cannot say where it is."
        return (
            f"The process {pid} has not said for {_PATIENCE:g} s where it is: C code holds its "
            "GIL, or it gets no CPU."
        )

    def _ends(self, handle: WorkerHandle) -> bool:
        # A server that was told to stop goes on with its connections.
        goes_on = handle.link is not None and not (
            handle.broke_protocol or handle.killed
        )
        return handle.ignored and not goes_on

    # Of workers that are about to be killed.

    def written(self, handle: WorkerHandle, job: int | None) -> None:
        """Note that a worker has written where its threads are, which its end may wait for."""
        with self._engine.turn as now:
            self._engine.core.endings.stacks_written(handle.slot, now, job)

    def ask_late(self, slot: int, due: float) -> None:
        """Ask the worker in *slot* for its stacks, whose time to end is over at *due*."""
        handle = self._engine.handles[slot]
        handle.page.take_stacks()  # erases an older dump
        handle.ask(FrameKind.STACKS)
        demand_at = _demand_at(due, self._engine.loop.time())
        self._engine.loop.call_at(demand_at, self._demand_late, handle)

    def _demand_late(self, handle: WorkerHandle) -> None:
        is_there = self._engine.handles[handle.slot] is handle
        if is_there and not handle.page.written_stacks:
            handle.demand_stacks()

    def kill_hung(
        self, handle: WorkerHandle, silence: str, job: int | None = None
    ) -> None:
        """Have a worker killed because it, or its *job*, was silent for too long.

        *silence* says how long, for the crash report.
        """
        if handle.pid is not None and is_stopped(handle.pid):
            silence += "; the process is stopped"
        handle.silence = silence
        handle.page.take_stacks()  # erases an older dump
        with self._engine.turn as now:
            self._engine.core.endings.kill_hung(handle.slot, now, job)
        self.signal_before_end(
            handle, now, job or self._engine.core.slots[handle.slot].in_flight.head
        )

    def signal_before_end(
        self, handle: WorkerHandle, now: float, job: int | None
    ) -> None:
        """Send the signal shortly before the worker's time is over, if it has not answered."""
        due = self._engine.core.slots[handle.slot].due
        if due is not None:
            demand_at = _demand_at(due, now)
            self._engine.loop.call_at(
                demand_at, self._demand, handle, job, due - demand_at
            )

    def _demand(self, handle: WorkerHandle, job: int | None, seconds: float) -> None:
        """Send the signal, and give the worker so many seconds from now to write its stacks."""
        # The job holds the GIL then, or the control thread had answered.  So no other thread of
        # Python's runs, and a signal handler can read the stacks; else it might crash.
        if self._runs(handle, job) and not handle.page.written_stacks:
            handle.demand_stacks()
            with self._engine.turn as now:
                self._engine.core.endings.stacks_demanded(handle.slot, now + seconds)
            self._look(handle, job, b"")

    def _look(self, handle: WorkerHandle, job: int | None, before: bytes) -> None:
        """Let a worker be killed once it has written its stacks to their end."""
        if not self._runs(handle, job):
            return
        written = handle.page.written_stacks
        if are_whole(written, before):
            with self._engine.turn as now:
                self._engine.core.endings.stacks_written(handle.slot, now)
        else:
            loop = self._engine.loop
            loop.call_later(_NEXT_LOOK, self._look, handle, job, written)

    def _runs(self, handle: WorkerHandle, job: int | None) -> bool:
        """Return whether the worker still runs *job*; without a job, whether it runs nothing."""
        core, slot = self._engine.core, handle.slot
        if self._engine.handles[slot] is not handle:
            return False
        return (
            core.slots[slot].in_flight.head is None
            if job is None
            else core.slots[slot].in_flight.runs(job)
        )


def _demand_at(due: float, now: float) -> float:
    return due - min(_DUMP_TIME, 0.8 * (due - now))


# Seconds that the workers have for their last samples.  A worker whose GIL is held in C for
# longer has sent the others.
_LAST_SAMPLES = 2.0


@dataclass(slots=True, kw_only=True)
class _Run:
    """The profile that is being taken.

    Attributes:
        number: Tells its samples from those of others.
        request: What the workers sample.
        slot: The only slot that counts; ``None`` for all.
        until: When it ends.
        book: Whom the pool has asked, and what they sent.
        over: Set when the pool has ended, or when nothing more will come.
    """

    number: int
    request: ProfileRequest
    slot: int | None
    until: float
    book: ProfileBook
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Profiles:
    """The profiles of one pool, one at a time.

    Args:
        engine: The pool's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers = itertools.count(1)
        self._run: _Run | None = None

    async def take(self, request: ProfileRequest, slot: int | None) -> Profile:
        """Sample the workers; see :meth:`asyncpool.Pool.profile`.

        Raises:
            ProfileInProgressError: If another profile is being taken.
            NoWorkerError: If no worker is ready in *slot*.

        Cancellation:
            Ends the samplers.
        """
        if self._run is not None:
            raise ProfileInProgressError(
                f"a profile of {self._engine.config.title} is being taken already: wait "
                "until it is over"
            )
        engine = self._engine
        ready = (each.index for each in engine.core.slots if each.state in UP)
        handles = {index: engine.handles[index] for index in ready}
        if slot is not None and slot not in handles:
            raise NoWorkerError(slot, there=tuple(handles))
        from asyncpool._core.profile_book import ProfileBook  # noqa: PLC0415 - few take one

        now = self._engine.loop.time()
        run = self._run = _Run(
            number=next(self._numbers),
            request=request,
            slot=slot,
            until=now + request.seconds,
            book=ProfileBook(),
        )
        for handle in handles.values():
            self.join(handle)
        try:
            await _wait(run.over, request.seconds)
            took = self._engine.loop.time() - now
            self._look(run)
            await _wait(run.over, _LAST_SAMPLES)
        finally:
            self._run = None
            self._end(run)
        return self._profile_of(run, took)

    def join(self, handle: WorkerHandle) -> None:
        """Ask a worker for samples that is ready, if a profile is being taken."""
        run, now = self._run, self._engine.loop.time()
        if run is None or run.slot not in {None, handle.slot} or now >= run.until:
            return
        assert handle.pid is not None
        run.book.ask(handle.slot, handle.generation, handle.pid)
        request = run.request._replace(seconds=run.until - now)
        handle.ask(FrameKind.PROFILE, request.pack(), run.number)

    def hear(self, handle: WorkerHandle, frame: Frame) -> None:
        """Count samples that a worker has sent.

        Raises:
            ProtocolError: If they cannot be read.
        """
        run = self._run
        if run is None or frame.job != run.number:
            return  # they are of a profile that was cancelled
        from asyncpool._wire.profile import SampleChunk  # noqa: PLC0415 - see above

        chunk, last = SampleChunk.unpack(frame.payload), bool(frame.number)
        run.book.hear(handle.slot, handle.generation, chunk, last=last)
        self._look(run)

    def lose(self, handle: WorkerHandle) -> None:
        """Note that a worker has ended."""
        if self._run is not None:
            self._run.book.lost(handle.slot, handle.generation)
            self._look(self._run)

    def stop(self) -> None:
        """End the profile that is being taken, since the pool ends."""
        if self._run is not None:
            self._run.over.set()

    def _look(self, run: _Run) -> None:
        """End a profile whose time is over when all workers have sent everything."""
        if self._engine.loop.time() >= run.until and not run.book.is_open:
            run.over.set()

    def _end(self, run: _Run) -> None:
        """End the samplers that are still at work."""
        open_ones = {(r.slot, r.generation) for r in run.book.records if r.is_open}
        for handle in self._engine.handles.values():
            if (handle.slot, handle.generation) in open_ones and not handle.ignored:
                handle.ask(FrameKind.PROFILE, b"", run.number)

    def _profile_of(self, run: _Run, took: float) -> Profile:
        from asyncpool.profile import Profile, ProfiledWorker, StackSamples  # noqa: PLC0415 - see above

        figures = [each.name for each in fields(ProfiledWorker)]
        return Profile(
            pool=self._engine.config.title,
            seconds=took,
            rate=run.request.rate,
            slot=run.slot,
            function=run.request.function or None,
            stacks=tuple(
                StackSamples(function=function, frames=frames, samples=samples)
                for (function, frames), samples in run.book.stacks
            ),
            workers=tuple(
                # A record has these fields, too.
                ProfiledWorker(**{name: getattr(record, name) for name in figures})
                for record in run.book.records
            ),
        )


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
