"""What is left to do: the input, less what the journal has already.

Both are sorted by the items' numbers, so they are gone through side by side, and never
need to be in memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from asyncpool._cli.journal.journal import Done, Journal, Position, Row
from asyncpool._cli.journal.journal_file import JournalError
from asyncpool._cli.map.inputs import Input, Item

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
