"""What the pool watches in its workers: time limits, heartbeats, pings, stalls, stacks, profiles.

The time limits of a job say how long it may be queued, run and be silent.  A heartbeat does not
move the next look at its job.  When the time of the look has come, the worker's page tells whether
there was a heartbeat.  If there was one, the look is moved then.  ``_core/options.py`` says whether
a job has exceeded a limit.  The core decides how the job is made to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from asyncpool._core.deadlines import LATE, PingLedger
from asyncpool._core.endings import REVOKE_GRACE
from asyncpool._core.slots import ALIVE, UP
from asyncpool._engine.job import ChunkJob, PoolJob, StreamJob
from asyncpool._engine.loop import shielded
from asyncpool._engine.machine import is_stopped
from asyncpool._engine.registry import expired_error
from asyncpool._engine.worker import WorkerHandle
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.messages import are_whole
from asyncpool._wire.page import BEAT_INTERVAL, Beat, unpack_beat
from asyncpool._wire.text import printable_block
from asyncpool.errors import NoWorkerError, ProfileInProgressError, ProtocolError

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine
    from asyncpool._wire.profile import ProfileRequest
    from asyncpool.profile import Profile, ProfileBook


# Read the heartbeats of jobs.
#
# A worker writes them on its page.  The pool looks there when the worker gives notice, and when
# it is dead.  The last heartbeat of each job also comes on the job channel, ahead of the outcome.


class Heartbeats:
    """The heartbeats of a pool's jobs.

    Args:
        engine: The pool's engine.

    Attributes:
        listeners: Called with each job that was heard, and its heartbeat.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.listeners: list[Callable[[PoolJob[Any], Beat], object]] = []
        self._looks: dict[WorkerHandle, asyncio.TimerHandle] = {}

    def on_notice(self, handle: WorkerHandle) -> None:
        """Look at the page of a worker that has given notice; look again when it may do so next."""
        self.look(handle)
        if (look := self._looks.get(handle)) is not None:
            look.cancel()
        later = self._engine.loop.call_later(BEAT_INTERVAL, self._look_again, handle)
        self._looks[handle] = later

    def look(self, handle: WorkerHandle) -> None:
        """Read the heartbeats on the page of a worker, which may be dead."""
        for beat in handle.page.beats():
            self._hear(handle, beat)

    def on_last_heartbeat(self, handle: WorkerHandle, frame: Frame) -> None:
        """Read the last heartbeat of a job; the job's outcome is next.

        Raises:
            ProtocolError: If it cannot be read, or the worker does not have that job.
        """
        beat = unpack_beat(bytes(frame.payload))
        if beat is None:
            raise ProtocolError("a heartbeat cannot be read")
        # None if its caller has given it up.
        job = self._engine.registry.jobs.get(beat.job)
        has_it = beat.job in self._engine.core.slots[handle.slot].in_flight.jobs
        if not has_it or (job is not None and job.attempt != beat.attempt):
            whose = f"attempt {beat.attempt} of job {beat.job}"
            raise ProtocolError(
                f"it sent a heartbeat of {whose}, which it does not have"
            )
        self._hear(handle, beat)

    def stop(self) -> None:
        """Stop looking."""
        for look in self._looks.values():
            look.cancel()
        self._looks.clear()

    def _look_again(self, handle: WorkerHandle) -> None:
        del self._looks[handle]
        self.look(handle)

    def _hear(self, handle: WorkerHandle, beat: Beat) -> None:
        """Add a heartbeat to its job, if the worker runs that attempt of the job."""
        job = self._engine.registry.jobs.get(beat.job)
        if job is None or job.done():
            return
        if (job.slot, job.attempt) == (handle.slot, beat.attempt):
            job.listen().add(beat, self._engine.loop.time())
            for listener in self.listeners:
                listener(job, beat)


class JobTimers:
    """Watches the time limits of a pool's jobs.

    One alarm is for all of them.  It is set again only if a new limit comes before all others.  If
    all jobs have the same limit, that hardly ever happens.

    Args:
        engine: The pool's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._time = engine.loop.time
        self._deadlines = engine.registry.deadlines
        self._alarm = engine.alarm(self._on_alarm)
        # When this process last went on after it, or its loop, had been stopped for a while.
        self._resumed_at = -math.inf

    def watch_queued(self, job: PoolJob[Any]) -> bool:
        """Watch how long a job is queued; if its time is over already, fail it and return false."""
        options = job.options
        if options.queue_timeout is None and options.deadline is None:
            return True
        now = self._time()
        until = options.queue_end(now)
        if until is not None and until <= now:
            self._engine.registry.fail(job, expired_error(job, now))
            return False
        self._watch(job.id, until)
        return True

    def watch_requeued(self, job: PoolJob[Any]) -> None:
        """Watch how long a job is queued that has left its worker before it began there."""
        options = job.options
        if options.queue_timeout is None or job.attempt != options.prior_attempts:
            return  # it may wait for its first attempt only
        now = self._time()
        # Anew: while the worker counted as running it, its limit was that of a running job.
        self._watch(job.id, options.queue_end(now - (monotonic() - job.queued_at)))

    def begin_first(self, slot: int) -> None:
        """Watch how long the first jobs in a worker's hands run."""
        for number in self._engine.core.slots[slot].in_flight.running:
            job = self._engine.registry.jobs.get(number)
            if job is not None and job.began is None and type(job.payload) is bytes:
                self.watch_running(job)

    def watch_running(self, job: PoolJob[Any]) -> None:
        """Watch how long a job runs, from now on."""
        if job.options.timed:
            job.began = now = self._time()
            look = job.options.next_check(now, now)
            # If there is an earlier look, since the job had to begin by then, that one will do.
            if look is None or not self._deadlines.is_set(job.id, look):
                self._watch(job.id, look)

    def end(self, job: PoolJob[Any]) -> None:
        """Stop watching a job that has ended in time; its outcome is still to be loaded.

        Only its deadline goes on, since that includes the loading.
        """
        if job.options.timed:
            self._watch(job.id, job.options.deadline)

    def _watch(self, job: int, until: float | None) -> None:
        """Look at *job* at *until*, instead of at any time set before."""
        self._deadlines.set(job, until)
        if until is not None:
            self._alarm.set_by(until)

    def _on_alarm(self, now: float) -> None:
        if now - self._alarm.due > LATE:
            self._resumed_at = now
        self._on_due(self._deadlines.pop(now), now)
        later = self._deadlines.next()
        if later is not None:
            self._alarm.set_by(later)

    def _on_due(self, numbers: list[int], now: float) -> None:
        """Check the jobs whose time may be over."""
        registry, handles = self._engine.registry, self._engine.handles
        due = [registry.jobs[number] for number in numbers if number in registry.jobs]
        before = [(job.slot, job.began) for job in due]
        # First read what all of their workers have sent: a worker may have sent outcomes that
        # concern several of these jobs.
        for slot in {slot for slot, _ in before if slot is not None}:
            handles[slot].job_channel.read()
        for job, known in zip(due, before, strict=True):
            # If that has begun or ended a job, another look is set for it already.
            if (job.slot, job.began) == known:
                self._on_over(job, now)

    def _on_over(self, job: PoolJob[Any], now: float) -> None:
        """End a job whose time is over; if it is not over, set the next look."""
        if job.done():
            return  # it is ending already
        engine, slot, began = self._engine, job.slot, job.began
        if slot is not None and began is None and not self._may_drop(job, slot):
            self._watch(job.id, now + REVOKE_GRACE)
        elif began is None or slot is None:
            # Its outcome may have come, and take long to load.
            with engine.turn:
                engine.registry.fail(job, expired_error(job, now))
                engine.traffic.take_out(job, slot)
        elif engine.core.slots[slot].in_flight.runs(job.id):
            end = job.options.run_end(began)
            if end is None or now < end:
                self._check_silence(job, slot, now)
                return
            job.exceeded = job.options.exceeded(now, running=True)
            mode = job.options.cancel_mode
            with engine.turn:
                engine.core.endings.time_out(job.id, now, index=slot, mode=mode)
            engine.stacks.signal_before_end(engine.handles[slot], job.id)

    def _may_drop(self, job: PoolJob[Any], slot: int) -> bool:
        """Return whether a job that its worker has not begun may be dropped now.

        If not, ask the worker to give the job back.  The worker may be beginning it just now,
        and then the job is in time.
        """
        core, handle = self._engine.core, self._engine.handles[slot]
        if handle.outbox.lending or core.slots[slot].job_endings.is_too_late(job.id):
            return True
        if not handle.page.begun(job.id, job.attempt):
            with self._engine.turn:
                core.endings.revoke_late(job.id, slot)
        return False

    def _check_silence(self, job: PoolJob[Any], slot: int, now: float) -> None:
        """Have a worker killed if its job has sent no heartbeat for too long."""
        handle = self._engine.handles[slot]
        self._engine.heartbeats.look(handle)
        # What is known now of the job.
        began, heartbeat_log = job.began, job.heartbeats
        assert began is not None
        # If this process has been suspended, the worker may have been too: count from then on.
        beat = max(began, self._resumed_at)
        if heartbeat_log is not None and heartbeat_log.attempt == job.attempt:
            beat = max(beat, heartbeat_log.at)
        if isinstance(job, StreamJob):
            beat = max(beat, job.heard_at(self._time()))
        next_look = job.options.next_check(began, beat)
        if next_look is None or now < next_look:
            self._watch(job.id, next_look)
        else:
            seconds = job.options.heartbeat_timeout
            several = self._engine.config.worker.concurrency > 1
            whose = f" of job {job.id}" if several else ""
            silence = f"no heartbeat{whose} for {seconds:g} s"
            self._engine.stacks.kill_hung(handle, silence, job.id)


# The stall watch: a look, every few milliseconds, at workers that have several jobs in flight.
#
# Each look is a *round*.  A round finds jobs that others wait behind.

# Seconds from one round to the next.  A running job counts as long if two rounds in succession
# find it with others behind it.
ROUND = 0.004

# Seconds to the next round if an idle worker could take jobs that wait behind a long one.
SHORT_ROUND = 0.0005

# Seconds to the next round if chunks of maps have still to begin, and nothing else is watched.
LONG_ROUND = 0.1

# After so many rounds a running chunk of a map counts as long.
_LONG = 2


class StallWatch:
    """The rounds of one pool, as long as there is a reason for them.

    Args:
        engine: The pool's engine.

    Attributes:
        alarm: Set for the next round.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._core = engine.core
        self.alarm = engine.alarm(self._check_for_stalls)
        self._later = engine.alarm(self.go)
        self._soon = False

    def go(self, _: float = 0.0) -> None:
        """Set the next round, if none is set."""
        if not self.alarm.is_set:
            self._soon = self._core.unbalanced
            self.alarm.set_in(SHORT_ROUND if self._soon else ROUND)

    def look_soon(self) -> None:
        """Move the next round forward, if a worker has become idle meanwhile."""
        if self._soon or not self._core.unbalanced:
            return
        self.alarm.cancel()
        self.go()

    def _check_for_stalls(self, _: float = 0.0) -> None:
        with self._engine.turn:
            self._core.endings.check_for_stalls()
        # Stop long chunks, so that their other items go elsewhere.
        watched = late = False
        for slot, handle in self._engine.handles.items():
            for number in self._core.slots[slot].in_flight.running:
                job = self._engine.registry.jobs.get(number)
                if job is None or not isinstance(job, ChunkJob):
                    continue
                if not handle.page.begun(number, job.attempt):
                    late = True
                    continue
                job.rounds += 1
                watched = watched or job.rounds <= _LONG
                # Twice: it may just have begun its log.
                if _LONG <= job.rounds <= _LONG + 1:
                    handle.page.stop_chunk(job.id, job.attempt)
                if job.rounds == _LONG:
                    # The item that runs now has the whole time limit, from now on.
                    self._engine.timers.watch_running(job)
        if watched or self._core.pipelining:
            self.go()
        elif late and not self._later.is_set:
            self._later.set_in(LONG_ROUND)


# Ping the workers of a pool, and have those killed that do not answer.
#
# The worker's control thread answers, whatever its job does.  So an answer shows that the process
# runs, and that its threads get the GIL.  In a worker that serves, the event loop answers, since
# without its event loop it serves nobody.


class Pings:
    """The pings of one pool, if it sends any.

    Args:
        engine: The pool's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._timeout = engine.config.ping_timeout
        seconds = math.inf if self._timeout is None else self._timeout
        self._ledger = PingLedger[WorkerHandle](seconds, engine.loop.time())
        self._alarm = engine.alarm(self._look)
        if self._timeout is not None:
            self._alarm.set_at(self._ledger.due)

    def answered(self, handle: WorkerHandle) -> None:
        """Note that a worker has answered a ping.

        Raises:
            ProtocolError: If there was no ping.
        """
        if self._timeout is None:
            raise ProtocolError("it answered a ping, and nobody sends any")
        try:
            self._ledger.answered(handle)
        except ProtocolError:
            slot = self._engine.core.slots[handle.slot]
            if not slot.hung:  # else it is only too late
                raise

    def _look(self, now: float) -> None:
        engine = self._engine
        for handle in self._ledger.suspects(now):
            handle.control_channel.read()
            self._ledger.heard(handle, handle.heard_at)
        slots = (it for it in engine.core.slots if it.state in UP and not it.hung)
        up = [engine.handles[slot.index] for slot in slots]
        silent, asked = self._ledger.tick(up, now)
        self._alarm.set_at(self._ledger.due)
        for handle in asked:
            handle.send_control(FrameKind.PING)
        for handle in silent:
            text = f"no answer to pings for {self._timeout:g} s"
            engine.stacks.kill_hung(handle, text)


# Stacks: the pool asks the worker's control thread, which writes the stacks of all threads on the
# page.  That thread cannot run while another thread holds the GIL.  Then the pool sends a signal,
# whose handler in C writes the stacks.

# Seconds that a worker has to answer, which takes 1 ms on a machine that has time.
_PATIENCE = 2.0

MAX_STACKS = 1 << 16

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
        if len(payload) > MAX_STACKS:
            raise ProtocolError(f"it sent stacks of {len(payload)} bytes")
        # To look at 64 KiB of text takes 3 ms, and a worker may send it often.
        if (answer := handle.stack_answers.pop(job, None)) is not None:
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
        answer = handle.stack_answers.get(job)
        if answer is None:
            answer = handle.stack_answers[job] = self._engine.loop.create_future()
            handle.send_control(FrameKind.WHERE, b"", job)
        try:
            async with asyncio.timeout(_PATIENCE):
                return await shielded(answer)  # which others may wait for, too
        except TimeoutError:
            is_there = self._engine.handles.get(handle.slot) is handle
            if not is_there or self._ends(handle):
                return ""
            who = f"The process {handle.pid}"
            if is_stopped(handle.pid):
                return f"{who} is stopped, and cannot say where it is."
            return (
                f"{who} has not said for {_PATIENCE:g} s where it is: C code holds its GIL, or it "
                "gets no CPU."
            )

    def _ends(self, handle: WorkerHandle) -> bool:
        # A server that was told to stop goes on with its connections.
        lost = handle.link is None or handle.broke_protocol or handle.killed
        return handle.ignored and lost

    # Of workers that are about to be killed.

    def written(self, handle: WorkerHandle, job: int | None = None) -> None:
        """Note that a worker has written where its threads are, which its end may wait for."""
        with self._engine.turn as now:
            self._engine.core.endings.stacks_written(handle.slot, now, job)

    def ask_late(self, slot: int, due: float) -> None:
        """Ask the worker in *slot* for its stacks, whose time to end is over at *due*."""
        handle = self._engine.handles[slot]
        handle.page.take_stacks()  # erases an older dump
        handle.send_control(FrameKind.STACKS)
        at = _signal_at(due, self._engine.loop.time())
        self._engine.loop.call_at(at, self._signal_late, handle)

    def _signal_late(self, handle: WorkerHandle) -> None:
        is_there = self._engine.handles[handle.slot] is handle
        if is_there and not handle.page.written_stacks:
            handle.signal_for_stacks()

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
        head = self._engine.core.slots[handle.slot].in_flight.head
        self.signal_before_end(handle, job or head)

    def signal_before_end(self, handle: WorkerHandle, job: int | None) -> None:
        """Send the signal shortly before the worker's time is over, if it has not answered."""
        due = self._engine.core.slots[handle.slot].due
        if due is not None:
            at = _signal_at(due, self._engine.loop.time())
            self._engine.loop.call_at(at, self._signal, handle, job, due - at)

    def _signal(self, handle: WorkerHandle, job: int | None, seconds: float) -> None:
        """Send the signal, and give the worker so many seconds from now to write its stacks."""
        # The job holds the GIL then, or the control thread had answered.  So no other thread of
        # Python's runs, and a signal handler can read the stacks; else it might crash.
        if self._runs(handle, job) and not handle.page.written_stacks:
            handle.signal_for_stacks()
            with self._engine.turn as now:
                self._engine.core.endings.stacks_signalled(handle.slot, now + seconds)
            self._look(handle, job, b"")

    def _look(self, handle: WorkerHandle, job: int | None, before: bytes) -> None:
        """Let a worker be killed once it has written its stacks to their end."""
        if not self._runs(handle, job):
            return
        written = handle.page.written_stacks
        if are_whole(written, before):
            self.written(handle)
        else:
            self._engine.loop.call_later(_NEXT_LOOK, self._look, handle, job, written)

    def _runs(self, handle: WorkerHandle, job: int | None) -> bool:
        """Return whether the worker still runs *job*; without a job, whether it runs nothing."""
        if self._engine.handles[handle.slot] is not handle:
            return False
        in_flight = self._engine.core.slots[handle.slot].in_flight
        return in_flight.head is None if job is None else in_flight.runs(job)


def _signal_at(due: float, now: float) -> float:
    return due - min(_DUMP_TIME, 0.8 * (due - now))


# A profile: workers send samples, and the pool puts them together.

# Seconds that the workers have for their last samples.  A worker whose GIL is held in C for
# longer has sent the others.
_LAST_SAMPLES = 2.0


class Profiles:
    """The profiles of one pool, one at a time.

    Args:
        engine: The pool's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Whom the pool has asked, and what they have sent, while a profile is being taken.
        self._book: ProfileBook | None = None
        # Tells its samples from those of others.
        self._number = 0
        # What the workers sample until when, and the only slot that counts, or None for all.
        self._request: ProfileRequest
        self._until: float
        self._slot: int | None
        # Set when the pool has ended, or when nothing more will come.
        self._over = asyncio.Event()

    async def take(self, request: ProfileRequest, slot: int | None) -> Profile:
        """Sample the workers; see :meth:`asyncpool.Pool.profile`.

        Raises:
            ProfileInProgressError: If another profile is being taken.
            NoWorkerError: If no worker is ready in *slot*.

        Cancellation:
            Ends the samplers.
        """
        engine, over = self._engine, self._over
        if self._book is not None:
            whose = f"a profile of {engine.config.title}"
            text = f"{whose} is being taken already: wait until it is over"
            raise ProfileInProgressError(text)
        ready = (each.index for each in engine.core.slots if each.state in UP)
        handles = {index: engine.handles[index] for index in ready}
        if slot is not None and slot not in handles:
            raise NoWorkerError(slot, there=tuple(handles))
        from asyncpool.profile import Profile, ProfileBook  # noqa: PLC0415 - few take one

        began, book = engine.loop.time(), ProfileBook()
        self._book, self._number = book, self._number + 1
        self._request, self._slot = request, slot
        self._until = began + request.seconds
        over.clear()
        for handle in handles.values():
            self.join(handle)
        try:
            await _wait(over, request.seconds)
            took = engine.loop.time() - began
            self._look()
            await _wait(over, _LAST_SAMPLES)
        finally:
            self._book = None
            for handle in engine.handles.values():  # of whom some are still at work
                if (handle.slot, handle.generation) in book.open and not handle.ignored:
                    handle.send_control(FrameKind.PROFILE, b"", self._number)
        return Profile(
            pool=engine.config.title,
            seconds=took,
            rate=request.rate,
            slot=slot,
            function=request.function or None,
            stacks=book.stacks,
            workers=book.workers,
        )

    def join(self, handle: WorkerHandle) -> None:
        """Ask a worker for samples that is ready, if a profile is being taken."""
        book, now = self._book, self._engine.loop.time()
        if book is None or self._slot not in {None, handle.slot} or now >= self._until:
            return
        assert handle.pid is not None
        book.ask(handle.slot, handle.generation, handle.pid)
        request = self._request._replace(seconds=self._until - now)
        handle.send_control(FrameKind.PROFILE, request.pack(), self._number)

    def hear(self, handle: WorkerHandle, frame: Frame) -> None:
        """Count samples that a worker has sent.

        Raises:
            ProtocolError: If they cannot be read.
        """
        if self._book is None or frame.job != self._number:
            return  # they are of a profile that was cancelled
        from asyncpool._wire.profile import SampleChunk  # noqa: PLC0415 - see above

        chunk, last = SampleChunk.unpack(frame.payload), bool(frame.number)
        self._book.hear(handle.slot, handle.generation, chunk, last=last)
        self._look()

    def lose(self, handle: WorkerHandle) -> None:
        """Note that a worker has ended."""
        if self._book is not None:
            self._book.lost(handle.slot, handle.generation)
            self._look()

    def stop(self) -> None:
        """End the profile that is being taken, since the pool ends."""
        self._over.set()

    def _look(self) -> None:
        """End a profile whose time is over when all workers have sent everything."""
        is_over = self._engine.loop.time() >= self._until
        if is_over and self._book is not None and not self._book.open:
            self._over.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
