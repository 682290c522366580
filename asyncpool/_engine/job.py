"""A job, as its caller sees it: a future that knows how far it is; its outcome, and its lease.

``registry.py`` says why a job does not hold its lease itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    Never,
    Protocol,
    Self,
    TypeVar,
    cast,
)

from asyncpool._core.functions import (
    LOADING_TRAITS,
    STREAM_TRAITS,
    Function,
    JobTraits,
    KeyedTraits,
)
from asyncpool._core.options import JobOptions
from asyncpool._engine.loop import check_loop
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.page import CHUNK_SIZE, LOST, Beat
from asyncpool._wire.pickling import Serializer
from asyncpool.enums import JobState, TimeLimit
from asyncpool.errors import JobError, JobNotPicklableError, ProtocolError, job_text
from asyncpool.events import Crash, Via

if TYPE_CHECKING:
    from asyncpool._engine.page import WorkerPage


class Holder(asyncio.Future[None]):
    """What holds a lease: a job, together with the worker that still has it in flight.

    Args:
        fence: Tells the worker in a slot until when it may run a job.

    Attributes:
        job: The job, once there is one.
        until: When the lease lapses, on the loop's clock, if that is known.
        slot: The slot of the worker that still has the job, once that is settled.
    """

    __slots__ = ("_fence", "job", "slot", "until")

    def __init__(self, fence: Callable[[PoolJob[Any], int, float], object]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.job: PoolJob[Any] | None = None
        self.until: float | None = None
        self.slot: int | None = None
        self._fence = fence

    def cancel(self, msg: Any | None = None) -> bool:
        """Hear from the keeper that the lease is lost."""
        if not super().cancel(msg):
            return False
        assert self.job is not None
        self.job.cancel(msg)
        return True

    def extended(self, until: float) -> None:
        """Hear from the keeper when the lease lapses if it is not renewed."""
        self.until, job = until, self.job
        if job is not None and not self.done():
            slot = job.slot if self.slot is None else self.slot
            if slot is not None:
                self._fence(job, slot, until)

    def release(self) -> None:
        """Let the keeper give the lease up, unless it is lost already."""
        if not self.done():
            self.set_result(None)


_VALUE = FrameKind.VALUE


class Failed(NamedTuple):
    """An outcome that is no value.

    Attributes:
        error: What the caller gets.
        may_retry: Whether the job may have another attempt, if its policy says so.  It has none
            after its deadline, and if its outcome cannot be read.
        distrust: Why its worker is not to be trusted any more, if it is not.
    """

    error: BaseException
    may_retry: bool
    distrust: str = ""


def load_outcome(
    serializer: Serializer, frame: Frame, pause: Callable[[], None] | None = None
) -> Any:
    """Return the value in *frame*, or a :class:`Failed`.

    Args:
        serializer: Loads it.
        frame: A ``VALUE`` or an ``ERROR``.
        pause: Called now and then while a large value is loaded.
    """
    try:
        if frame.kind is _VALUE:
            return serializer.load_value(frame.payload, pause)
        return Failed(serializer.load_error(frame.payload, pause), may_retry=True)
    except JobNotPicklableError as error:
        return Failed(error, may_retry=False)
    except ProtocolError as error:
        return Failed(unreadable(error), may_retry=False, distrust=str(error))


def unreadable(why: ProtocolError) -> JobNotPicklableError:
    """Return the error of a job whose worker has sent what no worker sends."""
    error = JobNotPicklableError(
        f"the job's outcome cannot be read, and its worker is at fault: {why}",
        direction="result",
        name="",
    )
    error.__cause__ = why
    return error


# What a running job reports, for any number of readers.


class LastHeartbeat:
    """The newest heartbeat of a job.

    Args:
        job: The job; its readers must hear of its end too.

    Attributes:
        attempt: The attempt that the heartbeat belongs to; 0 before the first one.
        at: When it was sent, on the loop's clock.
        details: Its details, pickled.
        heard: How many heartbeats the pool has read; there may have been more.
        news: Set, and cleared again, when there is a new one, or the job is done.
    """

    __slots__ = ("_number", "at", "attempt", "details", "heard", "news")

    def __init__(self, job: asyncio.Future[Any]) -> None:
        self.attempt = self.heard = self._number = 0
        self.at, self.details = 0.0, b""
        self.news = asyncio.Event()
        job.add_done_callback(self._tell)

    def add(self, beat: Beat, now: float) -> None:
        """Store a heartbeat, if it is newer than the one that is here."""
        if (beat.attempt, beat.number) <= (self.attempt, self._number):
            return
        self.attempt, self._number = beat.attempt, beat.number
        # The worker has said when, which may be in the future, or NaN.
        self.at = min(now, beat.at)
        self.details = beat.details
        self.heard += 1
        self._tell()

    def _tell(self, _job: object = None) -> None:
        # Wakes everybody who waits, and nobody who comes later.
        self.news.set()
        self.news.clear()


class Progress:
    """The details of a job's heartbeats; an async iterator, see :meth:`Job.progress`.

    Args:
        job: The job.
    """

    def __init__(self, job: Any) -> None:  # its types are no public matter
        self._job, self._newest, self._seen = job, job.listen(), 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Wait for the next details.

        Raises:
            JobNotPicklableError: If they cannot be unpickled here; the next ones may be.
            RuntimeError: Outside the job's event loop.

        Cancellation:
            Safe: nothing is lost.
        """
        check_loop(self._job.get_loop(), "the progress of a job")
        newest = self._newest
        while self._seen == newest.heard:
            if self._job.done():
                raise StopAsyncIteration
            await newest.news.wait()
        self._seen = newest.heard
        return self._job.function.serializer.load_details(newest.details)


R = TypeVar("R")

# By super() it would take 60 ns more, for each job.
_init_future: Any = asyncio.Future.__init__  # pyright: ignore[reportUnknownMemberType] - of any


class JobOwner(Protocol):
    """What a job needs of the part of its pool that knows its worker."""

    def is_running(self, job: PoolJob[Any], /) -> bool:
        """Tell whether it is one that its worker runs."""
        ...

    def pid_of(self, job: PoolJob[Any], /) -> int | None:
        """Tell which process has it, if one has."""
        ...

    async def stack_of(self, job: PoolJob[Any], /) -> str:
        """Tell where it is, if its worker runs it."""
        ...

    def give_credit(self, job: StreamJob, /) -> None:
        """Tell its worker how many items it may send in all."""
        ...

    def on_cancel(self, job: PoolJob[Any], /) -> None:
        """Hear that its caller does not want it any more."""


class Job(asyncio.Future[R], Generic[R]):
    """What :meth:`asyncpool.Pool.submit` returns: a future of the job's result.

    Await it, gather it, give it callbacks, cancel it.  It is settled by the pool,
    exactly once: with the result, with the exception that the job raised, or with
    an :exc:`asyncpool.errors.AsyncPoolError`.

    Attributes:
        id: Its number in the pool, as shown in events, errors and logs.
        attempt: How many attempts there were, this one included, counted as soon as a
            worker has the job in flight and may begin it; 0 before the first one.
    """

    __slots__ = ("attempt", "id")

    id: int
    attempt: int

    def __init__(self, *, _of_a_pool: Never) -> None:
        raise TypeError("a Job comes from Pool.submit()")

    @property
    def _pooled(self) -> PoolJob[R]:
        """Itself, as its pool has it."""
        return cast("PoolJob[R]", self)

    @property
    def worker_pid(self) -> int | None:
        """The pid of the worker that has it in flight, or ``None``."""
        return self._pooled.owner.pid_of(self._pooled)

    @property
    def state(self) -> JobState:
        """Where it is.

        A short job may wait inside a worker; it is queued as long as it does.
        """
        if self.cancelled():
            return JobState.CANCELLED
        if self.done():
            return JobState.DONE
        runs = self._pooled.owner.is_running(self._pooled)
        return JobState.RUNNING if runs else JobState.QUEUED

    def progress(self) -> Progress:
        """Return an async iterator over the details of the job's heartbeats.

        It begins with the newest details, if there are any, and ends when the job is done,
        however it ends; to learn how, await the job.  It has the heartbeats of all attempts.
        A reader that is slower than the job misses some, but never the last ones.  There may be
        any number of such iterators.

        Raises:
            JobNotPicklableError: In the iteration, if details cannot be unpickled here.
            RuntimeError: Outside the pool's event loop, here and in the iteration.
        """
        self._check_home()
        return Progress(self._pooled)

    async def stack(self) -> str:
        """Return the Python stack of the running job, the innermost call first.

        The job goes on meanwhile: a thread of its worker reads the stack, in some 50 us.  For an
        async job it is where its coroutine waits.  A job that is queued, or done, has no stack, so
        the text is empty; :attr:`state` tells which it is.  If the worker has not answered within
        two seconds, the text says so: C code holds the GIL, or the process is stopped.

        Raises:
            RuntimeError: Outside the pool's event loop.

        Cancellation:
            Safe: it has no effect on the job.
        """
        self._check_home()
        return await self._pooled.owner.stack_of(self._pooled)

    def cancel(self, msg: Any | None = None) -> bool:
        """Give the job up, and return whether there was still something to give up.

        A queued job leaves the queue.  In one that runs, :exc:`asyncpool.errors.JobCancelled`
        is raised; if it has not ended after its ``cancel_grace``, its worker is killed
        with all that it has started, and replaced at once (see ``on_cancel`` of
        :meth:`asyncpool.Pool.options`).  Cancelling the task that awaits the job does
        the same.

        Raises:
            RuntimeError: Outside the pool's event loop.
        """
        self._check_home()
        if not super().cancel(msg):
            return False
        self._pooled.owner.on_cancel(self._pooled)
        return True

    def _check_home(self) -> None:
        check_loop(self.get_loop(), f"job {self.id}")

    def __repr__(self) -> str:
        attempt = f" attempt {self.attempt}" if self.attempt else ""
        name = self._pooled.function.name
        return f"<Job {self.id}{' ' * bool(name)}{name} {self.state}{attempt}>"


class PoolJob(Job[R]):
    """A job as its pool has it, whose parts read and write what users do not see.

    Attributes:
        function: What it calls.
        options: What its caller has chosen for it.
        payload: The call, pickled; or a reference to it in the store of a remote pool.
        context: What the job is told of itself, packed.
        owner: Its pool's :class:`Traffic`, or the client of its remote pool.
        slot: Where its worker is, if it is with one.
        queued_at: Since when it has waited for this attempt, by :func:`time.monotonic`.
        sent_at: When it was sent, where there are several lanes.
        frame_end: Where its frame ends on the channel of its worker.
        began: Since when this attempt counts as running, on the loop's clock, if it has limits.
        exceeded: Which limit it has exceeded.
        credit: How many items the worker may send in all, if it is a stream.
        call_size: How many bytes its call has, if a thread has pickled it.
        outcome_size: How many bytes its outcome has, if it is large.
        crashes: The crashes that have cost it an attempt.
        began_earlier: Whether an attempt that is over had begun.
        times_suspected: How often its worker died before the job had begun, and it was suspect.
        heartbeats: Its newest heartbeat, if anybody may ask for it.
    """

    __slots__ = (
        "context",
        "frame_end",
        "function",
        "options",
        "owner",
        "payload",
        "queued_at",
        "sent_at",
        "slot",
    )

    # Few jobs need more than these values of their class: to set them for each takes 0.2 us.
    began: float | None = None
    exceeded: TimeLimit | None = None
    credit: int = 0
    call_size: int = 0
    outcome_size: int = 0
    crashes: tuple[Crash, ...] = ()
    began_earlier: bool = False
    times_suspected: int = 0
    heartbeats: LastHeartbeat | None = None

    def __init__(
        self,
        number: int,
        function: Function,
        options: JobOptions,
        owner: JobOwner,
        loop: asyncio.AbstractEventLoop,
        payload: Any = b"",
    ) -> None:
        _init_future(self, loop=loop)
        self.id: int = number
        self.attempt: int = options.prior_attempts
        self.slot: int | None = None
        self.function: Function = function
        self.options: JobOptions = options
        self.payload: Any = payload
        self.context: bytes = options.context
        self.queued_at: float = monotonic()
        # Where there is one lane it is not needed; to set it takes 100 ns in all.
        self.sent_at: float
        self.frame_end: int
        self.owner = owner

    # The hot path does this by itself.
    def begin_attempt(self, slot: int) -> None:
        """Begin an attempt: the worker in *slot* is about to get the job."""
        self.attempt += 1
        self.slot = slot

    @property
    def attempt_policy(self) -> JobOptions:
        """The options that say whether it has another attempt."""
        return self.options

    @property
    def traits(self) -> JobTraits:
        """What the core knows of its function; how many jobs are sent ahead depends on that."""
        options = self.options
        if options.session is not None:
            return options.session
        traits = STREAM_TRAITS if self.credit else self.function.traits
        if type(self.payload) is not bytes:
            traits = LOADING_TRAITS
        return traits if options.key is None else KeyedTraits(traits, options.key)

    @property
    def title(self) -> str:
        """What logs call it: the name of its function."""
        return self.function.name

    @property
    def awaited(self) -> bool:
        """Whether its caller waits for its end, or has a callback."""
        return bool(self._callbacks)

    def listen(self) -> LastHeartbeat:
        """Return its newest heartbeat, which is kept from now on."""
        if self.heartbeats is None:
            self.heartbeats = LastHeartbeat(self)
        return self.heartbeats


def attribute_to(error: JobError, job: PoolJob[Any]) -> None:
    """Note in *error* which job it is the error of, unless it says that already."""
    attribute_by_number(error, job.id, job.attempt, job.function.name)


def attribute_by_number(error: JobError, number: int, attempt: int, name: str) -> None:
    """Note in *error* which job it is the error of: its number, its attempt, its function's name."""
    if not error.job_id:
        error.job_id, error.attempt, error.function = number, attempt, name
        error.add_note(f"It is the error of {job_text(number, name)}.")


# A job that has several items of a map.


class ChunkJob(PoolJob[R]):
    """A job that carries several items of a map; see ``_wire/page.py``.

    A chunk that fails has no result.  Then the pool finds out which of its items are done.

    Attributes:
        found: The outcomes of the items that are done, if the chunk has not ended with a
            result; ``None`` if it has not begun with its first item.
        rounds: How many rounds of the stall watch have found it running.
    """

    __slots__ = ()

    found: Any = None
    rounds: int = 0

    def salvage(self, page: WorkerPage) -> bool:
        """Find what its worker, which is dead, has noted; return whether it has begun with its first item."""
        self.found = page.log(self.id, self.attempt)
        return self.found is not None

    def find_in_result(self, result: Any) -> None:
        """Find all but the last item, which was running when the time was over."""
        self.found = result.load()[:-1]

    def assume_lost(self) -> None:
        """Take it that each item may have begun."""
        self.found = [LOST] * CHUNK_SIZE


# A job whose caller takes what it yields, item by item.

_ONCE = JobOptions()


class StreamJob(PoolJob[Any]):
    """A job whose caller takes what it yields, item by item.

    An item counts as a heartbeat, and so does waiting for the caller.

    Attributes:
        credit: How many items the worker may send in all, in this attempt.
    """

    def __init__(
        self, number: int, function: Function, options: JobOptions, *args: Any
    ) -> None:
        super().__init__(number, function, options, *args)
        self.credit = self._prefetch = options.prefetch
        self._items: deque[Frame] = deque()
        self._received = self._taken = 0
        self._heard_at = 0.0
        self._news: asyncio.Future[None] | None = None
        self.add_done_callback(StreamJob._ring)

    def receive(self, frame: Frame) -> None:
        """Take the next item.

        Raises:
            ProtocolError: If the worker has sent more items than it may.
        """
        if self._received >= self.credit:
            raise ProtocolError(f"it sent more than {self.credit} items of {self!r}")
        self._received += 1
        self._heard_at = self.get_loop().time()
        self._items.append(frame)
        self._ring()

    def heard_at(self, now: float) -> float:
        """Return when the stream last showed that it is alive, by an item or by waiting."""
        return now if self._received >= self.credit else self._heard_at

    def begin_again(self) -> None:
        """Drop the items that came: another attempt begins, and the caller has taken none."""
        self._items.clear()
        self._received, self.credit = 0, self._prefetch

    @property
    def attempt_policy(self) -> JobOptions:
        # Another attempt would yield again what the caller has taken.
        return _ONCE if self._taken else super().attempt_policy

    @property
    def title(self) -> str:
        waits = self._received >= self.credit
        return f"{super().title} (a stream{' that nobody reads' if waits else ''})"

    async def started(self) -> None:
        """Wait until there is a first item, or the job is done.

        Raises:
            BaseException: The job's error, if there was none before that.

        Cancellation:
            Safe, and any number may wait.
        """
        while not self._received and not self.done():
            await asyncio.wait([self._next_news()])  # several may wait for the same
        if not self._received:
            self.result()

    async def take(self) -> Frame | None:
        """Wait for the next item and return it; ``None`` if the job is done.

        Cancellation:
            Safe: nothing is taken.
        """
        while not self._items:
            if self.done():
                return None
            await self._next_news()
        self._taken += 1
        frame = self._items.popleft()
        due = self._taken + self._prefetch
        if due - self.credit > self._prefetch // 2:
            self.allow(due)
        return frame

    async def pass_on(self) -> list[Frame]:
        """Wait for items and take all that are there; none if the job is done.

        They count as taken by whoever they are passed to, which gives the credit.
        """
        while not self._items and not self.done():
            await self._next_news()
        items = [*self._items]
        self._items.clear()
        return items

    def allow(self, credit: int) -> None:
        """Let the worker send *credit* items in all."""
        if credit > self.credit and not self.done():
            self.credit = credit
            self._heard_at = self.get_loop().time()
            self.owner.give_credit(self)

    def _next_news(self) -> asyncio.Future[None]:
        if self._news is None or self._news.done():
            self._news = self.get_loop().create_future()
        return self._news

    def _ring(self, _: Any = None) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


# Which class of job there is for each way to call a function, if its caller is in this process.
JOB_TYPES: dict[Via, type[PoolJob[Any]]] = {
    "submit": PoolJob,
    "map": ChunkJob,
    "stream": StreamJob,
}
