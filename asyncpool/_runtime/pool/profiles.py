"""Take a profile of the workers: ask them for samples, and put together what they send."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asyncpool._core.slots.slots import UP
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.errors import NoWorkerError, ProfileInProgressError

if TYPE_CHECKING:  # few pools are profiled
    from asyncpool._core.profile.profile_book import ProfileBook
    from asyncpool._core.profile.profile_messages import ProfileRequest
    from asyncpool._runtime.pool.engine import Engine
    from asyncpool.profile import Profile

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
        began: When it began.
        until: When it ends.
        book: Whom the pool has asked, and what they sent.
        over: Set when the pool has ended, or when nothing more will come.
    """

    number: int
    request: ProfileRequest
    slot: int | None
    began: float
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
        handles = self._ready()
        if slot is not None and slot not in handles:
            raise NoWorkerError(slot, there=tuple(handles))
        from asyncpool._core.profile.profile_book import ProfileBook  # noqa: PLC0415 - few take one

        now = self._engine.loop.time()
        run = self._run = _Run(
            number=next(self._numbers),
            request=request,
            slot=slot,
            began=now,
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
        from asyncpool._core.profile.profile_messages import SampleChunk  # noqa: PLC0415 - see above

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

    def _ready(self) -> dict[int, WorkerHandle]:
        engine = self._engine
        return {
            slot.index: engine.handles[slot.index]
            for slot in engine.core.slots
            if slot.state in UP
        }

    def _end(self, run: _Run) -> None:
        """End the samplers that are still at work."""
        open_ones = {(r.slot, r.generation) for r in run.book.records if r.is_open}
        for handle in self._engine.handles.values():
            if (handle.slot, handle.generation) in open_ones and not handle.ignored:
                handle.ask(FrameKind.PROFILE, b"", run.number)

    def _profile_of(self, run: _Run, took: float) -> Profile:
        from asyncpool.profile import Profile, ProfiledWorker, StackSamples  # noqa: PLC0415 - see above

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
                ProfiledWorker(
                    slot=record.slot,
                    generation=record.generation,
                    pid=record.pid,
                    samples=record.samples,
                    idle=record.idle,
                    skipped=record.skipped,
                    missed=record.missed,
                    complete=record.complete,
                    error=record.error,
                )
                for record in run.book.records
            ),
        )


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
