"""The life of a pool or of a cluster in its log: each step is one record, with its data.

A record of a worker is made in the next turn of the loop: handlers take as long as they like, and
a decision is being carried out here.  If the level of a record is off, nothing is made.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncpool._core import log_messages as say
from asyncpool._wire.text import users_own
from asyncpool.enums import CrashKind, TimeLimit
from asyncpool.errors import JobTimeoutError
from asyncpool.events import CloseSummary, Crash, RollResult

if TYPE_CHECKING:
    import asyncio

    from asyncpool._engine.options import SupervisorConfig
    from asyncpool._engine.worker import WorkerHandle
    from asyncpool._sandbox.plan import Missing
    from asyncpool._wire.log_records import LogMessage


_LOGGER = logging.getLogger("asyncpool")

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


class LifeLog:
    """Logs the steps in the life of one pool or cluster.

    Args:
        loop: Its loop.
        config: Its options.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: SupervisorConfig
    ) -> None:
        self._loop = loop
        self._pool = config.name
        self._title = config.title
        self._serves = config.serving is not None

    # The pool.

    def started(self, ready: int, workers: int, seconds: float) -> None:
        """Log that the pool takes jobs; a cluster says later where it serves."""
        if not self._serves:
            took = round(seconds, 3)
            self.now(say.POOL_STARTED, ready=ready, workers=workers, seconds=took)

    def sandbox_incomplete(self, lacks: tuple[Missing, ...]) -> None:
        """Log what this machine cannot enforce of a sandbox, once for a pool."""
        words = {"missing": "; ".join(map(str, lacks))}
        settings = ", ".join(lack.settings for lack in lacks)
        self.now(say.SANDBOX_INCOMPLETE, words, settings=settings)

    def closing(self, jobs: int, finish: str, timeout: float | None) -> None:
        """Log that the pool begins to close."""
        if not self._serves:
            limit = "" if timeout is None else f", and have {timeout:g} s"
            extra = {"jobs": jobs, "finish": finish, "timeout": timeout}
            self.now(say.POOL_CLOSING, {"limit": limit}, **extra)

    def closed(self, summary: CloseSummary) -> None:
        """Log what the close has done; a cluster counts connections, and says that itself."""
        if not self._serves:
            self.now(say.POOL_CLOSED, **asdict(summary))

    def broken(self, reason: str, retry_after: float | None) -> None:
        """Log that no worker can be started, and there is none."""
        then = "giving up"
        if retry_after is not None:
            then = f"next try in {retry_after:.2g} s"
        words = {"then": then}
        # Behind the failed starts that came before it.
        self.soon(say.POOL_BROKEN, words, reason=reason, retry_after=retry_after)

    def resized(self, least: int, most: int, crash: Crash | None) -> None:
        """Log that the pool has the size that was asked for, or cannot have it yet."""
        size = f"{least} to {most} workers" if least < most else count_workers(most)
        words = {"size": size, "trouble": crash}
        if crash is None:
            self.soon(say.RESIZED, words, least=least, most=most)
        else:
            extra = {"least": least, "most": most, "slot": crash.slot}
            self.soon(say.RESIZE_FAILED, words, **extra)

    def rolled(self, result: RollResult, seconds: float) -> None:
        """Log how a roll has ended."""
        words = {"outcome": describe_roll(result, "reload" if self._serves else "roll")}
        self.soon(
            say.ROLLED if result.ok else say.ROLL_FAILED,
            words,
            replaced=result.replaced,
            filled=result.filled,
            seconds=round(seconds, 3),
            **({} if result.ok else {"reason": result.reason}),
        )

    # Its workers.

    def worker_retiring(self, handle: WorkerHandle, reason: str) -> None:
        """Log that a worker takes no more jobs, and why."""
        call, colon, given = reason.partition(": ")
        known = _REASONS_OF_SERVERS if self._serves else _REASONS
        words = {
            "what": "connections" if self._serves else "jobs",
            "why": f"{known.get(call, call)}{colon}{given}",
        }
        self.of_worker(say.WORKER_RETIRING, handle, words, reason=reason)

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
        extra: dict[str, object] = {
            "signal": end.signal,
            "uptime": round(end.uptime, 3),
        }
        if isinstance(error, JobTimeoutError):
            message = say.KILLED_FOR_TIMEOUT
            late = _LATE[error.limit].format(error.seconds)
            words = {"late": late, "stack": error.stack}
            extra |= {"job_id": error.job_id, "attempt": error.attempt}
            extra |= {"function": error.function, "limit": str(error.limit)}
        elif killed_for is not None:
            message, words = say.KILLED_FOR_CANCELLATION, {}
            job = next((it for it in handle.cancelled if it.job_id == killed_for), None)
            attempt, function = (job.attempt, job.function) if job else (0, "?")
            extra |= {"job_id": killed_for, "attempt": attempt, "function": function}
        elif handle.late_stacks and not self._serves:  # a cluster says that itself
            message, words = say.KILLED_LATE, {"stack": end.stack}
        else:
            message, words = say.WORKER_ENDED, {"why": end.detail and f": {end.detail}"}
            extra |= {"reason": reason, "exit_code": end.exit_code}
        self.of_worker(message, handle, words, **extra)

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
        words = {"crash": crash, "then": crash.next_step_text}
        words |= {"trace": trace, "stack": stack or report}
        self.now(
            say.WORKER_CRASHED,
            words,
            slot=crash.slot,
            generation=crash.generation,
            pid=crash.pid,
            kind=str(crash.kind),
            exit_code=crash.exit_code,
            signal=crash.signal,
            uptime=round(crash.uptime, 3),
            job_id=crash.job_id,
            attempt=crash.attempt,
            function=crash.function,
            next_step=str(crash.next_step),
        )

    def of_worker(
        self,
        message: LogMessage,
        handle: WorkerHandle,
        words: dict[str, Any] | None = None,
        **extra: object,
    ) -> None:
        """Log a step of a worker; *words* are in the text alone, *extra* in the record too."""
        extra |= {"generation": handle.generation, "pid": handle.pid}
        self.soon(message, words, slot=handle.slot, **extra)

    def soon(
        self, message: LogMessage, words: dict[str, Any] | None = None, **extra: object
    ) -> None:
        """Log a step in the next turn of the loop."""
        if _LOGGER.isEnabledFor(message.level):
            self._loop.call_soon(partial(self.now, message, words, **extra))

    def now(
        self, message: LogMessage, words: dict[str, Any] | None = None, **extra: object
    ) -> None:
        """Log a step at once."""
        data = {"pool": self._pool, **extra}
        message.log(_LOGGER, data, title=self._title, **(words or {}))


def describe_roll(result: RollResult, what: str = "reload") -> str:
    """Return what a roll has done, and what it could not do.

    Args:
        result: Its result.
        what: What the reader calls it: a roll, or a reload.
    """
    if not result.ok:
        new = count_workers(result.replaced + result.filled)
        return (
            f"the {what} has ended after {new}, the others are as before: "
            f"{roll_trouble(result)}"
        )
    are = "is" if result.replaced == 1 else "are"
    done = f"{what}ed"
    text = f"{done}: {count_workers(result.replaced)} {are} new"
    if result.filled:
        text += f", {count_workers(result.filled)} came where starts had failed"
    return text


def roll_trouble(result: RollResult) -> str:
    """Return why a roll has ended early, with what has become of the new worker."""
    return f"{result.reason}{f': {result.crash}' if result.crash else ''}"


def count_workers(workers: int) -> str:
    """Return a number of workers in words."""
    return f"{workers} worker{'' if workers == 1 else 's'}"
