"""Every exception that asyncpool raises on purpose: ``asyncpool.errors.PoolFullError`` and so on.

The tree is shallow, and each branch answers one question of the caller's:

* :exc:`JobCancelled` -- raised *inside* a job that is to end
* :exc:`AsyncPoolError`
    * :exc:`UnsupportedPlatformError` -- can this machine run a pool at all?
    * :exc:`PoolClosedError` -- did the pool close before the job was done?
    * :exc:`PoolFullError` -- did the pool refuse the job?
    * :exc:`WorkerGoneError` -- has the worker of a session died?
    * :exc:`BroadcastError` -- has a function failed in some of the workers?
    * :exc:`PoolBrokenError` -- has the supervisor given up on its workers?
    * :exc:`RollInProgressError` -- are its workers being replaced already?
    * :exc:`ProfileInProgressError` -- is a profile being taken already?
    * :exc:`NoWorkerError` -- is there no worker that can take this?
    * :exc:`ResizeError` -- are there fewer workers than there were to be?
    * :exc:`ProtocolError` -- did the two ends of a channel disagree?
    * :exc:`LeaseLostError` -- has the outside system given the lease to somebody else?
    * :exc:`ThrottledError` -- does the outside system want fewer renewals?
    * :exc:`JobError` -- did *this* job fail for a reason that is not its own?
        * :exc:`JobTimeoutError`
        * :exc:`JobNotPicklableError`
        * :exc:`JobRaisedError`
        * :exc:`RemoteError`
        * :exc:`HookError`
        * :exc:`WorkerCrashedError`
            * :exc:`WorkerStartError`
            * :exc:`WorkerHungError`
            * :exc:`WorkerOutOfMemoryError`
            * :exc:`NodeLostError`

An exception that the job itself raises arrives as itself, with a
:exc:`RemoteTraceback` as its ``__cause__``.  Bad arguments raise plain
:exc:`ValueError` or :exc:`TypeError`.  The two about leases are raised by the user's
coroutine, for a :class:`asyncpool.LeaseKeeper`.  :exc:`asyncio.CancelledError` is never
raised or subclassed here: it belongs to the task that was cancelled.
"""

from __future__ import annotations

import functools
from pickle import PicklingError

from asyncpool.enums import CrashKind, Delivery, TimeLimit

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from typing import Any, Literal, TypeVar

    from asyncpool.events import Crash

    E = TypeVar("E", bound="AsyncPoolError")

__all__ = [
    "AsyncPoolError",
    "BroadcastError",
    "HookError",
    "JobCancelled",
    "JobError",
    "JobNotPicklableError",
    "JobRaisedError",
    "JobTimeoutError",
    "LeaseLostError",
    "NoWorkerError",
    "NodeLostError",
    "PoolBrokenError",
    "PoolClosedError",
    "PoolFullError",
    "ProfileInProgressError",
    "ProtocolError",
    "RemoteError",
    "RemoteTraceback",
    "ResizeError",
    "RollInProgressError",
    "ThrottledError",
    "UnsupportedPlatformError",
    "WorkerCrashedError",
    "WorkerGoneError",
    "WorkerHungError",
    "WorkerOutOfMemoryError",
    "WorkerStartError",
]


class AsyncPoolError(Exception):
    """Base class of every exception that asyncpool defines.

    Subclasses keep what they know as attributes and build their message from
    them, so that a handler never has to parse a string.
    """

    # Of a class that with_base() has made: the two that it is made of.
    _bases: tuple[type[AsyncPoolError], type[Exception]] | None = None

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.__dict__.update(details)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call cls(*args), which fails for every subclass with
        # keyword-only parameters; and errors do travel between processes.
        cls, *base = self._bases or (type(self),)
        return (_rebuild, (cls, self.args, self.__dict__.copy(), *base))


def _rebuild(
    cls: type[AsyncPoolError],
    args: tuple[Any, ...],
    details: dict[str, Any],
    base: type[Exception] | None = None,
) -> AsyncPoolError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(details)
    if isinstance(error, JobRaisedError | HookError):
        error.__cause__ = error.exception
    elif isinstance(error, BroadcastError):
        error.__cause__ = next(iter(error.errors.values()))
    return error if base is None else with_base(error, base)


class RemoteTraceback(Exception):  # noqa: N818 - a traceback, not an error
    """The traceback of an exception in its worker; it is the cause of the exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    @property
    def tb(self) -> str:
        """The same text, by the name that the standard library's executors use."""
        return self.text

    def __str__(self) -> str:
        # In a log no line of it looks like a record.
        return f"\n{_indented(self.text.rstrip().splitlines())}\n"


class UnsupportedPlatformError(AsyncPoolError):
    """This platform lacks something that every pool needs."""


class PoolClosedError(AsyncPoolError, RuntimeError):
    """The pool is closed, or closed before the job was done.

    Attributes:
        job_id: The job, or ``None`` if the pool refused to take one.
        delivery: How far the job had got.
        function: The job's function, such as ``"shop.images.resize"``.
    """

    def __init__(
        self,
        message: str = "the pool is closed",
        *,
        job_id: int | None = None,
        delivery: Delivery = Delivery.NEVER_SENT,
        function: str = "",
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.delivery = delivery
        self.function = function


class RollInProgressError(AsyncPoolError):
    """A roll of the pool is in progress already; there is one roll at a time."""


class ProfileInProgressError(AsyncPoolError):
    """A profile of the pool is being taken already; there is one at a time."""


class BroadcastError(AsyncPoolError):
    """A broadcast has failed in some workers, and later workers will not run it.

    Its ``__cause__`` is the error of the first of them.

    Attributes:
        name: The name of the function.
        results: The results in the other workers, by slot.
        errors: The errors, by slot: what the function raised, or a :exc:`JobError`.
    """

    def __init__(
        self, name: str, *, results: dict[int, Any], errors: dict[int, BaseException]
    ) -> None:
        slot, first = min(errors.items())
        super().__init__(
            f"the broadcast of {name} has failed in {len(errors)} of "
            f"{len(errors.keys() | results.keys())} workers; in slot {slot}: "
            f"{type(first).__qualname__}: {first}"
        )
        self.name = name
        self.results: dict[int, Any] = dict(sorted(results.items()))
        self.errors: dict[int, BaseException] = dict(sorted(errors.items()))
        self.__cause__: BaseException | None = first


class PoolFullError(AsyncPoolError):
    """The pool refused a job, or a session, because too many wait already.

    Attributes:
        waiting: How many jobs, and callers who want a session, were waiting.
        max_queued: How many of them may wait.
    """

    def __init__(self, *, waiting: int, max_queued: int) -> None:
        super().__init__(
            f"{waiting} {'job is' if waiting == 1 else 'jobs are'} waiting and max_queued is "
            f"{max_queued}: shed load, or try again when some have finished"
        )
        self.waiting = waiting
        self.max_queued = max_queued


class WorkerGoneError(AsyncPoolError):
    """The worker of a session is gone, with its state, and the session is over.

    The cause is the error of the call that the worker died of.  There may be none.

    Attributes:
        slot: The slot of the worker.
        pid: The process id of the worker.
        crash: How the worker died; ``None`` if the pool itself has ended it.
    """

    def __init__(self, *, slot: int, pid: int, crash: Crash | None = None) -> None:
        super().__init__(
            f"{crash or f'the pool has ended worker {pid} in slot {slot}'}; the session that had "
            "it to itself is over: begin another one, and rebuild its state there"
        )
        self.slot = slot
        self.pid = pid
        self.crash = crash


class PoolBrokenError(AsyncPoolError):
    """There is no worker, and none can be started.

    Attributes:
        reason: Which limit of the restart policy was reached.
        crashes: The last crashes, oldest first.
        retry_after: Seconds until the pool tries to start a worker again.  If that succeeds, the
            pool takes jobs again.  ``None`` if it has given up for good.
    """

    def __init__(
        self, *, reason: str, crashes: tuple[Crash, ...], retry_after: float | None
    ) -> None:
        last = crashes[-1] if crashes else None
        end = f"; last: {last}{_last_lines(last)}" if last is not None else ""
        super().__init__(f"the pool is broken: {reason}{end}")
        self.reason = reason
        self.crashes = crashes
        self.retry_after = retry_after


class NoWorkerError(AsyncPoolError, LookupError):
    """No worker can be retired, killed or profiled there, or can take what was sent to it.

    Attributes:
        worker: The slot that was asked for.  ``None`` if no other worker could take a socket or
            file after the first worker had died or had no descriptors left.
        there: The slots with ready workers, if the call was to retire, kill or profile one.
    """

    def __init__(
        self, worker: int | None, *, there: tuple[int, ...] | None = None
    ) -> None:
        where = (
            "that could take the descriptor" if worker is None else f"in slot {worker}"
        )
        if there is not None:
            slots = ", ".join(map(str, there)) or "none"
            where += f" that is ready; slots with one: {slots}"
        super().__init__(f"there is no worker {where}")
        self.worker = worker
        self.there = there


class ResizeError(AsyncPoolError):
    """A pool or cluster did not get all workers that it was to have, since one does not start.

    :meth:`asyncpool.Pool.resize` and :meth:`asyncpool.cluster.Cluster.resize` raise it.
    The pool or cluster goes on trying.

    Attributes:
        crash: How that worker ended.
    """

    def __init__(self, crash: Crash) -> None:
        super().__init__(
            f"there are not as many workers yet: {crash}{_last_lines(crash)}"
        )
        self.crash = crash


class ProtocolError(AsyncPoolError):
    """The bytes on a channel are not what the protocol allows."""


class LeaseLostError(AsyncPoolError):
    """A lease cannot be extended: it has lapsed, or somebody else has it.

    The *renew* of a lease keeper raises it.  The keeper forgets the lease and cancels its job.
    """

    def __init__(self, message: str = "the lease is gone") -> None:
        super().__init__(message)


class ThrottledError(AsyncPoolError):
    """The outside system takes no renewal now, but the lease may still be valid.

    The *renew* of a lease keeper raises it.  The keeper repeats the renewal after a pause.

    Attributes:
        retry_after: The pause that the outside system has asked for, in seconds.
    """

    def __init__(
        self,
        message: str = "the outside system asks for fewer renewals",
        *,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class JobError(AsyncPoolError):
    """A job has no outcome of its own: it failed for a reason outside its function.

    Attributes:
        job_id: The job, as shown in events and logs.
        attempt: The attempt that ended this way, counting from 1; 0 if none began.
        function: The job's function, such as ``"shop.images.resize"``.
    """

    job_id: int = 0
    attempt: int = 0
    function: str = ""


class JobTimeoutError(JobError, TimeoutError):
    """A job did not begin or did not finish in time.

    Attributes:
        limit: Which limit it was.
        seconds: The value of the limit; for a deadline, the time on the loop's clock.
        stack: Where the job was stuck, as ``faulthandler`` shows it: the Python stacks of
            the worker's threads, the innermost call first.  Empty if the job was queued, or
            if the worker could not write them, since it was stopped or dying.
    """

    def __init__(
        self,
        *,
        job_id: int,
        attempt: int,
        limit: TimeLimit,
        seconds: float,
        stack: str = "",
        function: str = "",
    ) -> None:
        where = f"in attempt {attempt}" if attempt else "in the queue"
        text = {
            TimeLimit.TIMEOUT: f"ran longer than its timeout of {seconds:g} s",
            TimeLimit.QUEUE_TIMEOUT: f"waited longer than its queue_timeout of {seconds:g} s",
            TimeLimit.DEADLINE: "missed its deadline",
        }[limit]
        text = f"{job_text(job_id, function)} {text}, {where}{_innermost_calls(stack)}"
        super().__init__(text, job_id=job_id, attempt=attempt, function=function)
        self.limit = limit
        self.seconds = seconds
        self.stack = stack


class JobCancelled(BaseException):
    """Raised inside a running job that is cancelled, or whose time is over.

    Clean up and let it pass: if the job has not ended after its ``cancel_grace``, the pool
    kills its worker.
    """


class JobNotPicklableError(JobError, PicklingError):
    """Something of a job cannot be pickled, or not be unpickled on the other side.

    It is a :exc:`pickle.PicklingError` too, as in the standard library's executors.

    Attributes:
        direction: What it is: ``"arguments"``, ``"result"``, ``"exception"``, or the
            ``"details"`` of a heartbeat.
        name: The argument, such as ``"args[1]"``, ``"kwargs['path']"`` or ``"fn"``,
            or the type of the result, the exception or the details.
        text: The text of the exception, if the job raised one that could not be sent.
    """

    direction: Literal["arguments", "result", "exception", "details"]

    def __init__(
        self,
        message: str,
        *,
        direction: Literal["arguments", "result", "exception", "details"],
        name: str,
        text: str = "",
        job_id: int = 0,
        attempt: int = 0,
    ) -> None:
        super().__init__(message, job_id=job_id, attempt=attempt)
        self.direction = direction
        self.name = name
        self.text = text


class JobRaisedError(JobError):
    """A job raised an exception that must not be raised in its caller.

    ``SystemExit`` and ``KeyboardInterrupt`` would end the caller's event loop, a
    job's ``CancelledError`` would pretend that the caller was cancelled, and a
    future refuses ``StopIteration``.

    Attributes:
        exception: What the job raised; also the ``__cause__`` of this error.
    """

    def __init__(
        self, exception: BaseException, *, job_id: int = 0, attempt: int = 0
    ) -> None:
        text = f"the job raised {_show(exception)}"
        super().__init__(text, job_id=job_id, attempt=attempt)
        self.exception = exception
        self.__cause__: BaseException | None = exception


class RemoteError(JobError):
    """A job of a pool with a codec raised an exception, which has come home as data.

    The exception itself comes only if its class was registered, see ``Pool(errors=…)``.

    Attributes:
        type_name: The name of the class, such as ``"builtins.ValueError"``.
        text: The text of the exception.
        traceback: Its traceback in the worker, as text; also in the ``__cause__``.
        args_sent: Its ``args``, if they were plain data; else ``None``.
    """

    def __init__(
        self,
        type_name: str,
        text: str,
        *,
        traceback: str = "",
        args: tuple[Any, ...] | None = None,
        job_id: int = 0,
        attempt: int = 0,
    ) -> None:
        message = f"the job raised {type_name}{f': {text}' if text else ''}"
        super().__init__(message, job_id=job_id, attempt=attempt)
        self.type_name = type_name
        self.text = text
        self.traceback = traceback
        self.args_sent = args


class HookError(JobError):
    """The hook around the job failed, see ``Pool(around=…)``; its worker goes on.

    Attributes:
        hook: The name of the hook.
        stage: ``"enter"`` if the hook failed before the job's function was called, ``"exit"``
            if it failed after the function had returned.
        exception: What the hook raised; also the ``__cause__`` of this error.
    """

    stage: Literal["enter", "exit"]

    def __init__(
        self,
        hook: str,
        *,
        stage: Literal["enter", "exit"],
        exception: BaseException,
        job_id: int = 0,
        attempt: int = 0,
        function: str = "",
    ) -> None:
        job = job_text(job_id, function)
        entered = stage == "enter"
        when = f"before {job} had begun" if entered else f"after {job} had returned"
        text = f"the hook {hook} failed {when}: {_show(exception)}"
        super().__init__(text, job_id=job_id, attempt=attempt, function=function)
        self.hook = hook
        self.stage = stage
        self.exception = exception
        self.__cause__: BaseException | None = exception


_DELIVERED = {
    Delivery.NEVER_SENT: "had not been sent",
    Delivery.SENT: "had been sent but not started",
    Delivery.STARTED: "had started",
    Delivery.UNKNOWN: "may have started",
}


class WorkerCrashedError(JobError):
    """The worker of a job died, and there is no other attempt.

    Attributes:
        crashes: Every crash that cost this job an attempt or its place, oldest first.
        delivery: How far the job had got.
        kind, slot, generation, pid, exit_code, signal, stderr_tail, stack: The fields of
            the last crash, see :class:`asyncpool.Crash`.
    """

    def __init__(
        self,
        *,
        job_id: int,
        crashes: tuple[Crash, ...],
        delivery: Delivery,
        function: str = "",
    ) -> None:
        last = crashes[-1]
        who = "the job" if last.job_id == job_id else job_text(job_id, function)
        # The last crash may be the fault of another job, and then has that one's attempt.
        own = [0, *(crash.attempt for crash in crashes if crash.job_id == job_id)]
        # Of any other death the stack is a traceback, which stderr_tail has too.
        hung = last.stack if last.kind is CrashKind.HUNG else ""
        tail = _innermost_calls(hung) or _last_lines(last)
        text = f"{last}; {who} {_DELIVERED[delivery]}{tail}"
        super().__init__(text, job_id=job_id, attempt=own[-1], function=function)
        self.crashes = crashes
        self.delivery = delivery
        self.kind = last.kind
        self.slot: int = last.slot
        self.generation: int = last.generation
        self.pid: int | None = last.pid
        self.exit_code: int | None = last.exit_code
        self.signal: str | None = last.signal
        self.stderr_tail: tuple[str, ...] = last.stderr_tail
        self.stack: str = last.stack


def job_text(number: int, function: str) -> str:
    """Return the name of a job for texts."""
    return f"job {number} ({function})" if function else f"job {number}"


def _last_lines(crash: Crash) -> str:
    """Return the lines that say most about the end of a worker, each on its own.

    For a failed start they may be lines of its traceback: a worker of a cluster does not print
    its traceback, but leaves that to the master.
    """
    tail = list(crash.stderr_tail)
    if crash.kind is CrashKind.FAILED_START and crash.stack:
        trace = crash.stack.splitlines()
        if trace[0].endswith("(most recent call first):"):  # it was not ready in time
            return _innermost_calls(crash.stack)
        tail = tail if trace[-1] in tail else trace
    fatal = [i for i, line in enumerate(tail) if line.startswith("Fatal Python error")]
    if not fatal:
        return _indented(tail[-5:])
    # What faulthandler prints: the error, then stacks, the innermost call first.
    tail = tail[fatal[-1] :]
    stacks = [i for i, line in enumerate(tail) if line.startswith("Current thread 0x")]
    stack = tail[stacks[0] : stacks[0] + 4] if stacks else []
    stack = stack[: stack.index("")] if "" in stack else stack
    return _indented([tail[0], *stack, *_guilty(tail)])


def _guilty(tail: list[str]) -> list[str]:
    """Return the innermost frames of C, as Python 3.14 and newer show them.

    The frames above them print the stack.  Then comes the trampoline of the signal, in the C
    library, and perhaps another function of that library.  None of these is the cause.
    """
    frames = [line for line in tail if line.startswith("  Binary file ")]
    libc = [i for i, line in enumerate(frames) if "/libc.so" in line]
    below = frames[libc[0] + 1 :] if libc else []
    return [line for line in below if "/libc.so" not in line][:3]


def _innermost_calls(stack: str) -> str:
    """Return the first lines of a stack, each on a line of its own."""
    return _indented(stack.splitlines()[:4])


def _indented(lines: list[str]) -> str:
    """Return *lines*, each on a line of its own."""
    return "".join(f"\n    {line}" for line in lines)


class WorkerStartError(WorkerCrashedError):
    """A worker did not become ready: no process, a failing initializer, no handshake."""


class WorkerHungError(WorkerCrashedError):
    """A worker gave no more signs of life, and the pool killed it.

    Its job sent no heartbeat for its ``heartbeat_timeout``, or the worker did not answer the
    pool's pings for ``ping_timeout``.
    """


class WorkerOutOfMemoryError(WorkerCrashedError):
    """A worker was killed for its use of memory."""


class NodeLostError(WorkerCrashedError):
    """The agent that had a job of a shared pool is gone, and there is no other attempt.

    Attributes:
        node: The name of the agent.
        silence: How many seconds before that the agent was last heard.
        own_silence: For how many seconds this program had told the agent nothing, if the agent
            may have given it up for that; else 0.  Its event loop was blocked, or its process
            was stopped.
        reason: What was wrong with what the agent sent, or what Ray says of it, if that is why it
            is lost; else nothing.
    """

    def __init__(
        self,
        *,
        job_id: int,
        crashes: tuple[Crash, ...],
        delivery: Delivery,
        node: str,
        silence: float,
        own_silence: float = 0.0,
        reason: str = "",
        function: str = "",
    ) -> None:
        super().__init__(
            job_id=job_id, crashes=crashes, delivery=delivery, function=function
        )
        gone = f"agent {node} is gone, or has given this client up"
        job = f"{job_text(job_id, function)} {_DELIVERED[delivery]}"
        if reason:
            gone, why = f"agent {node} is lost", f": {reason}"
        elif own_silence:
            why = (
                f", which was silent for {own_silence:.1f} s: its event loop was blocked, or its "
                "process was stopped"
            )
        else:
            why = f"; it was heard last {silence:.1f} s before"
        self.args: tuple[Any, ...] = (f"{gone}{why}; {job}",)
        self.node = node
        self.reason = reason
        self.silence = silence
        self.own_silence = own_silence


def _show(error: BaseException) -> str:
    try:
        return repr(error)
    except Exception as worse:  # noqa: BLE001 - it may raise anything
        name = type(error).__qualname__
        return f"{name}, whose __repr__ raised {type(worse).__qualname__}"


# Give an error a second class, so that code which expects that class catches it too.
#
# Code that was written for another library expects that library's errors.  Their modules are
# expensive to import, and only the part of asyncpool that stands in for that library needs them.
# So no class here can derive from them.

# What they call a broken pool.
BROKEN = PoolBrokenError, PoolClosedError, WorkerCrashedError


def with_base(error: E, kind: type[Exception]) -> E:
    """Return *error* itself, which from now on is also an instance of *kind*.

    It keeps its attributes, its cause and its text.  It can still be pickled.
    """
    if not isinstance(error, kind):
        pair: Any = (type(error), kind)
        error.__class__ = _both(*pair)
    return error


@functools.cache
def _both(cls: Any, kind: Any) -> type[Any]:
    # A pickle could not find this class by a name, since it is in no module.
    own = {"__doc__": cls.__doc__, "__module__": cls.__module__, "_bases": (cls, kind)}
    return type(cls.__name__, (cls, kind), own)
