"""One run of ``asyncpool map``: the input through the pool into the files."""

from __future__ import annotations

import asyncio
import functools
import queue
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from asyncpool._cli.finding import TargetError
from asyncpool._cli.journal.journal import Done, Journal, Position, Row
from asyncpool._cli.journal.journal_file import JournalError
from asyncpool._cli.map.inputs import Input, InputError, Item
from asyncpool._cli.map.outputs import Outputs, failure_line
from asyncpool._cli.targets import Work, call_item, load, trouble
from asyncpool._core.options import WorkerLimits
from asyncpool._engine.machine import usable_cpus
from asyncpool.errors import PoolBrokenError, PoolClosedError
from asyncpool.pool import BoundPool, Pool
from asyncpool.stats import PoolStats

# How a run is done, and the pool for that.

_START = 300.0  # s that a worker may import what the function needs

Loop = Literal["asyncio", "uvloop"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run is done; ``--help`` explains each."""

    work: Work
    workers: int | None = None
    timeout: float | None = None
    max_attempts: int = 1
    retry_on: tuple[Any, ...] = ("crash", "hung")
    kill_memory: int | None = None
    ordered: bool = True
    loop: Loop = "asyncio"
    concurrency: int = 1
    trace: str | None = None


def make_pool(plan: Plan) -> Pool:
    """Return the pool that a plan needs."""
    return Pool(
        plan.workers,
        name="map",
        initializer=load,
        initargs=(plan.work, _only_async(plan)),
        worker_limits=WorkerLimits(kill_memory=plan.kill_memory),
        start_timeout=_START,
        worker_loop=plan.loop,
        concurrency=plan.concurrency,
        trace=plan.trace,
    )


def _only_async(plan: Plan) -> str:
    """Return the option of *plan* that is for async functions only, if there is one."""
    if plan.concurrency > 1:
        return "--concurrency"
    return "--loop" if plan.loop != "asyncio" else ""


def options(pool: Pool, plan: Plan) -> BoundPool:
    """Return the pool as the plan's items see it."""
    return pool.options(
        timeout=plan.timeout,
        max_attempts=plan.max_attempts,
        retry_on=plan.retry_on,
        cancel_grace=1.0,
    )


# The thread that commits items to the journal, and writes the files.

_SYNC_EVERY = 1.0  # s; what the files hold beyond that is written again after a crash


class Writer:
    """Commits first, then writes: what a file has, the journal has already.

    Args:
        journal: The journal, if there is one.
        outputs: The files.
        on_written: Called in the loop with how many items were written, and the length of
            their lines.
        on_trouble: Called in the loop with the error that ended the thread.
    """

    def __init__(
        self,
        journal: Journal | None,
        outputs: Outputs,
        on_written: Callable[[int, int], None],
        on_trouble: Callable[[Exception], None],
    ) -> None:
        self._journal = journal
        self._outputs = outputs
        self._on_written = on_written
        self._on_trouble = on_trouble
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[Sequence[Done], Sequence[Done]] | None]
        self._queue = queue.SimpleQueue()
        self._sync_at = time.monotonic() + _SYNC_EVERY
        self._ended = asyncio.Event()
        # A daemon, since nothing ends a write to a pipe that nobody reads.
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, fresh: Sequence[Done], replayed: Sequence[Done] = ()) -> None:
        """Have these written: *fresh* into the journal too, which has the others."""
        self._queue.put((fresh, replayed))

    async def close(self) -> None:
        """Return when everything is written, or the thread has failed."""
        self._queue.put(None)
        await self._ended.wait()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._write_some():
                pass
            if self._journal is not None:
                self._journal.add((), self._outputs.sync())
        except Exception as error:  # noqa: BLE001 - the loop has to hear of it
            self._loop.call_soon_threadsafe(self._on_trouble, error)
        self._loop.call_soon_threadsafe(self._ended.set)

    def _write_some(self) -> bool:
        """Write what there is; tell whether more will come."""
        fresh: list[Done] = []
        replayed: list[Done] = []
        more = self._queue.get()
        while more is not None:
            fresh += more[0]
            replayed += more[1]
            if self._queue.empty():
                break
            more = self._queue.get()
        if not fresh and not replayed:
            return False  # the end came alone, and says nothing of any batch
        batch = None
        if self._journal is not None and fresh:
            batch = self._commit(self._journal, fresh)
        ready = self._outputs.write(fresh + replayed, batch)
        size = sum(len(done.line) for done in ready)
        self._loop.call_soon_threadsafe(self._on_written, len(ready), size)
        return more is not None

    def _commit(self, journal: Journal, fresh: list[Done]) -> int:
        position = None
        if time.monotonic() >= self._sync_at:
            position = self._outputs.sync()
            self._sync_at = time.monotonic() + _SYNC_EVERY
        return journal.add(fresh, position)


# How many items may be in progress: the one place where items become jobs.

# In the pool, at the least; short jobs travel ahead to the workers, many at a time.
_ITEMS = 2048
_BYTES = 64 << 20  # of items in the pool
_UNWRITTEN = (
    1 << 16
)  # items that are done, but held back, for the order or for the disk
_UNWRITTEN_BYTES = 256 << 20
_SLICE = 256  # how many are submitted before anybody else has a turn

Submit = Callable[[Item], "asyncio.Future[str]"]


class Window:
    """Keeps the pool busy, and memory bounded, however long the input is.

    Args:
        submit: Makes a job of an item.
        on_settled: Called with each item and its job when the job is done.
        places: How many items the pool can run at once.
    """

    def __init__(
        self,
        submit: Submit,
        on_settled: Callable[[Item, asyncio.Future[str]], None],
        places: int,
    ) -> None:
        self._submit = submit
        self._on_settled = on_settled
        self._items = max(_ITEMS, 2 * places)
        self._stopped = False
        self._change: asyncio.Future[None] | None = None
        self._bytes = 0
        self._unwritten = 0
        self._unwritten_bytes = 0
        self.in_flight = 0

    async def run(self, items: list[Item]) -> None:
        """Submit items while there is room; return when the last one is submitted.

        Raises:
            PoolClosedError: Or whatever else *submit* raises.
        """
        start = 0
        while start < len(items) and not self._stopped:
            if not self._has_room:
                await self._next_change()
                continue
            for item in items[start : start + _SLICE]:
                job = self._submit(item)
                self.in_flight += 1
                self._bytes += len(item.raw)
                job.add_done_callback(functools.partial(self._settled, item))
                start += 1
                if self._bytes > _BYTES:
                    break
            await asyncio.sleep(0)

    async def drained(self) -> None:
        """Wait until no item is in progress, or the window was stopped."""
        while self.in_flight and not self._stopped:
            await self._next_change()

    def stop(self) -> None:
        """End all waits, and submit nothing more."""
        self._stopped = True
        self._wake()

    def hold(self, count: int, size: int) -> None:
        """Count items that are done, with *size* bytes, but not written."""
        self._unwritten += count
        self._unwritten_bytes += size

    def written(self, count: int, size: int) -> None:
        """Count items that are written."""
        self._unwritten -= count
        self._unwritten_bytes -= size
        self._wake()

    @property
    def _has_room(self) -> bool:
        return (
            self.in_flight <= self._items - _SLICE
            and self._bytes <= _BYTES
            and self._unwritten < _UNWRITTEN
            and self._unwritten_bytes < _UNWRITTEN_BYTES
        )

    def _settled(self, item: Item, job: asyncio.Future[str]) -> None:
        self.in_flight -= 1
        self._bytes -= len(item.raw)
        self._on_settled(item, job)
        if self._change is not None and (self._has_room or not self.in_flight):
            self._wake()

    async def _next_change(self) -> None:
        self._change = asyncio.get_running_loop().create_future()
        await self._change

    def _wake(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
        self._change = None


# What is left to do: the input, less what the journal has already.
#
# Both are sorted by the items' numbers, so they are gone through side by side, and never
# need to be in memory.

_AHEAD = 4  # portions that wait; a portion of a file has 64 KB


@dataclass(slots=True)
class Drawn:
    """A portion of what is to be done.

    Attributes:
        items: What is to run.
        replayed: What the journal has, but not the files.
        skipped: How many both have.
        failed: How many of these have failed.
        consumed: How many bytes of the input were read until here.
    """

    items: list[Item] = field(default_factory=list)
    replayed: list[Done] = field(default_factory=list)
    skipped: int = 0
    failed: int = 0
    consumed: int = 0


def draw(
    source: Input, journal: Journal | None, position: Position, *, ordered: bool
) -> Iterator[Drawn]:
    """Yield the input in portions, less what is done.

    Raises:
        InputError: If the input cannot be read on.
        JournalError: If it is not the one that the journal was begun with.
    """
    if journal is None:
        for items in source.items():
            yield Drawn(items=items, consumed=source.consumed)
        return
    if not ordered:
        # All of it before anything new, since the position is a batch's number: it
        # must not pass one of which a part is yet to be written.
        yield from _replay(journal.rows(position, ordered=False))
        position = Position(batch=1 << 62)
    rows = journal.rows(position, ordered=ordered)
    row = next(rows, None)
    for items in source.items():
        portion = Drawn(consumed=source.consumed)
        if row is None:
            portion.items = items
            yield portion
            continue
        for item in items:
            if row is None or row.number != item.number:
                portion.items.append(item)
                continue
            if row.crc != item.crc:
                raise JournalError(_changed(source, journal, item.number))
            _take(portion, row)
            row = next(rows, None)
        yield portion
    if row is not None:
        raise JournalError(
            f"{source.name} ends before item {row.number}, which {journal.path} has: it "
            "is not the input that the journal was begun with"
        )


def _take(portion: Drawn, row: Row) -> None:
    if row.line is None:
        portion.skipped += 1
        portion.failed += not row.ok
    else:
        portion.replayed.append(Done(row.number, row.crc, row.ok, row.line))


def _replay(rows: Iterable[Row]) -> Iterator[Drawn]:
    portion = Drawn()
    for row in rows:
        if row.line is not None:
            portion.replayed.append(Done(row.number, row.crc, row.ok, row.line))
        if len(portion.replayed) == 500:  # noqa: PLR2004 - as many as are read together
            yield portion
            portion = Drawn()
    yield portion


def _changed(source: Input, journal: Journal, index: int) -> str:
    return (
        f"item {index} of {source.name} is not what it was when {journal.path} was "
        "begun: put the old input back, or name another journal"
    )


class ReadAhead:
    """Goes through an iterator in a thread, some steps ahead of its consumer.

    Args:
        portions: The iterator; only the thread uses it.
    """

    def __init__(self, portions: Iterator[Drawn]) -> None:
        self._portions = portions
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Drawn | BaseException | None] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        self._stopped = False
        # A daemon, since nothing ends a read from a terminal.
        self._thread = threading.Thread(target=self._read, name="input", daemon=True)
        self._thread.start()

    async def next(self) -> Drawn | None:
        """Return the next portion, or ``None`` if there is none.

        Raises:
            InputError: Or whatever else the iterator raises.
        """
        portion = await self._queue.get()
        self._room.release()
        if isinstance(portion, BaseException):
            raise portion
        return portion

    def stop(self) -> None:
        """Read no more; the thread ends, when it is not held up by the input."""
        self._stopped = True
        self._room.release()
        self._queue.put_nowait(None)

    def _read(self) -> None:
        end: BaseException | None = None
        try:
            for portion in self._portions:
                self._put(portion)
                self._room.acquire()
                if self._stopped:
                    return
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            end = error
        self._put(end)

    def _put(self, portion: Drawn | BaseException | None) -> None:
        if not self._stopped:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, portion)


_GRACE = 5.0  # s that running items have when a run is interrupted
_LAST_WRITES = 5.0  # s for what is finished by then, if stdout is a pipe that stalls
_FLUSH_ITEMS = 1000
_FLUSH_AFTER = 0.01  # s


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The run was asked to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(slots=True)
class Files:
    """What a run reads and writes, open."""

    source: Input
    journal: Journal | None
    outputs: Outputs


@dataclass(slots=True)
class Tally:
    """How far a run is.

    Attributes:
        drawn: Items of the input so far.
        consumed: Bytes of it so far.
        at_end: Whether that was all.
        found: How many of them the journal had.
        done: How many are done, these included.
        failed: How many of those have failed.
        written: How many are in the files.
    """

    drawn: int = 0
    consumed: int = 0
    at_end: bool = False
    found: int = 0
    done: int = 0
    failed: int = 0
    written: int = 0


def interrupts() -> list[signal.Signals]:
    """Return the signals that end a run; nohup and shells have some of them ignored."""
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [n for n in asked if signal.getsignal(n) is not signal.SIG_IGN]


class Run:
    """A run; what :attr:`tally` and :meth:`stats` say may be shown meanwhile.

    Args:
        plan: What to do.
        files: From where, and to where.
        pool: The one that :func:`make_pool` makes; it is started and closed here.

    Attributes:
        on_interrupt: Called with the seconds that running items have, at a first signal.
    """

    def __init__(self, plan: Plan, files: Files, pool: Pool) -> None:
        self.on_interrupt: Callable[[float], object] = lambda _: None
        self.tally = Tally()
        self._plan = plan
        self._files = files
        self._pool = pool
        self._view = options(pool, plan)
        self._stats: PoolStats | None = None
        places = (plan.workers or usable_cpus()) * plan.concurrency
        self._window = Window(self._submit, self._settled, places)
        self._writer: Writer | None = None
        self._reader: ReadAhead | None = None
        self._finished: list[Done] = []
        self._flush: asyncio.TimerHandle | None = None
        self._stop: asyncio.Future[None] | None = None
        self._reason: BaseException | None = None
        self._interrupts = 0
        self._tightening: asyncio.Task[object] | None = None

    async def execute(self) -> Tally:
        """Do it all; return what came of it.

        Raises:
            Interrupted: By a signal; running items had a moment, and what is done is
                written.
            TargetError: If the function cannot be used.
            InputError: If the input cannot be read on.
            JournalError: If the input is not the journal's.
            PoolBrokenError: If no worker can be kept alive.
            OSError: If the journal or a file cannot be written.
        """
        loop = asyncio.get_running_loop()
        self._stop = loop.create_future()
        numbers = interrupts()
        for number in numbers:
            loop.add_signal_handler(number, self._interrupt, number)
        try:
            await self._unless_stopped(self._pool.start())
            try:
                await self._unless_stopped(self._check_target())
                await self._go_through()
            finally:
                await self._end_pool()
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
        return self.tally

    def stats(self) -> PoolStats:
        """Return the pool's figures as they are now, or were before it ended."""
        return self._stats or self._pool.stats()

    async def _unless_stopped(self, action: Coroutine[Any, Any, None]) -> None:
        """Do something that a signal may cut short."""
        assert self._stop is not None
        task = asyncio.create_task(action, name="asyncpool map")
        await asyncio.wait({task, self._stop}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if self._reason is not None:
            raise self._reason
        task.result()

    async def _check_target(self) -> None:
        if text := await self._pool.submit(trouble):
            raise TargetError(text)

    async def _go_through(self) -> None:
        files = self._files
        files.outputs.open()
        self._writer = Writer(
            files.journal, files.outputs, self._on_written, self._stop_for
        )
        portions = draw(
            files.source,
            files.journal,
            files.outputs.position,
            ordered=self._plan.ordered,
        )
        self._reader = ReadAhead(portions)
        try:
            await self._feed(self._reader)
            await self._window.drained()
        except (PoolClosedError, PoolBrokenError) as error:
            self._stop_for(error)
        finally:
            self._reader.stop()
            await self._end_pool()
            self._write_finished()
            await self._end_writer(self._writer)
        if self._reason is not None:
            raise self._reason

    def _submit(self, item: Item) -> asyncio.Future[str]:
        return self._view.submit(call_item, item.number, item.raw)

    async def _feed(self, reader: ReadAhead) -> None:
        while self._reason is None:
            try:
                portion = await reader.next()
            except InputError as error:
                await self._window.drained()  # what is before it is done
                self._stop_for(error)
                return
            except JournalError as error:
                self._stop_for(error)
                return
            if portion is None:
                self.tally.at_end = self._reason is None
                return
            self._count(portion)
            # These first: what comes before a replayed one is under way then, so
            # nothing that is held back for the order waits for what has no room.
            await self._window.run(portion.items)
            if portion.replayed:
                self._write((), portion.replayed)

    def _count(self, portion: Drawn) -> None:
        tally = self.tally
        found = portion.skipped + len(portion.replayed)
        tally.drawn += len(portion.items) + found
        tally.consumed = portion.consumed
        tally.found += found
        tally.done += found
        tally.written += portion.skipped
        tally.failed += portion.failed + sum(not d.ok for d in portion.replayed)

    def _settled(self, item: Item, job: asyncio.Future[str]) -> None:
        try:
            done = Done(item.number, item.crc, ok=True, line=job.result())
        except PoolClosedError:
            return  # it runs when the run goes on
        except PoolBrokenError as error:
            self._stop_for(error)
            return
        except Exception as error:  # noqa: BLE001 - whatever there is goes into the file
            line = failure_line(item, self._plan.work.form, error)
            done = Done(item.number, item.crc, ok=False, line=line)
            self.tally.failed += 1
        self.tally.done += 1
        self._finished.append(done)
        if len(self._finished) >= _FLUSH_ITEMS:
            self._write_finished()
        elif self._flush is None:
            loop = asyncio.get_running_loop()
            self._flush = loop.call_later(_FLUSH_AFTER, self._write_finished)

    def _write_finished(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._finished:
            finished, self._finished = self._finished, []
            self._write(finished)

    def _write(self, fresh: Sequence[Done], replayed: Sequence[Done] = ()) -> None:
        assert self._writer is not None
        size = sum(len(done.line) for done in (*fresh, *replayed))
        self._window.hold(len(fresh) + len(replayed), size)
        self._writer.put(fresh, replayed)

    def _on_written(self, count: int, size: int) -> None:
        self.tally.written += count
        self._window.written(count, size)

    def _interrupt(self, number: int) -> None:
        self._interrupts += 1
        self._stop_for(Interrupted(number))
        if self._interrupts == 1:
            self.on_interrupt(_GRACE)
        if self._interrupts > 1:
            # It tightens the close that is in progress.
            self._tightening = asyncio.create_task(
                self._end_pool(), name="asyncpool map: end"
            )

    def _stop_for(self, reason: BaseException) -> None:
        """Submit nothing more, and end for this reason, unless there was one before."""
        assert self._stop is not None
        if self._reason is None:
            self._reason = reason
            self._stop.set_result(None)
        self._window.stop()
        if self._reader is not None:
            self._reader.stop()

    async def _end_pool(self) -> None:
        """Close the pool: at once, or when what is running has ended."""
        self._stats = self._pool.stats()
        useless = isinstance(self._reason, OSError)  # nothing can be written any more
        if self._reason is None:
            await self._pool.close()
        elif self._interrupts > 1 or useless:
            await self._pool.close(timeout=0, finish="none")
        else:
            await self._pool.close(timeout=_GRACE, finish="running")

    async def _end_writer(self, writer: Writer) -> None:
        assert self._stop is not None
        closing = asyncio.create_task(writer.close(), name="asyncpool map: close")
        await asyncio.wait({closing, self._stop}, return_when=asyncio.FIRST_COMPLETED)
        within = _LAST_WRITES if self._interrupts else None
        await asyncio.wait({closing}, timeout=within)
        closing.cancel()
