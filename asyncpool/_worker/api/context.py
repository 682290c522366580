"""What a job can find out about itself."""

from __future__ import annotations

import importlib
import pickle
from contextvars import ContextVar

from asyncpool._core.base.names import JOB_LOGGER, function_name
from asyncpool._core.base.records import Record
from asyncpool._core.pickling.calls import unpack_variables
from asyncpool._core.wire.messages import JobContext

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import Any

_load_details: Callable[[bytes], Any] = pickle.loads
_slot = 0


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
        return _load_details(self.packed_details) if self.packed_details else None

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

# The job's number and attempt, its context, if the context needs it, when the job began, and
# its function.  That is a function which modules have, or a name: the context may outlive the
# job, and must not keep what belongs to the job.  It is None until the function is unpickled.
# Most jobs never call current_job(), so the CurrentJob is made only when one does.
Running = tuple[int, int, JobContext, float, object]
running: ContextVar[Running | None] = ContextVar("asyncpool_job", default=None)


def load_details_by(load: Callable[[bytes], Any]) -> None:
    """Have *load* read the details of heartbeats, in this process."""
    global _load_details  # noqa: PLW0603 - there is one worker in a process
    _load_details = load


def know_slot(number: int) -> None:
    """Record the number by which jobs know this worker."""
    global _slot  # noqa: PLW0603 - there is one worker in a process
    _slot = number


def current_job() -> CurrentJob:
    """Return the job that this code runs in.

    Raises:
        RuntimeError: If it does not run in a job of a pool.
    """
    job = running.get()
    if job is None:
        raise RuntimeError("current_job() was called outside a job of a pool")
    number, attempt, context, began, function = job
    if function is None or type(function) is bytes:
        name = ""
    else:
        name = function if type(function) is str else function_name(function)  # type: ignore[arg-type]
    end = context.end(began)
    return CurrentJob(number, attempt, end, context.details, name, _slot)


def name_function(function: Callable[..., Any]) -> None:
    """Let *function* be what the running job calls."""
    job = running.get()
    if job is not None:
        running.set((*job[:4], function_name(function)))


def set_variables(packed: bytes) -> None:
    """Give context variables the values that they had for the caller of ``submit``.

    Raises:
        BaseException: If importing a variable, or unpickling its value, raises.
    """
    for name, value in unpack_variables(packed):
        module, _, attribute = name.partition(":")
        getattr(importlib.import_module(module), attribute).set(value)
