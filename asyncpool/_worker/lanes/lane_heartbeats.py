"""The heartbeats of jobs that run at once: each is written into its job's lane."""

from __future__ import annotations

from time import monotonic

from asyncpool._core.wire.frames import Frame
from asyncpool._core.wire.heartbeat_records import INTERVAL, Beat
from asyncpool._worker.api.context import running
from asyncpool._worker.job.heartbeats import HeartbeatWriter, last_frame
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from mmap import mmap

    from asyncpool._core.wire.page import PageLayout
    from asyncpool._worker.job_ending.interrupts import Interrupts
    from asyncpool._worker.lanes.lanes import Lanes


class LaneHeartbeats(HeartbeatWriter):
    """Writes the heartbeats of a worker that runs several jobs at once.

    Args:
        page: The worker page.
        layout: The layout of the page.
        interrupts: Knows which jobs are to end.
        ring: Tells the pool to look at the page soon.
        lanes: The running jobs.
    """

    def __init__(
        self,
        page: mmap,
        layout: PageLayout,
        interrupts: Interrupts,
        ring: Callable[[], None],
        lanes: Lanes,
    ) -> None:
        super().__init__(page, interrupts, ring)
        self._layout = layout
        self._lanes = lanes
        self._numbers = [0] * layout.width
        self._records: dict[tuple[int, int], bytes] = {}

    def last_heartbeat(self, frame: Frame) -> bytes:
        """Return the frame that goes ahead of the outcome of the job in *frame*."""
        record = self._records.pop((frame.job, frame.attempt), None)
        return b"" if record is None else last_frame(frame, record)

    def _check(self) -> None:
        whose = self._whose()
        interrupts = self._interrupts
        if interrupts.at_home and interrupts.forget(self._lanes.by_job[whose].sequence):
            raise JobCancelled

    def _write(self, packed: bytes) -> None:
        job = self._whose()
        index = self._lanes.by_job[job].index
        now, number = monotonic(), self._numbers[index] + 1
        record = Beat(number, job[0], job[1], now, packed).pack()
        self._note(self._layout.beats(index), number, record)
        self._numbers[index] = number
        first = job not in self._records
        self._records[job] = record
        if first or now - self._rung_at >= INTERVAL:
            self._rung_at = now
            self._ring()

    def _whose(self) -> tuple[int, int]:
        mine = running.get()
        job = mine[:2] if mine is not None else self._lanes.running
        if job is None:  # the code runs in a thread without the context of a job
            if self._lanes.by_job:
                raise RuntimeError(
                    "heartbeat() was called in a thread that does not know its job, and "
                    "several jobs are running: run it in a copy of the job's context"
                )
            raise RuntimeError("heartbeat() was called when no job was running")
        if job not in self._lanes.by_job:
            text = f"heartbeat() was called for job {job[0]}, which is over"
            raise RuntimeError(text)
        return job
