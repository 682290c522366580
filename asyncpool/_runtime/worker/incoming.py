"""What one worker sends on its channels: this module reads it, checks it, and tells the pool."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from asyncpool._core.base.text import printable, printable_lines
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._core.wire.messages import MAX_REASON, Failure, unpack_numbers
from asyncpool._runtime.worker.connections import WorkerConnections
from asyncpool._runtime.worker.worker_events import WorkerEvents
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._runtime.worker.handle import WorkerHandle

# Frames that matter only while the worker is to go on working.
_ANSWERS = frozenset(
    {FrameKind.REVOKED, FrameKind.STACKS, FrameKind.PONG, FrameKind.RETIRE}
)


class IncomingFrames:
    """Reads the frames of one worker.

    Args:
        loop: The loop, for its clock.
        worker: The worker's handle.
        connections: The channels that the frames come from.
        listener: Hears what the frames say.

    Attributes:
        said_hello: Whether the worker has said that it is ready.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        worker: WorkerHandle,
        connections: WorkerConnections,
        listener: WorkerEvents,
    ) -> None:
        self._loop = loop
        self._worker = worker
        self._connections = connections
        self._large_buffers = connections.large_buffers
        self._listener = listener
        self._heard_at = loop.time()
        self.said_hello = False

    @property
    def heard_at(self) -> float:
        """When it last sent something on its control channel, or was kept from sending."""
        logs = self._connections.logs
        if logs is not None and logs.paused:
            return self._loop.time()
        return self._heard_at

    # The job channel.

    def on_job_frames(self, frames: list[Frame]) -> None:
        """Tell the pool about jobs that have ended, and about items of streams."""
        worker = self._worker
        # Also if the worker has been killed: what it has done must not be done again.
        if worker.broke_protocol:
            return
        for frame in frames:
            if frame.kind is not FrameKind.VALUE and frame.kind is not FrameKind.ERROR:
                break
        else:
            if not self._large_buffers.pending:
                self._listener.on_outcomes(worker, frames)
                return
        frames, bad_beat = self._take_beats(frames)
        frames, trouble = self._large_buffers.unload(frames)
        items = [frame for frame in frames if frame.kind is FrameKind.ITEM]
        if items:
            # Items before outcomes: a stream's outcome comes after its items, and the outcomes
            # of other jobs have nothing to do with these items.
            self._listener.on_items(worker, items)
            frames = [frame for frame in frames if frame.kind is not FrameKind.ITEM]
        if frames and not worker.broke_protocol:
            self._listener.on_outcomes(worker, frames)
        trouble = trouble or bad_beat
        if trouble is not None:
            worker.distrust(trouble)

    def _take_beats(self, frames: list[Frame]) -> tuple[list[Frame], str | None]:
        """Return the frames that are no heartbeats; and what was wrong, if anything was."""
        others: list[Frame] = []
        for frame in frames:
            if frame.kind is not FrameKind.LAST_HEARTBEAT:
                others.append(frame)
                continue
            try:
                self._listener.on_last_beat(self._worker, frame)
            except ProtocolError as error:
                return others, str(error)
        return others, None

    def on_link_frames(self, frames: list[Frame]) -> None:
        """Hand the frames of a worker that serves to its link."""
        link = self._connections.link
        assert link is not None
        # Also if the worker has been killed: what it took before that counts.
        if not self._worker.broke_protocol:
            try:
                link.on_frames(frames)
            except ProtocolError as error:
                self._worker.distrust(str(error))

    # The control channel.

    def on_control_frames(self, frames: list[Frame]) -> None:
        """Tell the pool what the worker says about itself, and what it answers."""
        worker, logs = self._worker, self._connections.logs
        assert logs is not None
        if worker.broke_protocol:
            return
        self._heard_at, has_heartbeats = self._loop.time(), False
        for frame in frames:
            if frame.kind is FrameKind.HEARTBEAT:
                has_heartbeats = True
                continue
            if frame.kind is FrameKind.RECORD:
                logs.add(frame.payload)
                continue
            try:
                self._on_control_frame(frame)
            except ProtocolError as error:
                worker.distrust(str(error))
                return
        if has_heartbeats and not worker.ignored:
            self._listener.on_heartbeat(worker)

    def _on_control_frame(self, frame: Frame) -> None:
        worker = self._worker
        if frame.kind in _ANSWERS:
            # The pool may ask a worker that drains for its stacks too, so that answer counts.
            drains = self._connections.link is not None and not worker.broke_protocol
            if not worker.ignored or (frame.kind is FrameKind.STACKS and drains):
                self._on_answer(frame)
        elif frame.kind is FrameKind.SAMPLES:
            self._listener.on_samples(worker, frame)
        elif frame.kind is FrameKind.WHERE:
            self._listener.on_where(worker, frame.job, frame.payload)
        elif frame.kind is FrameKind.HELLO and not self.said_hello:
            self.said_hello = True
            # If a worker is quick, its hello may come before the launcher's answer.
            if worker.process is not None:
                self._listener.on_ready(worker)
        elif frame.kind is FrameKind.FAILED:
            self._on_failure(frame)
        elif frame.kind is FrameKind.TRACKER:
            self._connections.lend_tracker()
        else:
            raise ProtocolError(f"it sent {frame.kind.name} on its control channel")

    def _on_failure(self, frame: Frame) -> None:
        worker = self._worker
        if worker.detail:
            return  # only the first reason counts
        failure = Failure.unpack(frame.payload)
        worker.detail = printable_lines(f"{failure.stage} failed: {failure.summary}")
        worker.traceback = printable_lines(failure.text)
        worker.final = failure.final
        if failure.stage == "thread" or (failure.stage == "serve" and self.said_hello):
            self._listener.on_fault(worker)

    def _on_answer(self, frame: Frame) -> None:
        worker = self._worker
        if frame.kind is FrameKind.REVOKED:
            self._listener.on_revoked(worker, unpack_numbers(frame.payload))
        elif frame.kind is FrameKind.STACKS:
            self._listener.on_stacks(worker, frame.job or None)
        elif frame.kind is FrameKind.RETIRE and frame.number:
            self._listener.on_worn(worker, _reason_in(frame))
        elif frame.kind is FrameKind.RETIRE:
            self._listener.on_retire(worker, _reason_in(frame))
        else:
            self._listener.on_pong(worker)


def _reason_in(frame: Frame) -> str:
    return printable(bytes(frame.payload[:MAX_REASON]).decode(errors="replace"))
