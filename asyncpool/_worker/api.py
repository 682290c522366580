"""What a job can ask of its worker, and what the worker keeps between jobs.

Programs import this module too, for its functions; so it imports little.

*Heartbeats*: the worker writes them to its page, where they outlive it.  A heartbeat needs no
system call.  Some heartbeats *ring*: they ask the pool to look at the page.  The first heartbeat of
each job rings, and then one in each interval.  The pool looks once more an interval after a ring,
so it sees the last heartbeat too, without a thread or a timer in the worker.
"""

from __future__ import annotations

import pickle
from contextvars import ContextVar
from time import monotonic

from asyncpool._wire.messages import MAX_DETAILS, JobContext
from asyncpool._wire.page import BEAT_INTERVAL, Beat, beat_offset
from asyncpool._wire.pickling import DETAILS, load_job, unpicklable
from asyncpool._wire.records import Record
from asyncpool._wire.text import JOB_LOGGER, function_name

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence
    from types import SimpleNamespace
    from typing import Any

    from asyncpool._worker.runner import JobRunner, Lane

# What runs the jobs of this process, if it is a worker.
_runner: JobRunner | None = None


def become_worker(runner: JobRunner) -> None:
    """Have the functions here serve the jobs that *runner* runs in this process."""
    global _runner  # noqa: PLW0603 - a process is one worker
    _runner = runner


class CurrentJob(Record):
    """The job that is running here.

    Attributes:
        id: Its number in the pool; 0 in an earlier broadcast that a new worker runs.
        attempt: Which attempt this is, counting from 1.
        deadline: When, on the clock of ``time.monotonic()``, this attempt must be done;
            ``None`` for no limit.
        packed_details: The bytes of :attr:`last_details`.
        function: The name of its function, such as ``"shop.images.resize"``.
        slot: The number of this worker, from 0 to one less than the number of workers.  No two
            workers that take jobs have the same one.  A worker that follows a dead one has its
            number.  So has one that replaces another: with *max_surge*, which is 1 by default,
            the two have the same number while the old one finishes its jobs.  Where that must
            not be, use ``Pool(max_surge=0, max_unavailable=1)``.  Logs and events say the slot of
            a replacement, which may be another one.
    """

    id: int
    attempt: int
    deadline: float | None = None
    packed_details: bytes = b""
    function: str = ""
    slot: int = 0

    @property
    def last_details(self) -> Any:
        """The details of the last heartbeat of an earlier attempt, or ``None``; a new copy.

        Raises:
            BaseException: If unpickling them raises.
        """
        if not self.packed_details:
            return None
        load = pickle.loads if _runner is None else _runner.serializer.load_details
        return load(self.packed_details)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger ``asyncpool.job``, whose records have ``job_id`` and ``attempt``.

        That also holds for threads that the job has started.
        """
        import logging  # noqa: PLC0415 - many jobs log nothing

        names = {"job_id": self.id, "attempt": self.attempt}
        return logging.LoggerAdapter(logging.getLogger(JOB_LOGGER), names)


# The job number of calls that are no jobs of the pool, such as an initializer.
NO_JOB = 0

# The job's number, its attempt and its context; when it began, or 0.0 if nothing needs that; and its
# function.  That is one which a module has, or bytes until it is unpickled, or a name: this may
# outlive the job, and must not keep what belongs to the job.  Most jobs never call current_job(), so
# the CurrentJob is made only when one does.
Running = tuple[int, int, JobContext, float, object]
current: ContextVar[Running | None] = ContextVar("asyncpool_job", default=None)


def current_job() -> CurrentJob:
    """Return the job that this code runs in.

    Raises:
        RuntimeError: If it does not run in a job of a pool.
    """
    job = current.get()
    if job is None:
        raise RuntimeError("current_job() was called outside a job of a pool")
    number, attempt, context, began, _ = job
    end, name = context.end(began), name_in(job)
    slot = 0 if _runner is None else _runner.control.identity.rank
    return CurrentJob(number, attempt, end, context.details, name, slot)


def name_in(job: Running) -> str:
    """Return the name of the function that *job* calls; empty until that is unpickled."""
    function = job[4]
    if function is None or type(function) is bytes:
        return ""
    return function if type(function) is str else function_name(function)  # type: ignore[arg-type]


def name_function(function: Callable[..., Any]) -> None:
    """Let *function* be what the running job calls."""
    job = current.get()
    if job is not None:
        current.set((*job[:4], function_name(function)))


def in_worker() -> bool:
    """Tell whether this process is a worker, of a pool or a cluster, or a fork of one.

    The launcher is no worker, although it imports the preloaded modules and a script with a
    guard.
    """
    return _runner is not None


def worker_state() -> SimpleNamespace:
    """Return the namespace of this worker, for the initializer to fill and jobs to read.

    Each worker process has one.  It is empty at first, and ends with the process.

    Raises:
        RuntimeError: If this process is no worker of a pool.
    """
    if _runner is None:
        raise RuntimeError("worker_state() was called outside a worker of a pool")
    return _runner.state


def retire_worker() -> None:
    """Make the running job the last one of its worker.

    Call it when the process can no longer be trusted: a C library has corrupt state, or a
    device is lost.  Jobs that wait in this worker go to other workers, and the pool starts
    another worker at once.  Further calls change nothing.

    Raises:
        RuntimeError: If the caller is no job of a pool, or is an earlier broadcast that a
            new worker runs: every new worker would end before its first job.
    """
    job = current.get()
    if job is not None and job[0] == NO_JOB:
        raise RuntimeError(
            "retire_worker() was called in a broadcast that a new worker makes up for; "
            "for fresh workers, await the roll() of the pool"
        )
    if job is None or _runner is None:
        raise RuntimeError("retire_worker() was called outside a job of a pool")
    _runner.retire()


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
    if _runner is None:
        raise RuntimeError("heartbeat() was called outside a job of a pool")
    _runner.endings.check(_find(_runner)[1].sequence)
    packed = _runner.no_details
    try:
        if details is not None:
            packed = _runner.serializer.pack_details(details)
    except Exception as error:
        about = DETAILS._replace(name=type(details).__qualname__)
        raise unpicklable(error, about) from error
    if len(packed) > MAX_DETAILS:
        raise ValueError(
            f"the details of a heartbeat have {len(packed)} bytes when pickled, and "
            f"{MAX_DETAILS} is the most: say how far the job is, and put its results "
            "elsewhere, for example into a file"
        )
    if not _runner.is_forked_by_job:
        with _runner.heartbeat_lock:
            _write(_runner, packed)


def _write(runner: JobRunner, details: bytes) -> None:
    # Here, and not in the runner: its calls would seem to be the outermost ones of the job, in a
    # stack that is written in the middle of this.
    job, lane = _find(runner)
    if job[0] == NO_JOB:
        return
    now = monotonic()
    lane.beats += 1
    record = Beat(lane.beats, *job, now, details).pack()
    start = runner.layout.beats_offset(lane.index) + beat_offset(lane.beats)
    # In one step, between two bytecodes.
    runner.page[start : start + len(record)] = record
    first = lane.last_beat is None or lane.last_beat[0] != job
    lane.last_beat = job, record
    if first or now - runner.noticed_at >= BEAT_INTERVAL:
        runner.noticed_at = now
        runner.control.notify()


def _find(runner: JobRunner) -> tuple[tuple[int, int], Lane]:
    """Return the job that the caller belongs to, and its lane.

    A thread that a job has started may have no context, or may have outlived its job.
    """
    mine, lanes = current.get(), runner.by_job
    job = mine[:2] if mine is not None else runner.only_running
    lane = None if job is None else lanes.get(job)
    if job is not None and lane is not None:
        return job, lane
    if not lanes:
        raise RuntimeError("heartbeat() was called when no job was running")
    if job is not None:
        raise RuntimeError(f"heartbeat() was called for job {job[0]}, which is over")
    raise RuntimeError(
        "heartbeat() was called in a thread that does not know its job, and "
        "several jobs are running: run it in a copy of the job's context"
    )


# Functions that a worker calls, and that call the user's function.


def call_chunk(
    function: Callable[..., Any], chunk: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Call *function* once for each tuple of arguments."""
    name_function(function)
    return [function(*args) for args in chunk]


def call_packed(payload: bytes) -> Any:
    """Unpickle the call in *payload*, and make it."""
    function, args, kwargs = load_job(payload)
    name_function(function)
    return function(*args, **kwargs)


def run_chunk(*args: Any, **kwargs: Any) -> Any:
    """Call a function for each item of a chunk; see :func:`call_items` in ``runner.py``."""
    assert _runner is not None
    return _runner.run_chunk(*args, **kwargs)
