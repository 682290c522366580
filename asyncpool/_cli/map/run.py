"""One run of ``asyncpool map``, a pipeline: sources, pool, journal, outputs.

One thread after the other reads a portion of the input, less what the journal has already, while the
pool is busy with the portions before.  One after the other commits what is done, and writes the files.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from asyncpool._cli.call import Interrupted, Limits, check_target, interrupts
from asyncpool._cli.map.inputs import Format, InputError, Item, open_input
from asyncpool._cli.map.journal import (
    START,
    Done,
    Journal,
    JournalError,
    Outputs,
    Position,
    RunIdentity,
    failure_line,
    usable,
)
from asyncpool._cli.targets import FunctionRaisedError, Work, call_item
from asyncpool._engine.machine import usable_cpus
from asyncpool.errors import JobTimeoutError, PoolBrokenError, PoolClosedError
from asyncpool.stats import PoolStats

T = TypeVar("T")

RETRY_ON: dict[str, Any] = {
    "crash": "crash",
    "hung": "hung",
    "out-of-memory": "out of memory",
    "timeout": JobTimeoutError,
    "error": FunctionRaisedError,
}

# Items in the pool, at the least; short jobs travel ahead to the workers, many at a time.
_ITEMS = 2048
_BYTES = 64 << 20  # of items in the pool
# Items that are done, but held back, for the order or for the disk.
_UNWRITTEN = 1 << 16
_UNWRITTEN_BYTES = 256 << 20
_SLICE = 256  # how many are submitted before anybody else has a turn
_REPLAYED = 500  # how many of the journal's are written together

_TOGETHER = 0.01  # s; what is done within it is written together

_GRACE = 5.0  # s that running items have when a run is interrupted
_LAST_WRITES = 5.0  # s for what is finished by then, if stdout is a pipe that stalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Limits):
    """What the command line says; beside what :class:`Limits` has.

    Attributes:
        target: The function.
        input: What holds the items, if there is no pattern.
        pattern: Instead of INPUT: call the function with the path of each file that matches, such as
            '**/*.png'.
        format: What INPUT holds.  By default its name tells: .jsonl and .ndjson, .csv, and plain
            lines for all others.
        output: Results; - is stdout.
        failed: Inputs that failed, with error, traceback and crash report; by default failed.jsonl
            next to the output.  Made only if there are any.
        unordered: Results as they are finished, not in the input's order.
        bare: Write the results alone, without index and input.
        workers: Worker processes; one for each usable CPU by default.
        concurrency: How many items each worker has under way at once, if the function is async.  A
            crash takes all of them.
        max_attempts: How often a worker may begin an item; more than 1 only if it may run twice.
        retry_on: What there is another attempt after; may be given several times.  crash and hung by
            default; error is an exception of the function's.
        journal: Note in this file what is done.  After Ctrl-C, SIGKILL or a power loss the same
            command goes on where it was.
        retry_failed: With --journal: run those again that have failed before.
        trace: Write to this file what each worker did when; https://ui.perfetto.dev shows it.  An
            older trace is replaced.
        as_json: Write the summary, to stderr, as one line of JSON; no live progress.
    """

    target: str
    input: str | None
    pattern: str | None = None
    format: Format | None = None
    output: str = "-"
    failed: str | None = None
    unordered: bool = False
    bare: bool = False
    workers: int | None = None
    concurrency: int = 1
    max_attempts: int = 1
    retry_on: tuple[str, ...] = ()
    journal: str | None = None
    retry_failed: bool = False
    trace: str | None = None
    as_json: bool = False

    @property
    def failures(self) -> str:
        """The path of the file of failures."""
        if self.failed is not None:
            return self.failed
        folder = Path() if self.output == "-" else Path(self.output).parent
        return str(folder / "failed.jsonl")


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


class Portion(NamedTuple):
    """A portion of the input.

    Attributes:
        items: What is to run.
        found: What the journal has.
        replayed: What the journal has, but not the files.
        consumed: How many bytes of the input were read until here.
    """

    items: list[Item]
    found: list[Done]
    replayed: list[Done]
    consumed: int


class Run:
    """A run; what :attr:`tally` and :meth:`stats` say may be shown meanwhile.

    Args:
        asked: What to do.
        stack: Closes the files in the end.

    Attributes:
        source: The input.
        known: How many items the journal has, and how many of these have failed.
        on_interrupt: Called with the seconds that running items have, at a first signal.

    Raises:
        InputError: If there is no input.
        JournalError: If the journal cannot be used, or is not this run's.
    """

    def __init__(self, asked: Asked, stack: ExitStack) -> None:
        self.on_interrupt: Callable[[float], object] = lambda _: None
        self.tally = Tally()
        self.known = (0, 0)
        self.source = open_input(asked.input, asked.pattern, asked.format)
        self._asked = asked
        self._journal: Journal | None = None
        self._position = START
        if asked.journal is not None:
            self._journal = Journal(asked.journal)
            stack.callback(self._journal.close)
            self._position = self._resume(self._journal)
        self._outputs = Outputs(
            self._journal,
            asked.output,
            asked.failures,
            self._position,
            ordered=not asked.unordered,
        )
        stack.callback(self._outputs.close)
        self._pool = asked.make_pool(
            Work(asked.target, self.source.form, asked.bare),
            asked.workers,
            concurrency=asked.concurrency,
            trace=asked.trace,
        )
        self._view = self._pool.options(
            timeout=asked.timeout,
            max_attempts=asked.max_attempts,
            retry_on=[RETRY_ON[name] for name in asked.retry_on or ("crash", "hung")],
            cancel_grace=1.0,
        )
        places = (asked.workers or usable_cpus()) * asked.concurrency
        self._most = max(_ITEMS, 2 * places)
        self._in_flight = self._bytes = self._unwritten = self._unwritten_bytes = 0
        self._changed = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._finished: list[Done] = []
        self._replayed: list[Done] = []
        self._news = asyncio.Event()
        self._all_done = False
        self._reason: BaseException | None = None
        self._interrupts = 0
        self._interrupted = asyncio.Event()

    def _resume(self, journal: Journal) -> Position:
        """Check that the journal is this run's; return how far its files are."""
        asked, source = self._asked, self.source
        identity = RunIdentity(
            target=asked.target,
            input=source.name,
            form=source.form,
            ordered=not asked.unordered,
            bare=asked.bare,
        )
        journal.begin(identity, source.size)
        if asked.retry_failed:
            journal.begin_files_anew(retry_failed=True)
        position = usable(journal.position, asked.output, asked.failures)
        if position is START:
            journal.begin_files_anew()
        self.known = journal.counts()
        return position

    async def execute(self) -> None:
        """Do it all.

        Raises:
            Interrupted: By a signal; running items had a moment, and what is done is
                written.
            TargetError: If the function cannot be used.
            InputError: If the input cannot be read on.
            JournalError: If the input is not the journal's.
            PoolBrokenError: If no worker can be kept alive.
            OSError: If the journal or a file cannot be written.
        """
        for number in interrupts():
            asyncio.get_running_loop().add_signal_handler(
                number, self._interrupt, number
            )
        self._feeding = asyncio.create_task(self._feed(), name="asyncpool map")
        await asyncio.wait({self._feeding})
        if not self._feeding.cancelled() and (error := self._feeding.exception()):
            self._stop_for(error)
        await self._end_pool()
        if self._writing is not None:
            await self._end_writing(self._writing)
        if self._reason is not None:
            raise self._reason

    def stats(self) -> PoolStats:
        """Return the pool's figures."""
        return self._pool.stats()

    async def _feed(self) -> None:
        """Start the pool, and give it all items; return when they are done."""
        await self._pool.start()
        await check_target(self._pool)
        self._outputs.open()
        self._writing = asyncio.create_task(self._write(), name="asyncpool map: write")
        portions = self._portions()
        try:
            while portion := await in_a_thread(lambda: next(portions, None)):
                self._count(portion)
                # These first: what comes before a replayed one is under way then, so
                # nothing that is held back for the order waits for what has no room.
                await self._submit(portion.items)
                self._hold(self._replayed, portion.replayed)
        except InputError:
            await self._until(lambda: not self._in_flight)  # what is before it is done
            raise
        self.tally.at_end = True
        await self._until(lambda: not self._in_flight)

    def _portions(self) -> Iterator[Portion]:
        """Yield the input in portions, less what is done; in a thread.

        Input and journal are sorted by the items' numbers, so they are gone through side by side, and
        never need to be in memory.
        """
        source, journal, position = self.source, self._journal, self._position
        if journal is None:
            for items in source.items():
                yield Portion(items, [], [], source.consumed)
            return
        ordered = not self._asked.unordered
        if not ordered:
            # All of it before anything new, since the position is a batch's number: it
            # must not pass one of which a part is yet to be written.
            known = journal.rows(position, ordered=False)
            lacking = (row for row in known if row.line)
            while together := list(islice(lacking, _REPLAYED)):
                yield Portion([], [], together, 0)  # they are found below
            position = Position(batch=1 << 62)
        rows = journal.rows(position, ordered=ordered)
        row = next(rows, None)
        for items in source.items():
            new, found = list[Item](), list[Done]()
            for item in items:
                if row is None or row.number != item.number:
                    new.append(item)
                    continue
                if row.crc != item.crc:
                    raise JournalError(
                        f"item {item.number} of {source.name} is not what it was when "
                        f"{journal.path} was begun: put the old input back, or name "
                        "another journal"
                    )
                found.append(row)
                row = next(rows, None)
            yield Portion(new, found, [it for it in found if it.line], source.consumed)
        if row is not None:
            raise JournalError(
                f"{source.name} ends before item {row.number}, which {journal.path} has: it "
                "is not the input that the journal was begun with"
            )

    def _count(self, portion: Portion) -> None:
        tally, found = self.tally, len(portion.found)
        tally.drawn += len(portion.items) + found
        tally.consumed = portion.consumed
        tally.found += found
        tally.done += found
        tally.failed += sum(not row.ok for row in portion.found)
        # What is replayed is written later.
        tally.written += found - len(portion.replayed)

    async def _submit(self, items: list[Item]) -> None:
        """Submit items while there is room; return when the last one is submitted.

        So the pool is busy, and memory is bounded, however long the input is.

        Raises:
            PoolClosedError: Or whatever else the pool raises.
        """
        start = 0
        while start < len(items):
            await self._until(self._has_room)
            for item in items[start : start + _SLICE]:
                job = self._view.submit(call_item, item.number, item.raw)
                self._in_flight += 1
                self._bytes += len(item.raw)
                job.add_done_callback(partial(self._settled, item))
                start += 1
                if self._bytes > _BYTES:
                    break
            await asyncio.sleep(0)

    def _has_room(self) -> bool:
        return (
            self._in_flight <= self._most - _SLICE
            and self._bytes <= _BYTES
            and self._unwritten < _UNWRITTEN
            and self._unwritten_bytes < _UNWRITTEN_BYTES
        )

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _settled(self, item: Item, job: asyncio.Future[str]) -> None:
        self._in_flight -= 1
        self._bytes -= len(item.raw)
        self._changed.set()
        try:
            done = Done(item.number, item.crc, ok=True, line=job.result())
        except PoolClosedError:
            return  # it runs when the run goes on
        except PoolBrokenError as error:
            self._stop_for(error)
            return
        except Exception as error:  # noqa: BLE001 - whatever there is goes into the file
            line = failure_line(item, self.source.form, error)
            done = Done(item.number, item.crc, ok=False, line=line)
            self.tally.failed += 1
        self.tally.done += 1
        self._hold(self._finished, [done])

    def _hold(self, kind: list[Done], done: list[Done]) -> None:
        """Keep what is done until it is written, a batch at a time."""
        kind += done
        self._unwritten += len(done)
        self._unwritten_bytes += sum(len(it.line) for it in done)
        self._news.set()

    async def _write(self) -> None:
        """Commit, and write, what is done, until all is; a task."""
        try:
            while self._finished or self._replayed or not self._all_done:
                await self._news.wait()
                await asyncio.sleep(_TOGETHER)
                self._news.clear()
                fresh, self._finished = self._finished, []
                replayed, self._replayed = self._replayed, []
                ready = await in_a_thread(partial(self._outputs.write, fresh, replayed))
                self.tally.written += len(ready)
                self._unwritten -= len(ready)
                self._unwritten_bytes -= sum(len(it.line) for it in ready)
                self._changed.set()
            await in_a_thread(self._outputs.sync)
        except Exception as error:  # noqa: BLE001 - the run ends for it
            self._stop_for(error)

    def _interrupt(self, number: int) -> None:
        self._interrupts += 1
        self._interrupted.set()
        self._stop_for(Interrupted(number))
        if self._interrupts == 1:
            self.on_interrupt(_GRACE)
        else:
            # It tightens the close that is in progress.
            self._tightening = asyncio.create_task(
                self._end_pool(), name="asyncpool map: end"
            )

    def _stop_for(self, reason: BaseException) -> None:
        """Submit nothing more, and end for this reason, unless there was one before."""
        if self._reason is None:
            self._reason = reason
            self._feeding.cancel()

    async def _end_pool(self) -> None:
        """Close the pool: at once, or when what is running has ended."""
        useless = isinstance(self._reason, OSError)  # nothing can be written any more
        if self._reason is None:
            await self._pool.close()
        elif self._interrupts > 1 or useless:
            await self._pool.close(timeout=0, finish="none")
        else:
            await self._pool.close(timeout=_GRACE, finish="running")

    async def _end_writing(self, writing: asyncio.Task[None]) -> None:
        self._all_done = True
        self._news.set()
        stopped = asyncio.create_task(self._interrupted.wait(), name="asyncpool map")
        await asyncio.wait({writing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({writing}, timeout=_LAST_WRITES)
        writing.cancel()
        stopped.cancel()


async def in_a_thread(function: Callable[[], T]) -> T:
    """Return what a function returns that may never come back: nobody waits for its thread then.

    So is a read from a terminal, or a write to a pipe that nobody reads.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def settle(how: Callable[[Any], object], with_what: object) -> None:
        if not found.done():
            how(with_what)

    def run() -> None:
        outcome: tuple[Callable[[Any], object], object]
        try:
            outcome = found.set_result, function()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            outcome = found.set_exception, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="asyncpool map", daemon=True).start()
    return await found
