"""The life of a pool or of a cluster in its log: each step is one record, with its data.

A record of a worker is made in the next iteration of the loop: handlers take as long as they like, and
a decision is being carried out here.  If the level of a record is off, nothing is made.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncpool._core import log_messages as say
from asyncpool._wire.text import users_own
from asyncpool.enums import CrashKind, TimeLimit
from asyncpool.errors import JobTimeoutError
from asyncpool.events import Crash, RollResult

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine
    from asyncpool._engine.worker import WorkerHandle
    from asyncpool._wire.log_records import LogMessage


# The logger of all that the service says itself: not above that of the lines which workers print.
LOGGER = logging.getLogger("asyncpool.pool")

Extra = Mapping[str, object]
_NOTHING: Extra = {}

# Why workers retire, for those who do not know the names of the limits.
_REASONS = {
    "roll": "a roll replaces it",
    "resize": "there are more workers than wanted",
    "max_jobs": "it has had as many jobs as it may (max_jobs)",
    "max_age": "it is as old as it may be (max_age)",
    "max_memory": "it has more memory than it may (max_memory)",
    "idle": "it has been idle for idle_timeout",
    "retire": "somebody has asked for another one",
    "session": "its session has ended",
    "retire_worker()": "its job has called retire_worker()",
}
_REASONS_OF_SERVERS = {
    **_REASONS,
    "roll": "a reload replaces it",
    "max_jobs": "it has had as many connections as it may (max_jobs)",
    "retire()": "its code has called retire()",
    "request_replacement()": "it has asked for a successor",
}
_LATE = {
    TimeLimit.TIMEOUT: "ran longer than its timeout of {:g} s",
    TimeLimit.QUEUE_TIMEOUT: "waited longer than its queue_timeout of {:g} s",
    TimeLimit.DEADLINE: "missed its deadline",
}

# What the record of a crash has from the crash itself.
_OF_CRASHES = (
    *("slot", "generation", "pid", "kind", "exit_code", "signal", "uptime"),
    *("job_id", "attempt", "function", "next_step"),
)


class NamedLog:
    """The log of one pool or cluster: its records have the name, and their texts the title.

    Args:
        pool: The name.
        title: What people call it, such as ``"pool shop"``.
    """

    def __init__(self, pool: str, title: str) -> None:
        self._pool, self._title = pool, title

    def now(self, message: LogMessage, extra: Extra = _NOTHING, **words: Any) -> None:
        """Log a step at once; *words* are in the text alone, *extra* in the record too."""
        message.log(LOGGER, {"pool": self._pool, **extra}, title=self._title, **words)


class LifeLog(NamedLog):
    """Logs the steps in the life of one pool or cluster.

    Args:
        engine: Its engine, which has a loop and a configuration.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.config.name, engine.config.title)
        self._loop, self._serves = engine.loop, engine.config.serving is not None

    def soon(self, message: LogMessage, extra: Extra = _NOTHING, **words: Any) -> None:
        """Log a step in the next iteration of the loop."""
        if LOGGER.isEnabledFor(message.level):
            self._loop.call_soon(partial(self.now, message, extra, **words))

    def of_worker(
        self,
        message: LogMessage,
        handle: WorkerHandle,
        extra: Extra = _NOTHING,
        **words: Any,
    ) -> None:
        """Log a step of a worker in the next iteration of the loop."""
        whose = {"slot": handle.slot, "generation": handle.generation}
        self.soon(message, {**whose, "pid": handle.pid, **extra}, **words)

    def resized(self, least: int, most: int, crash: Crash | None) -> None:
        """Log that the pool has the size that was asked for, or cannot have it yet."""
        size = f"{least} to {most} workers" if least < most else count_workers(most)
        extra = {"least": least, "most": most}
        where = {} if crash is None else {"slot": crash.slot}
        message = say.RESIZED if crash is None else say.RESIZE_FAILED
        self.soon(message, {**extra, **where}, size=size, trouble=crash)

    def rolled(self, result: RollResult, seconds: float) -> None:
        """Log how a roll has ended."""
        took = round(seconds, 3)
        why = {} if result.ok else {"reason": result.reason}
        extra = {"replaced": result.replaced, "filled": result.filled, "seconds": took}
        outcome = describe_roll(result, "reload" if self._serves else "roll")
        message = say.ROLLED if result.ok else say.ROLL_FAILED
        self.soon(message, {**extra, **why}, outcome=outcome)

    def worker_retiring(self, handle: WorkerHandle, reason: str) -> None:
        """Log that a worker takes no more jobs, and why."""
        call, colon, given = reason.partition(": ")
        if self._serves:
            what = "connections"
            why = f"{_REASONS_OF_SERVERS.get(call, call)}{colon}{given}"
        else:  # retire_on has a reason to give, and retire_worker() has none
            what, why = "jobs", given or _REASONS.get(call, call)
        extra = {"reason": reason}
        self.of_worker(say.WORKER_RETIRING, handle, extra, what=what, why=why)

    def exited(
        self,
        handle: WorkerHandle,
        end: Crash,
        reason: str,
        error: BaseException | None,
        killed_for: int | None,
    ) -> None:
        """Log an end of a worker that the pool wanted.

        Args:
            handle: The worker.
            end: Its end.
            reason: Why the pool wanted it.
            error: Why the job failed for which it was killed, if it has failed.
            killed_for: The number of that job, if there was one.
        """
        extra = {"signal": end.signal, "uptime": round(end.uptime, 3)}
        words: dict[str, Any] = {}
        if isinstance(error, JobTimeoutError):
            message = say.KILLED_FOR_TIMEOUT
            late = _LATE[error.limit].format(error.seconds)
            words = {"late": late, "stack": error.stack}
            extra |= {"job_id": error.job_id, "attempt": error.attempt}
            extra |= {"function": error.function, "limit": str(error.limit)}
        elif killed_for is not None:
            message = say.KILLED_FOR_CANCELLATION
            job = next((it for it in handle.cancelled if it.job_id == killed_for), None)
            attempt, function = (job.attempt, job.function) if job else (0, "?")
            extra |= {"job_id": killed_for, "attempt": attempt, "function": function}
        elif handle.late_stacks and not self._serves:  # a cluster says that itself
            message, words = say.KILLED_LATE, {"stack": end.stack}
        else:
            message, words = say.WORKER_ENDED, {"why": end.detail and f": {end.detail}"}
            extra |= {"reason": reason, "exit_code": end.exit_code}
        self.of_worker(message, handle, extra, **words)

    def crashed(self, crash: Crash, stack: str, report: str) -> None:
        """Log a crash, now: the caller is no decision.

        Args:
            crash: The crash.
            stack: The stacks of a worker that was killed since it had not ended in time.
            report: What the interpreter has said of its own fatal error.
        """
        trace = ""
        if crash.kind is CrashKind.FAILED_START:
            trace = users_own(crash.stack)
            stack = "" if stack == crash.stack else stack
        elif crash.kind is CrashKind.HUNG:
            stack = crash.stack
        extra = {name: getattr(crash, name) for name in _OF_CRASHES}
        extra |= {"kind": str(crash.kind), "next_step": str(crash.next_step)}
        extra["uptime"] = round(crash.uptime, 3)
        words = {"crash": crash, "then": crash.next_step_text}
        self.now(say.WORKER_CRASHED, extra, trace=trace, stack=stack or report, **words)


def describe_roll(result: RollResult, what: str = "reload") -> str:
    """Return what a roll has done, and what it could not do.

    Args:
        result: Its result.
        what: What the reader calls it: a roll, or a reload.
    """
    if not result.ok:
        new = count_workers(result.replaced + result.filled)
        text = f"the {what} has ended after {new}, the others are as before: "
        return text + roll_trouble(result)
    are = "is" if result.replaced == 1 else "are"
    text = f"{what}ed: {count_workers(result.replaced)} {are} new"
    if result.filled:
        text += f", {count_workers(result.filled)} came where starts had failed"
    return text


def roll_trouble(result: RollResult) -> str:
    """Return why a roll has ended early, with what has become of the new worker."""
    return f"{result.reason}{f': {result.crash}' if result.crash else ''}"


def count_workers(workers: int) -> str:
    """Return a number of workers in words."""
    return f"{workers} worker{'' if workers == 1 else 's'}"
