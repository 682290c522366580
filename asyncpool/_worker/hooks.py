"""What the pool's hook does around each job: ``Pool(around=…)``.

The hook is entered and left in one context, which is the job's own, or that of one item of a
map.  So it may set context variables and reset them.  An error of the hook is the outcome of
its job.
"""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from types import CoroutineType

from asyncpool._wire.pickling import describe, users_traceback
from asyncpool._wire.records import import_named
from asyncpool._worker.api import current_job
from asyncpool.errors import HookError, JobCancelled

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    Leave = Callable[[BaseException | None], None]


def load_hook(name: str, payload: bytes) -> Callable[[], Leave]:
    """Load the hook that the pool has sent, or import it by its name.

    Returns:
        A function that enters the hook for the running job, and returns one that leaves it.
        What leaves it gets what the job has raised.  Further calls do nothing.
        If both have raised, the caller gets the job's error, with a note about the hook's.
        If only the hook fails, both functions raise ``HookError``; and ``JobCancelled`` if the
        job is to end.

    Raises:
        BaseException: If there is no such hook, or importing it raises.
    """
    function = pickle.loads(payload) if payload else import_named(name)
    if not callable(function):
        raise TypeError(f"{name} is no function: {function!r}")

    def enter() -> Leave:
        job, worker = current_job(), os.getpid()

        def failure(stage: Literal["enter", "exit"], error: BaseException) -> HookError:
            error.__traceback__ = users_traceback(error)
            return HookError(
                name,
                stage=stage,
                exception=error,
                job_id=job.id,
                attempt=job.attempt,
                function=job.function,
            )

        manager: Any
        try:
            manager = function(job)
            _check(manager)
            manager.__enter__()
        except JobCancelled:
            raise
        except BaseException as error:
            raise failure("enter", error) from error

        def leave(error: BaseException | None) -> None:
            nonlocal manager
            leaving, manager = manager, None
            if leaving is None:
                return
            if os.getpid() != worker:
                os._exit(0)  # a copy that the job made, back from the job's call
            try:
                if error is None:
                    leaving.__exit__(None, None, None)
                else:
                    # What it returns does not count: a job that failed has no result.
                    leaving.__exit__(type(error), error, error.__traceback__)
            except JobCancelled:
                raise
            except BaseException as own:
                if error is None:
                    raise failure("exit", own) from own
                if own is not error:
                    with suppress(Exception):  # its __notes__ may be anything
                        error.add_note(f"The hook {name} failed too: {describe(own)}")

        return leave

    return enter


def _check(manager: Any) -> None:
    if hasattr(manager, "__enter__") and hasattr(manager, "__exit__"):
        return
    if type(manager) is CoroutineType:
        manager.close()  # or Python would warn that nothing has awaited it
    raise TypeError(f"it returned {manager!r}, which is no context manager")
