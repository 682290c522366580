"""The thread that samples a worker, for a bounded time.

A thread waits for the GIL like any other.  While code in C holds the GIL, the thread takes no
sample.  It gets the GIL when that code returns, and finds its caller.  So all looks that were
due meanwhile count for what it finds then, and the profile says how many they are.
"""

from __future__ import annotations

import _thread  # threading would do, see _worker/__init__.py
import sys
from contextlib import suppress
from time import monotonic

from asyncpool._core.profile.profile_messages import (
    ProfileRequest,
    SampleChunk,
    SampleFigures,
)
from asyncpool._core.profile.sampling_times import SamplingTimes
from asyncpool._core.profile.stack_counts import NO_JOB, StackCounts
from asyncpool._worker.process import start_thread
from asyncpool._worker.profile.stack_reader import StackReader

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# How many different stacks are counted until the next report, and the seconds between two.
_MOST_STACKS = 2000
_REPORT_EVERY = 1.0

# Seconds after which the sampler makes Python code give up the GIL, in place of Python's 5 ms.
# In 5 ms a short job has come to its end and releases the GIL there, so hardly any sample would
# fall into it; see docs/decisions/profiling.md.
_SWITCH_INTERVAL = 0.0001


class _Switching:
    """Has Python code give up the GIL sooner while there are samplers."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        # One that was told to end may not have done so when the next one begins.
        self._samplers = 0
        self._before = self._set = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._samplers:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(_SWITCH_INTERVAL)
                self._set = sys.getswitchinterval()  # in whole microseconds
            self._samplers += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._samplers -= 1
            # A job may have set another one meanwhile.
            if not self._samplers and sys.getswitchinterval() == self._set:
                sys.setswitchinterval(self._before)


_SWITCHING = _Switching()


class Sampler:
    """Samples this worker, and sends what it finds.

    Args:
        request: What to sample.
        main: The thread that jobs run in.
        waiting_frames: Returns the frames in which a coroutine waits.
        send: Sends the payload of a frame, and whether it is the last one.
    """

    def __init__(
        self,
        request: ProfileRequest,
        main: int,
        waiting_frames: Callable[[Any], Any],
        send: Callable[[bytes, bool], None],
    ) -> None:
        self._request = request
        self._main = main
        self._control = _thread.get_ident()
        self._waiting_frames = waiting_frames
        self._send = send
        self._counts = StackCounts(_MOST_STACKS)
        self._idle = self._skipped = self._missed = 0
        self._ended = _thread.allocate_lock()
        self._ended.acquire()

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: If no thread can be started.
        """
        start_thread(self._run)

    def stop(self) -> None:
        """End, and send nothing more."""
        if self._ended.locked():
            self._ended.release()

    def _run(self) -> None:
        try:
            with _SWITCHING:
                self._sample_all()
        except Exception as error:
            with suppress(Exception):  # it must not cost the worker
                self._report(f"{type(error).__name__}: {error}", last=True)

    def _sample_all(self) -> None:
        request, now = self._request, monotonic()
        reader = StackReader(self._main, (self._control,), self._waiting_frames)
        times = SamplingTimes(request.rate, request.seconds, now)
        report_at = now + _REPORT_EVERY
        while (wait := times.wait(now)) is not None:
            if self._ended.acquire(timeout=wait):
                return  # nobody wants it any more
            now = monotonic()
            if due := times.take(now):
                self._missed += due - 1
                self._count(reader, due)
            if now >= report_at:
                report_at = now + _REPORT_EVERY
                self._report()
        self._report(last=True)

    def _count(self, reader: StackReader, due: int) -> None:
        stack, others = reader.read()
        if stack is None:
            self._idle += due
        elif self._request.wants(stack[0]):
            self._counts.add(stack, due)
        else:
            self._skipped += due
        if self._request.wants(NO_JOB):
            for other in others:
                self._counts.add(other, due)

    def _report(self, error: str = "", *, last: bool = False) -> None:
        figures = SampleFigures(self._idle, self._skipped, self._missed)
        self._idle = self._skipped = self._missed = 0
        chunk = SampleChunk(self._counts.take(), figures, error)
        *payloads, final = chunk.pack()
        for payload in payloads:
            self._send(payload, False)
        self._send(final, last)
