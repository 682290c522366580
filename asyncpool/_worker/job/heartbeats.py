"""The heartbeats of jobs: the worker writes them to its page, where they outlive it.

A heartbeat needs no system call.  Some heartbeats *ring*: they ask the pool to look at the
page.  The first heartbeat of each job rings, and then one in each interval.  The pool looks
once more an interval after a ring, so it sees the last heartbeat too, without a thread or a
timer in the worker.
"""

from __future__ import annotations

from _thread import RLock  # threading would do, see _worker/__init__.py
from time import monotonic

from asyncpool._core.pickling.calls import describe, dumps
from asyncpool._core.wire.frames import Frame, FrameKind, header
from asyncpool._core.wire.messages import MAX_DETAILS
from asyncpool._core.wire.page import (
    BEAT_INTERVAL,
    BEATS_START,
    BEGUN,
    Beat,
    beat_offset,
)
from asyncpool._worker.api.context import running
from asyncpool.errors import JobNotPicklableError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from mmap import mmap

    from asyncpool._worker.job_ending.interrupts import Interrupts

_installed: HeartbeatWriter | None = None


class HeartbeatWriter:
    """The heartbeats of the jobs of one worker.

    Args:
        page: The memory that it shares with the pool.
        interrupts: Tell whether a job is running, and whether it is to end.
        ring: Asks the pool to look at the page soon.

    Attributes:
        page: As above.
        latest: The record of the newest heartbeat, if there was one since the last outcome.
        mute: Whether this process is a fork of the worker; its heartbeats have no effect.
    """

    def __init__(
        self, page: mmap, interrupts: Interrupts, ring: Callable[[], None]
    ) -> None:
        self.page = page
        self.latest: bytes | None = None
        self.mute = False
        self.use(dumps)
        self._interrupts = interrupts
        self._ring = ring
        self._number = 0
        self._job = (0, 0)
        self._rung_at = 0.0
        # A job may call heartbeat() in several threads, and in a signal handler.
        self._lock = RLock()

    def use(self, pack: Callable[[object], bytes]) -> None:
        """Have *pack* turn details into bytes."""
        self._pack, self._none = pack, pack(None)

    def beat(self, details: object) -> None:
        """See :func:`heartbeat`."""
        self._check()
        packed = self._none if details is None else _pack(details, self._pack)
        if self.mute:
            return
        with self._lock:
            self._write(packed)

    def last_heartbeat(self, frame: Frame) -> bytes:
        """Return the last heartbeat, which is sent before the outcome of the job in *frame*."""
        record, self.latest = self.latest, None
        if record is None or self._job != (frame.job, frame.attempt):
            return b""  # a thread of an earlier job was late
        return last_frame(frame, record)

    def _check(self) -> None:
        if self._interrupts.running is None:
            raise RuntimeError("heartbeat() was called when no job was running")
        self._interrupts.check()

    def _write(self, packed: bytes) -> None:
        # A thread that a job has started may have no context, or may have outlived its job.
        job, mine = BEGUN.unpack_from(self.page), running.get()
        if mine is not None and mine[:2] != job:
            text = f"heartbeat() was called for job {mine[0]}, which is over"
            raise RuntimeError(text)
        now, number = monotonic(), self._number + 1
        record = Beat(number, job[0], job[1], now, packed).pack()
        self._note(BEATS_START, number, record)
        self._number, self.latest = number, record
        if job != self._job or now - self._rung_at >= BEAT_INTERVAL:
            self._job, self._rung_at = job, now
            self._ring()

    def _note(self, where: int, number: int, record: bytes) -> None:
        """Write a record down, among those that begin at *where*."""
        start = where + beat_offset(number)
        # In one step, between two bytecodes.
        self.page[start : start + len(record)] = record


def last_frame(job: Frame, record: bytes) -> bytes:
    """Return what tells the pool of the newest beat of a job, ahead of its outcome."""
    head = header(FrameKind.LAST_HEARTBEAT, len(record), job.job, job.attempt)
    return head + record


def install(beats: HeartbeatWriter) -> None:
    """Have :func:`heartbeat` use these, in this process."""
    global _installed  # noqa: PLW0603 - there is one worker in a process
    _installed = beats


def heartbeat(details: object = None) -> None:
    """Report that the running job is alive, and how far it has come.

    A call takes a few microseconds, so call it as often as you like.  The pool receives the
    first heartbeat at once, and then the newest one ten times a second.  It always receives
    the last one, even if the worker dies.

    Args:
        details: How far the job is.  :meth:`asyncpool.Job.progress` yields it, and the next
            attempt finds it in ``current_job().last_details``.  It may be any small object
            that can be pickled.

    Raises:
        JobCancelled: If the job is to end, and the caller is the thread that it runs in.
        ValueError: If *details* have more than 32 KB when pickled.
        JobNotPicklableError: If they cannot be pickled.
        RuntimeError: If no job of a pool is running, or the caller belongs to another job.

    Concurrency:
        Any thread of the job may call it.
    """
    if _installed is None:
        raise RuntimeError("heartbeat() was called outside a job of a pool")
    _installed.beat(details)


def _pack(details: object, pack: Callable[[object], bytes]) -> bytes:
    try:
        packed = pack(details)
    except Exception as error:
        raise JobNotPicklableError(
            f"the details of a heartbeat cannot be pickled: {describe(error)}",
            direction="details",
            name=type(details).__qualname__,
        ) from error
    if len(packed) > MAX_DETAILS:
        raise ValueError(
            f"the details of a heartbeat have {len(packed)} bytes when pickled, and "
            f"{MAX_DETAILS} is the most: say how far the job is, and put its results "
            "elsewhere, for example into a file"
        )
    return packed
