"""Threads of a pool's own, for what would hold up its loop.

Copying lets go of the GIL, so the loop hardly notices it.  Pickling holds it, and what
is built of many small objects takes a second for 100 MB; so who does that makes way
every millisecond (:class:`Pause`), and does one thing after the other, but for what is
short and would wait for what is long.  The threads start when they are needed, and end
with the pool.  They are not the loop's default executor, which belongs to the user and
may be full, or may be a pool of this very kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar, TypeVarTuple

from asyncpool._runtime.base.alarm import Alarm

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
R = TypeVar("R")

# Two copies at once take all of the memory's bandwidth.
_COPIERS = 2

# After so many seconds another one may begin beside it; which rests when it has computed
# for as long itself, until it is the first.  What has been made until then takes memory,
# so there are only so many of them.
_LONG = 0.02
_PICKLERS = 3

# How often one that rests looks whether it is its turn.
_REST = 0.005

# Seconds that one thread may hold the GIL, and how long it then leaves it to others: who
# waits for it must wake up meanwhile, or finds it taken again.
_STINT = 0.001
_PAUSE = 0.00005

# Seconds that a closing pool waits for a thread that runs the user's own code.
_GRACE = 5.0


class AbandonedError(BaseException):
    """Nobody wants it any more; no ``except Exception`` of the user's stops this."""


class Pause:
    """Called between two pieces of work, so that others may work too.

    Args:
        unwanted: Tells whether the work may be given up.

    Attributes:
        second: Whether other work is to be done first, if this is long; set by another
            thread.
    """

    def __init__(self, unwanted: Callable[[], bool]) -> None:
        self._unwanted = unwanted
        self.second = False
        self._until = 0.0
        # By the time that the thread has computed: it may have waited for the GIL.
        self._long_at = math.inf

    def __call__(self) -> None:
        """Sleep a little if it is time, or until the work before is done.

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
        while self.second and computed >= self._long_at:
            time.sleep(_REST)
            if self._unwanted():
                raise AbandonedError
        self._until = time.monotonic() + _STINT


class Threads:
    """The threads of one pool.

    Args:
        loop: The pool's loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._copiers = _ThreadPool(loop, "asyncpool-copy", most=_COPIERS)
        self._picklers = _ThreadPool(
            loop, "asyncpool-pickle", most=_PICKLERS, apart=_LONG
        )

    def copy(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[R]:
        """Call what lets go of the GIL, or takes a moment only."""
        return self._copiers.call(partial(function, *args, **kwargs))

    def pickle(
        self,
        function: Callable[[*Ts, Pause], R],
        *args: *Ts,
        unwanted: Callable[[], bool],
    ) -> asyncio.Future[R]:
        """Call what computes; such calls wait for each other, as long as they are short.

        Args:
            function: What to call, with *args* and what it is to call now and then.
            args: Its arguments.
            unwanted: Tells whether it may be given up.
        """
        pause = Pause(unwanted)
        return self._picklers.call(partial(function, *args, pause), pause)

    async def close(self) -> None:
        """Wait until everything is done, and end the threads.

        What runs the user's code, and does not come back, is left alone after some
        seconds; calls behind it are cancelled.

        Cancellation:
            Does the same at once.
        """
        running = self._copiers.running | self._picklers.running
        try:
            if running:
                await asyncio.wait(running, timeout=_GRACE)
        finally:
            for threads in (self._copiers, self._picklers):
                threads.close()


class _Call(NamedTuple):
    """What a thread is to do.

    Attributes:
        function: What it calls.
        pause: What that calls now and then, if it does.
        answer: What the caller has, and may cancel.
        ended: Done when the thread is through with it.
    """

    function: Callable[[], Any]
    pause: Pause | None
    answer: asyncio.Future[Any]
    ended: asyncio.Future[None]


class _ThreadPool:
    """Some threads that take calls from one queue.

    Not an executor of the standard library's: that one waits for its threads when the
    interpreter ends, and when it may start no more of them, it raises an error and keeps
    the call.  These are daemons, and if there is no thread at all, the loop has to do it.

    Args:
        loop: The pool's loop.
        name: What its threads are called.
        most: How many calls may be made at once.
        apart: For how many seconds a call must have been made before the next one begins,
            unless it ends before.

    Attributes:
        running: The end of each call that has not ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        *,
        most: int,
        apart: float = 0.0,
    ) -> None:
        self._loop = loop
        self._name = name
        self._most = most
        self._apart = apart
        self._waiting: deque[_Call] = deque()
        self._made: list[_Call] = []
        # Until when the last one of them is waited for.
        self._until = Alarm(loop, self._wait_no_longer)
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self.running: set[asyncio.Future[None]] = set()

    def call(
        self, function: Callable[[], R], pause: Pause | None = None
    ) -> asyncio.Future[R]:
        """Have *function* called; to cancel the future does not stop that."""
        # Two, and no asyncio.shield(): if its caller has gone, what the call has raised
        # after that is nobody's, and asyncio would complain of it.
        answer: asyncio.Future[R] = self._loop.create_future()
        ended: asyncio.Future[None] = self._loop.create_future()
        self.running.add(ended)
        ended.add_done_callback(self.running.discard)
        self._waiting.append(_Call(function, pause, answer, ended))
        self._go_on()
        return answer

    def _go_on(self) -> None:
        """Begin with the next ones if they may begin."""
        while self._waiting and len(self._made) < self._most and not self._until.is_set:
            call = self._waiting.popleft()
            if call.pause:
                call.pause.second = bool(self._made)
            self._made.append(call)
            if self._apart:
                self._until.set_in(self._apart)
            self._calls.put(call)
            if len(self._threads) < len(self._made):
                self._start_one()
            if not self._threads:
                self._calls.get()
                self._settle(call, *_outcome_of(call.function))

    def _wait_no_longer(self, _: float) -> None:
        self._go_on()

    def _settle(self, call: _Call, value: Any, error: BaseException | None) -> None:
        _answer(call.answer, value, error)
        if not call.ended.done():
            call.ended.set_result(None)
        if call is self._made[-1]:
            self._until.cancel()
        self._made.remove(call)
        if self._made and (pause := self._made[0].pause):
            pause.second = False
        self._go_on()

    def close(self) -> None:
        """End the threads."""
        stuck = bool(self.running)
        self._until.cancel()
        for call in self._made:  # nobody would tell them of the end of a stuck one
            if call.pause:
                call.pause.second = False
        while not self._calls.empty():
            if not_begun := self._calls.get():
                self._waiting.append(not_begun)
        while self._waiting:
            call = self._waiting.popleft()
            call.answer.cancel()
            call.ended.cancel()
        for _ in self._threads:
            self._calls.put(None)
        while self._threads and not stuck:
            self._threads.pop().join()  # it takes no longer than it needs to wake up

    def _start_one(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        with contextlib.suppress(RuntimeError):  # there may be no more
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while call := self._calls.get():
            outcome = _outcome_of(call.function)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._settle, call, *outcome)
            del call, outcome


def _outcome_of(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        return None, error


def _answer(
    answer: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    if answer.done():
        pass  # its caller has gone
    elif error is None:
        answer.set_result(value)
    elif isinstance(error, StopIteration):  # which a future refuses
        answer.set_exception(RuntimeError(f"it raised {error!r}"))
    else:
        answer.set_exception(error)
