"""Run one job and return its outcome, whatever the job does."""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from time import monotonic, perf_counter_ns
from types import CoroutineType

from asyncpool._core.map.chunks import run_chunk
from asyncpool._core.pickling.calls import text_of
from asyncpool._core.pickling.functions import FunctionCache
from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._core.pickling.serializers import PICKLE_WORKER, WorkerSerializer
from asyncpool._core.policies.misplaced_option import note_on_misplaced
from asyncpool._core.wire.frames import MAX_NUMBER, Frame, FrameKind
from asyncpool._core.wire.messages import PLAIN, JobContext, WorkerConfig
from asyncpool._worker.api.context import running, set_variables
from asyncpool._worker.channel.large_buffers import LargeBuffers
from asyncpool._worker.job.coroutines import Coroutines
from asyncpool._worker.job.streams import Streams
from asyncpool._worker.job_ending.interrupts import Interrupts
from asyncpool.errors import JobNotPicklableError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Any

    from asyncpool._worker.job.around import Entered, Hook


class JobRunner:
    """Runs jobs, and remembers the functions that they call by number.

    Args:
        large_buffers: Adds the large buffers that came beside a job.
        interrupts: End a running job.
        coroutines: Run the coroutines of async functions.
        streams: Send the items of streams.

    Attributes:
        max_payload: The most bytes that an outcome may have.
        options: The names of the options of jobs.
        streams: As above.
        serializer: How calls and outcomes travel.
        context: The context of the jobs to come.
        hook: What is entered around each job, if the pool has such a hook.
        entered: What was entered for the last job, and is to be left.
    """

    def __init__(
        self,
        large_buffers: LargeBuffers,
        interrupts: Interrupts,
        coroutines: Coroutines,
        streams: Streams,
    ) -> None:
        self.max_payload = 0
        self.options: tuple[str, ...] = ()
        self.streams = streams
        self.serializer: WorkerSerializer = PICKLE_WORKER
        self._coroutines = coroutines
        self._large_buffers = large_buffers
        self._interrupts = interrupts
        self._functions = FunctionCache()
        self.context = PLAIN
        self.hook: Hook | None = None
        self.entered: Entered | None = None

    def configure(self, config: WorkerConfig, serializer: WorkerSerializer) -> None:
        """Take over what the pool has sent about all jobs, for streams too."""
        self.options = config.options
        self.serializer = self.streams.serializer = serializer
        self.max_payload = self.streams.max_payload = config.max_payload

    def prepare(self, frame: Frame) -> None:
        """Take what comes ahead of the job that it is for."""
        if frame.kind is FrameKind.FUNCTION:
            self.learn(frame)
        elif frame.kind is FrameKind.CONTEXT:
            self.context = JobContext.unpack(frame.payload)
        elif frame.kind is FrameKind.CREDIT:
            self.streams.first = frame.number
        else:
            self._large_buffers.take(frame)

    def learn(self, frame: Frame) -> None:
        """Remember the function in *frame*; it is looked up when it is called."""
        self._functions.add(frame.number, frame.payload)

    def run(
        self, frame: Frame, sequence: int
    ) -> tuple[FrameKind, bytes | OutOfBandPickle, int]:
        """Run the job in *frame*; return its outcome's kind, payload and duration.

        *sequence* is the job's sequence number in this worker.

        The duration, in microseconds, is the whole time for which later jobs had to wait.
        ``SystemExit``, ``KeyboardInterrupt`` and the like are outcomes as well, because they
        do no harm to the worker.
        """
        began = perf_counter_ns()
        payload: bytes | OutOfBandPickle
        try:
            try:
                # Each job has its own context: the next job does not see what it sets.  A sampler
                # finds the context by this name, see _worker/profile/stack_reader.py.
                context = copy_context()
                payload = context.run(self._run, frame, sequence)
            finally:
                self._interrupts.running = None
        except BaseException as error:
            kind = FrameKind.ERROR
            payload = pack_failure(error, self.max_payload, self.serializer)
        else:
            kind = FrameKind.VALUE
        duration = (perf_counter_ns() - began) // 1000
        return kind, payload, min(duration, MAX_NUMBER)

    def _run(self, frame: Frame, sequence: int) -> bytes | OutOfBandPickle:
        # A function of its own, so that arguments and result are gone when it returns.
        try:
            value = self.call(frame, sequence)
            if type(value) is CoroutineType:
                value = self._coroutines.run(value)
            if frame.kind is FrameKind.STREAM:
                value = self.streams.run(frame, value)
        except BaseException as error:
            self._leave_hook(error)
            raise
        if self.entered is not None:
            self._leave_hook(None)
        return self.serializer.pack_value(value, self.max_payload)

    def _leave_hook(self, error: BaseException | None) -> None:
        entered, self.entered = self.entered, None
        if entered is not None:
            entered.leave(error)

    def call(self, frame: Frame, sequence: int) -> Any:
        """Call what the job in *frame* is to call, and return what that returns.

        Raises:
            BaseException: What it raises, or what it is ended by.
        """
        context = self.context
        began = 0.0 if context is PLAIN else monotonic()
        number = frame.number
        known: Any = self._functions[number] if number else None
        running.set((frame.job, frame.attempt, context, began, known))
        self._interrupts.begin(sequence)
        if began and context.variables:
            set_variables(context.variables)
        if began and context.trace:
            _attach(context.trace)
        new = type(known) is bytes
        if new:
            # What this raises belongs to the job that made the call.
            known = self.serializer.load_function(known)
            self._functions[number] = known
        function, args, kwargs = self.serializer.load_job(
            self._large_buffers.complete(frame.payload), known
        )
        if new or not number:
            shown = self.serializer.known_as(function, known)
            running.set((frame.job, frame.attempt, context, began, shown))
        if self.hook is not None and function is not run_chunk:
            self.entered = self.hook.enter()
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            tb = error.__traceback__
            # Without a frame of the function, the call itself was wrong.
            at_fault = kwargs and tb is not None and tb.tb_next is None
            if at_fault and (
                note := note_on_misplaced(kwargs, text_of(error), self.options)
            ):
                error.add_note(note)
            raise


def _attach(packed: bytes) -> None:
    """Make the span that *packed* names the parent of what the running code traces, by OpenTelemetry.

    The code runs in a context of its own, which ends with the job; so nothing is detached.
    """
    # Who makes spans has imported this, for example to make a TracerProvider in the
    # initializer.  All others need not wait for an import.
    if "opentelemetry.context" not in sys.modules:
        return
    with suppress(Exception):  # a propagator's; no job fails because of its trace
        headers = pickle.loads(packed)
        context = import_module("opentelemetry.propagate").extract(headers)
        import_module("opentelemetry.context").attach(context)


def pack_failure(
    error: BaseException, max_payload: int, serializer: WorkerSerializer
) -> bytes:
    """Return what an ``ERROR`` frame carries for what a job has raised."""
    name = type(error).__qualname__
    try:
        payload = serializer.pack_error(error, skip=ours(error))
    except Exception as why:  # else its caller would wait for ever
        text = f"cannot be sent: {type(why).__name__}: {why}"
    else:
        if len(payload) <= max_payload:
            return payload
        text = f"has {len(payload)} bytes when pickled, and max_message_size is {max_payload}"
    told = JobNotPicklableError(
        f"the job raised {name}, which {text}", direction="exception", name=name
    )
    return serializer.pack_error(told, skip=0)


def ours(error: BaseException) -> int:
    """Return how many of the outermost frames of a traceback are the worker's own."""
    tb, number = error.__traceback__, 0
    while tb is not None and tb.tb_frame.f_globals.get("__name__") in _MODULES:
        tb, number = tb.tb_next, number + 1
    return number


_MODULES = frozenset(
    "asyncpool._worker." + name
    for name in (
        "api.calls",
        "job.around",
        "job.chunks",
        "job.coroutines",
        "job.execute",
        "job.streams",
        "lanes.lanes",
        "lanes.concurrent_jobs",
    )
)
