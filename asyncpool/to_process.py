"""``anyio.to_process``, on a pool of the running event loop.

The pool starts with the first call.  It ends when the loop cancels its tasks at its end, as
:func:`asyncio.run`, :class:`asyncio.Runner` and :func:`anyio.run` do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import anyio
import anyio.to_process
from anyio.lowlevel import checkpoint_if_cancelled

from asyncpool import errors
from asyncpool._core import checks
from asyncpool._core.functions import travels_by_name
from asyncpool._core.options import JobOptions
from asyncpool._dataclass import replace
from asyncpool._engine.job import Job
from asyncpool._engine.loop import outlast, shielded
from asyncpool._wire.buffers import HEAVY, OverLimitError
from asyncpool._wire.pickling import is_flat, pack_job, unpicklable
from asyncpool._wire.text import function_name
from asyncpool._worker.api import call_packed
from asyncpool.pool import Pool

__all__ = ["current_default_process_limiter", "run_sync"]

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

# anyio's own limiter, so that its calls and these share one bound.
current_default_process_limiter: Callable[[], anyio.CapacityLimiter] = (
    anyio.to_process.current_default_process_limiter
)

# Seconds for which an idle worker is kept, as in anyio.
_IDLE_TIMEOUT = 300.0

# By whether a cancellation of the call kills its worker.
_OPTIONS = JobOptions(), JobOptions(on_cancel="kill")


async def run_sync(
    func: Callable[[*Ts], R],
    *args: *Ts,
    cancellable: bool = False,
    limiter: anyio.CapacityLimiter | None = None,
) -> R:
    """Call ``func(*args)`` in a worker process, and return what it returns.

    Args:
        func: Any callable; lambdas and closures too.
        *args: Its arguments.  They are pickled before this function waits for the limiter.
            Large arguments are pickled later: a change before the call begins may reach it.
        cancellable: Whether a cancellation ends the call while it runs.
        limiter: Bounds how many calls run at once, and so how many workers there are.  The
            default is the limiter that :func:`current_default_process_limiter` returns.

    Raises:
        WorkerCrashedError: If the worker dies of the call.  This error and the next two are
            :exc:`anyio.BrokenWorkerProcess` errors too.
        PoolBrokenError: If no worker can be started.
        PoolClosedError: If the loop ends first.
        JobNotPicklableError: If the call, its result or its exception cannot be pickled.
        JobRaisedError: Around an :exc:`asyncio.CancelledError` of *func*, which would
            pretend that the caller was cancelled.
        NoEventLoopError: If no event loop runs in this thread; anyio's, of its newer
            versions.
        RuntimeError: If the event loop is not asyncio's.
        TypeError: If *func* is not callable, or *limiter* no limiter.

    Whatever *func* raises is raised here too.  That includes ``SystemExit`` and
    ``KeyboardInterrupt``, which end a program that does not catch them.  ``StopIteration``
    becomes a :exc:`RuntimeError`, as in every coroutine.

    Cancellation:
        If *cancellable* is true, the pool kills the worker by SIGKILL, and starts another one
        when a call needs it.  Otherwise the call runs to its end first; then the waiting task is
        cancelled.
    """
    checks.called("run_sync", func)
    if limiter is not None and not hasattr(limiter, "__aenter__"):
        raise TypeError(f"limiter must be an anyio.CapacityLimiter, not {limiter!r}")
    await checkpoint_if_cancelled()
    options = _OPTIONS[cancellable]
    call: tuple[Callable[..., Any], tuple[Any, ...]] = func, args
    payload = _packed(func, args)
    if payload is not None:
        options = replace(options, name=function_name(func))
        call = call_packed, (payload,)
    async with limiter or current_default_process_limiter():
        resident = await _of_this_loop()
        resident.calls += 1
        try:
            resident.grow()
            job: Job[R] = resident.pool._submit(*call, {}, options)  # noqa: SLF001
            if not cancellable:
                await outlast(job)
            return await job
        except errors.JobRaisedError as error:
            if isinstance(error.exception, asyncio.CancelledError):
                raise
            raised = error.exception
        except errors.BROKEN as error:
            errors.with_base(error, anyio.BrokenWorkerProcess)
            raise
        finally:
            resident.calls -= 1
    raise raised  # here, since it is the cause of the error that it came in


def _packed(func: Callable[..., Any], args: tuple[Any, ...]) -> bytes | None:
    """Return a call as :func:`call_packed` takes it, so that later changes do not reach it.

    There is no need if nothing of it can change or fail.  A large call is not pickled here, since
    the loop would wait for that.

    Raises:
        JobNotPicklableError: If a part cannot be pickled.
    """
    if is_flat(args) and travels_by_name(func):
        return None
    try:
        payload = pack_job(func, args, {}, limit=HEAVY)
    except OverLimitError:
        return None
    except (errors.JobNotPicklableError, SystemExit, KeyboardInterrupt):
        raise  # the last two may be a signal's
    except BaseException as error:
        raise unpicklable(error) from error
    return payload if isinstance(payload, bytes) else None


class _Resident:
    """The pool of one loop.

    Attributes:
        pool: The pool.
        up: Done when it has started.
        calls: How many calls are in progress.
    """

    def __init__(self) -> None:
        self._most: int = 1
        self.pool = Pool(
            (1, self._most),
            idle_timeout=_IDLE_TIMEOUT,
            name="to_process",
            max_message_size=None,
        )
        # A task of its own, since a start that is cancelled closes the pool.
        self.up = asyncio.create_task(
            self.pool.start(), name="asyncpool start of to_process"
        )
        self.calls = 0

    @property
    def gone(self) -> bool:
        """Whether it has ended, or never came up."""
        return self.up.done() and self.pool._running_engine().status.ended.done()  # noqa: SLF001

    def grow(self) -> None:
        """Let the pool have a worker for each call: the limiter is the only bound."""
        if self.calls > self._most:
            self._most = self.calls
            # Nobody waits for it: a worker that does not start concerns no call.
            self.pool._running_engine().replacement.resize(1, self._most)  # noqa: SLF001


_residents: dict[asyncio.AbstractEventLoop, _Resident] = {}


async def _of_this_loop() -> _Resident:
    loop = asyncio._get_running_loop()  # noqa: SLF001 - no exception if there is none
    if loop is None:
        raise RuntimeError(
            "asyncpool.to_process needs an event loop of asyncio's; with another one use "
            "anyio.to_process"
        )
    resident = _residents.get(loop)
    if resident is None or resident.gone:
        for other in [other for other in _residents if other.is_closed()]:
            del _residents[other]
        resident = _residents[loop] = _Resident()
    await shielded(resident.up)
    return resident
