"""One run of ``asyncpool map``: the input through the pool into the files."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from asyncpool._cli.finding import TargetError
from asyncpool._cli.journal.journal import Done, Journal
from asyncpool._cli.journal.journal_file import JournalError
from asyncpool._cli.map.inputs import Input, InputError, Item
from asyncpool._cli.map.outputs import Outputs, failure_line
from asyncpool._cli.map.plan import Plan, options
from asyncpool._cli.map.source import Drawn, ReadAhead, draw
from asyncpool._cli.map.window import Window
from asyncpool._cli.map.writer import Writer
from asyncpool._cli.targets import call_item, trouble
from asyncpool._runtime.base.machine import usable_cpus
from asyncpool.errors import PoolBrokenError, PoolClosedError
from asyncpool.pool import Pool
from asyncpool.stats import PoolStats

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
