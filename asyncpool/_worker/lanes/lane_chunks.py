"""Run the items of a chunk of a map while other jobs run too.

The items of a plain function run one after the other, without a break, as in a worker with one
lane.  If the function is async, its coroutines are awaited one after the other, and other jobs
go on meanwhile.
"""

from __future__ import annotations

from contextvars import copy_context

from asyncpool._core.map.chunks import LOG_HEAD, ChunkResult
from asyncpool._core.wire.page import LOG_SIZE
from asyncpool._worker.api.context import running
from asyncpool._worker.job.chunks import Chunk, ChunkLog
from asyncpool._worker.job.coroutines import InContext, outcome_of
from asyncpool._worker.lanes.lanes import Lane, Lanes

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from mmap import mmap
    from typing import Any

    from asyncpool._core.wire.page import PageLayout


class _Pen:
    """Writes one log into memory with several logs; has the methods of an ``mmap``.

    It is an object of its own: a log that had its own methods as attributes would be a cycle.

    Args:
        page: The worker page.
        start: The offset of the log on the page.
    """

    def __init__(self, page: mmap, start: int) -> None:
        self._room = memoryview(page)[start : start + LOG_SIZE]
        self._start = start
        self._end = LOG_HEAD.size

    def write(self, data: bytes) -> None:
        end = self._end + len(data)
        if end > LOG_SIZE:
            raise ValueError("the log has no room for it")
        self._room[self._end : end] = data
        self._end = end

    def seek(self, where: int) -> None:
        self._end = where - self._start


def run_chunk(
    page: mmap,
    layout: PageLayout,
    lanes: Lanes,
    packed: bytes,
    items: list[Any],
    **how: Any,
) -> ChunkResult | Coroutine[Any, Any, ChunkResult]:
    """Call a function for each of *items*, or return a coroutine that does so.

    The other arguments are those of :func:`asyncpool._worker.job.chunks.run_chunk`.
    """
    job = running.get()
    assert job is not None
    lane = lanes.by_job[job[:2]]
    start = layout.log(lane.index)
    log = ChunkLog(page, start, _Pen(page, start))
    chunk = Chunk(log, packed, items, **how)
    coroutine = chunk.go_on()
    return chunk.result if coroutine is None else _go_on(lane, chunk, coroutine)


async def _go_on(
    lane: Lane, chunk: Chunk, coroutine: Coroutine[Any, Any, Any] | None
) -> ChunkResult:
    while coroutine is not None:
        try:
            value = await InContext(coroutine, copy_context())
        except BaseException as error:
            coroutine = chunk.go_on(error=_shown(lane, error))
        else:
            coroutine = chunk.go_on(value)
    return chunk.result


def _shown(lane: Lane, error: BaseException) -> BaseException:
    """Return what an item has raised, as its caller will see it."""
    outcome = outcome_of(error, asked=lane.asked)
    if outcome is not error:
        return outcome
    # Leave two frames out that are asyncpool's: the await, and the step.
    tb = error.__traceback__
    for _ in range(2):
        tb = tb and tb.tb_next
    error.__traceback__ = tb
    return error
