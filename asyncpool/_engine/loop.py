"""The event loop of a pool: timers, waits, and threads for what would hold it up.

Copying releases the GIL, so the loop hardly notices it.  Pickling holds the GIL, and takes a
second for 100 MB of many small objects.  So pickling lets other threads run every millisecond
(:class:`Pause`).  It does one call after the other, except that a short call need not wait for
a long one.  The threads start when they are needed, and end with the pool.  The loop's default
executor would not do: it belongs to the user, may be full, or may be a pool of this kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, Self, TypeVar, TypeVarTuple


class Alarm:
    """Calls back once, at the time that it is set to.

    Args:
        loop: The loop, for its clock and its timer.
        callback: Called with the time, which is never before *due*, though a timer of the loop
            may fire a tick of the clock early.  By then the alarm is no longer set.

    Attributes:
        is_set: Whether it is going to call back.
        due: The time on the loop's clock that it is set to, or was set to last.
    """

    __slots__ = ("_callback", "_loop", "_timer", "due", "is_set")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[float], object]
    ) -> None:
        self.is_set = False
        self.due: float = 0.0
        self._loop, self._callback = loop, callback
        self._timer: asyncio.TimerHandle | None = None

    def set_at(self, when: float | None) -> None:
        """Call back at *when* instead of at any time set before; ``None`` sets no time."""
        if self.is_set and when == self.due:
            return
        self.cancel()
        if when is not None:
            self._timer = self._loop.call_at(when, self._ring)
            self.due, self.is_set = when, True

    def set_by(self, when: float) -> None:
        """Call back at *when*, unless it is set to an earlier time."""
        if not self.is_set or when < self.due:
            self.set_at(when)

    def set_in(self, seconds: float) -> None:
        """Call back after *seconds*, instead of at any time set before."""
        self.cancel()
        # First: if the process is held up here, the callback would else be told a time to come.
        self.due = self._loop.time() + seconds
        # Not call_at(): uvloop counts in whole milliseconds.  It would round the difference of
        # two times, and get another number than for the seconds themselves.
        self._timer = self._loop.call_later(seconds, self._ring)
        self.is_set = True

    def cancel(self) -> None:
        """Do not call back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.is_set = False

    def _ring(self) -> None:
        self._timer = None
        self.is_set = False
        self._callback(max(self.due, self._loop.time()))


def other_loop_error(what: str, home: asyncio.AbstractEventLoop) -> RuntimeError:
    """Return the error for using *what* in another event loop than *home*, or in none."""
    ways = "pool.submit_threadsafe(), or loop.call_soon_threadsafe() for other calls"
    if home.is_closed():
        text = "a closed event loop: start another one in the loop that uses it"
    elif asyncio._get_running_loop() is None:  # noqa: SLF001 - no exception if there is none
        text = (
            f"an event loop that does not run in this thread: from threads use {ways}"
        )
    else:
        text = (
            "another event loop than the one that runs here: start and use it in one loop "
            "(a fixture in that of its tests), or, if its loop runs in another thread, use "
            f"{ways}"
        )
    return RuntimeError(f"{what} belongs to {text}")


def check_loop(loop: asyncio.AbstractEventLoop | None, what: str) -> None:
    """Check that *what* is used in its own loop, which is *loop* if it was started.

    Raises:
        RuntimeError: If another loop runs here, or if *loop* runs in another thread.
    """
    here = asyncio._get_running_loop()  # noqa: SLF001 - no exception if there is none
    # If its loop does not run now, a plain call disturbs nobody.
    if loop is not None and here is not loop and (here or loop.is_running()):
        raise other_loop_error(what, loop)


T = TypeVar("T")
R = TypeVar("R")


class ItemStream(Generic[T]):
    """Things in the order in which they came; an async iterator, for any number of tasks.

    After its end, the iterator yields what is still here, and then ends.

    Args:
        what: What the error for another loop calls it.
        size: How many it keeps, the newest; ``None`` for all.

    Attributes:
        dropped: How many it has not kept.
    """

    def __init__(self, what: str, size: int | None = None) -> None:
        self.dropped: int = 0
        self._what = what
        self._home = asyncio._get_running_loop()  # noqa: SLF001 - a lease keeper's may have none yet
        self._items: deque[T] = deque(maxlen=size)
        self._news, self._ended = asyncio.Event(), False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Wait for the next thing.

        Raises:
            RuntimeError: In another event loop than the one in which this was made.

        Cancellation:
            Safe: nothing is lost.
        """
        check_loop(self._home, self._what)
        while not self._items:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._items.popleft()

    def put(self, item: T) -> bool:
        """Add something, and return whether nothing had to be dropped for it."""
        full = len(self._items) == self._items.maxlen
        self.dropped += full
        self._items.append(item)
        self._news.set()
        return not full

    def end(self) -> None:
        """End the iterations after what is still here."""
        self._ended = True
        self._news.set()


async def shielded(future: asyncio.Future[R]) -> R:
    """Wait for *future* and return its result, as :func:`asyncio.shield` does.

    If the waiter has been cancelled, a later exception of the future is dropped.  From
    Python 3.14 on, :func:`asyncio.shield` would report it to the loop's exception handler.

    Cancellation:
        Safe: the future goes on.
    """
    if not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            # Marks what may come as retrieved.
            future.add_done_callback(lambda it: it.cancelled() or it.exception())
            raise
    return future.result()


def anyio_shield() -> contextlib.AbstractContextManager[object]:
    """Return what keeps the cancelled scopes of anyio, if there are any, from ending a wait.

    Such a scope cancels the task in every iteration of the loop.  The first one loads anyio's backend,
    25 modules and 30 ms: as long as that is not loaded, this task can be in none.
    """
    if "anyio._backends._asyncio" not in sys.modules:
        return contextlib.nullcontext()
    import anyio  # noqa: PLC0415 - see above

    return anyio.CancelScope(shield=True)


async def outlast(future: asyncio.Future[Any]) -> None:
    """Wait for the end of *future*, even if this task is cancelled meanwhile.

    Cancellation:
        Is raised when the future is done.
    """
    cancelled: asyncio.CancelledError | None = None
    with anyio_shield():
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError as error:
                cancelled = error  # of Task.cancel(); a scope's does not get here
    if cancelled is not None:
        raise cancelled


def fail_quietly(future: asyncio.Future[Any], error: BaseException) -> None:
    """Fail *future*, unless it is done; perhaps nobody waits for it."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # marks it as retrieved


Ts = TypeVarTuple("Ts")


def call_in(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object
) -> None:
    """Have *loop* call *callback* soon, unless the loop is closed; any thread may call this."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


# Two copies at once use all of the memory's bandwidth.
_COPIERS = 2

# Seconds after which a call counts as long, so that another call may begin beside it.  When that
# one has computed for as long too, it rests until it is the first.  What it has pickled takes
# memory until then, so only a few calls may rest.
_LONG = 0.02
_PICKLERS = 3

# Seconds between two looks of a resting call whether it may go on.
_REST = 0.005

# Seconds for which a thread holds the GIL without a break, and seconds of the break.  A thread
# that waits for the GIL must wake up in the break, or it finds the GIL taken again.
_STINT = 0.001
_PAUSE = 0.00005

# Seconds that a closing pool waits for a thread that runs code of the user's.
_THREAD_GRACE = 5.0


class AbandonedError(BaseException):
    """Nobody wants the result any more.  No ``except Exception`` of the user's stops this."""


class Pause:
    """What long work calls between two pieces, so that other threads may run.

    Args:
        unwanted: Returns whether the work may be given up.

    Attributes:
        yields: Whether other work comes first, if this work is long; another thread sets it.
    """

    def __init__(self, unwanted: Callable[[], bool]) -> None:
        self._unwanted = unwanted
        self.yields = False
        self._until = 0.0
        # The time that the thread has computed, and not waited for the GIL.
        self._long_at = math.inf

    def __call__(self) -> None:
        """Sleep a little if it is time for a break, or until the work that comes first is done.

        Raises:
            AbandonedError: If the work may be given up.
        """
        if self._unwanted():
            raise AbandonedError
        if time.monotonic() < self._until:
            return
        time.sleep(_PAUSE)
        computed = time.thread_time()
        self._long_at = min(self._long_at, computed + _LONG)
        while self.yields and computed >= self._long_at:
            time.sleep(_REST)
            if self._unwanted():
                raise AbandonedError
        self._until = time.monotonic() + _STINT


class Threads:
    """The threads of one pool.

    Args:
        loop: The pool's loop.

    Attributes:
        copy: Calls a function that releases the GIL or takes only a moment.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._copiers = ThreadPool(loop, "copy", most=_COPIERS)
        self._picklers = ThreadPool(loop, "pickle", most=_PICKLERS, apart=_LONG)
        self.copy = self._copiers.call

    def pickle(
        self,
        function: Callable[[*Ts, Pause], R],
        *args: *Ts,
        unwanted: Callable[[], bool],
    ) -> asyncio.Future[R]:
        """Call *function*, which computes; a short call goes before the next one begins.

        Args:
            function: What to call, with *args* and a :class:`Pause`, which it calls often.
            args: Its arguments.
            unwanted: Returns whether the work may be given up.
        """
        pause = Pause(unwanted)
        return self._picklers.call(function, *args, pause, pause=pause)

    async def close(self) -> None:
        """Wait until all calls are done, and end the threads.

        If a call runs code of the user's and does not return within some seconds, the pool
        leaves it alone, and cancels the calls behind it.

        Cancellation:
            Leaves the calls alone at once.
        """
        running = [*self._copiers.running, *self._picklers.running]
        try:
            if running:
                await asyncio.wait(running, timeout=_THREAD_GRACE)
        finally:
            self._copiers.close()
            self._picklers.close()


class _Call(NamedTuple):
    """A call that a thread is to make.

    Attributes:
        function: What the thread calls.
        pause: The pause that *function* calls, perhaps.
        answer: The future that the caller has, and may cancel.
        ended: Done when the thread has finished the call.
    """

    function: Callable[[], Any]
    pause: Pause
    answer: asyncio.Future[Any]
    ended: asyncio.Future[None]


def _outcome_of(function: Callable[[], Any]) -> tuple[str, Any]:
    """Call *function*; return the method of a future that takes its outcome, and that."""
    # No name here refers to the future: what is raised refers to this frame, and it to that.
    try:
        return "set_result", function()
    except StopIteration as error:  # a future does not accept that
        return "set_exception", RuntimeError(f"it raised {error!r}")
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        return "set_exception", error


class ThreadPool:
    """Some threads that take calls from one queue.

    The standard library's executor would not do: it waits for its threads when the
    interpreter ends, and if it cannot start a thread, it raises an error and yet keeps the
    call.  These threads are daemons, and if none can be started, the loop makes the call.

    Args:
        loop: The pool's loop.
        name: What its threads do.
        most: How many calls may be made at once.
        apart: How many seconds a call must have lasted before the next one begins beside it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, name: str, *, most: int, apart: float = 0
    ) -> None:
        self._loop, self._name = loop, name
        self._most, self._apart = most, apart
        self._waiting: deque[_Call] = deque()
        self._begun: list[_Call] = []
        # When the last call has lasted long enough for the next one to begin.
        self._until = Alarm(loop, lambda _: self._go_on())
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()

    @property
    def running(self) -> list[asyncio.Future[None]]:
        """The end of each call that has not ended."""
        calls = *self._begun, *self._waiting
        return [call.ended for call in calls if not call.ended.done()]

    def call(
        self, function: Callable[[*Ts], R], *args: *Ts, pause: Pause | None = None
    ) -> asyncio.Future[R]:
        """Make a call in a thread; cancelling the future does not stop the call."""
        # Two futures, and not asyncio.shield(): if the caller has gone, nobody retrieves what
        # the call raises after that, and asyncio would complain.
        answer: asyncio.Future[R] = self._loop.create_future()
        ended: asyncio.Future[None] = self._loop.create_future()
        pause = pause or Pause(answer.done)
        self._waiting.append(_Call(partial(function, *args), pause, answer, ended))
        self._go_on()
        return answer

    def _go_on(self) -> None:
        """Begin with the next calls, if they may begin."""
        most = 0 if self._until.is_set else self._most
        while self._waiting and len(self._begun) < most:
            call = self._waiting.popleft()
            call.pause.yields = bool(self._begun)
            self._begun.append(call)
            if self._apart:
                self._until.set_in(self._apart)
            self._calls.put(call)
            if len(self._threads) < len(self._begun):
                name = f"asyncpool-{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                with contextlib.suppress(RuntimeError):  # there may be no more of them
                    thread.start()
                    self._threads.append(thread)
            if not self._threads:
                self._calls.get()
                self._settle(call, *_outcome_of(call.function))

    def _settle(self, call: _Call, take: str, outcome: Any) -> None:
        if not call.answer.done():  # or else the caller has cancelled it
            getattr(call.answer, take)(outcome)
        if not call.ended.done():
            call.ended.set_result(None)
        if call is self._begun[-1]:
            self._until.cancel()
        self._begun.remove(call)
        if self._begun:
            self._begun[0].pause.yields = False
        self._go_on()

    def close(self) -> None:
        """End the threads."""
        stuck = bool(self.running)
        self._until.cancel()
        for call in self._begun:  # those that rest: nothing else would wake them up
            call.pause.yields = False
        with contextlib.suppress(Empty):  # a thread may take the last one
            while True:
                if not_begun := self._calls.get_nowait():
                    self._waiting.append(not_begun)
        while self._waiting:
            call = self._waiting.popleft()
            call.answer.cancel()
            call.ended.cancel()
        for _ in self._threads:
            self._calls.put(None)
        while self._threads and not stuck:
            self._threads.pop().join()  # it only has to wake up

    def _work(self) -> None:
        while call := self._calls.get():
            outcome = _outcome_of(call.function)
            call_in(self._loop, self._settle, call, *outcome)
            del call, outcome
