"""What the pool's hook does around each job: ``Pool(around=…)``.

The hook is entered and left in one context, which is the job's own, or that of one item of a
map.  So it may set context variables and reset them.  An error of the hook is the outcome of
its job.
"""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from contextvars import copy_context
from types import CoroutineType

from asyncpool._wire.pickling import describe
from asyncpool._wire.records import import_named
from asyncpool._worker.api import current_job
from asyncpool._worker.coroutines import InContext, Pause
from asyncpool.errors import HookError, JobCancelled

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager
    from contextvars import Context
    from typing import Any, Literal

    from asyncpool._worker.api import CurrentJob


def load_hook(name: str, payload: bytes) -> Hook:
    """Return the hook that the pool has sent, or that is to be imported by its name.

    Raises:
        BaseException: If there is no such hook, or importing it raises.
    """
    function = pickle.loads(payload) if payload else import_named(name)
    if not callable(function):
        raise TypeError(f"{name} is no function: {function!r}")
    return Hook(name, function)


class Hook:
    """The hook of one worker.

    Args:
        name: What errors call it.
        function: Returns what is entered around a job.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function

    def enter(self) -> Entered:
        """Enter the hook for the running job.

        Raises:
            HookError: If the hook fails.
            JobCancelled: If the job is to end.
        """
        job = current_job()
        try:
            manager = self._function(job)
            _check(manager)
            manager.__enter__()
        except JobCancelled:
            raise
        except BaseException as error:
            raise self.failure(job, "enter", error) from error
        return Entered(self, job, manager)

    def around_items(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls *function* for one item of a map, inside the hook."""

        def call(*args: Any) -> Any:
            # A coroutine goes on elsewhere, and the hook exits where it has entered.
            context = copy_context()
            return context.run(self._call_item, context, function, args)

        return call

    def _call_item(
        self, context: Context, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        entered = self.enter()
        try:
            value = function(*args)
            if type(value) is CoroutineType:
                goes_on = _go_on(context, entered, value)
                goes_on.send(None)
                return goes_on
            entered.leave(None)
        except BaseException as error:
            entered.leave(error)
            raise
        return value

    def failure(
        self, job: CurrentJob, stage: Literal["enter", "exit"], error: BaseException
    ) -> HookError:
        """Return the error for the caller of *job*."""
        tb = error.__traceback__
        error.__traceback__ = tb and tb.tb_next  # the first frame is ours
        return HookError(
            self.name,
            stage=stage,
            exception=error,
            job_id=job.id,
            attempt=job.attempt,
            function=job.function,
        )


class Entered:
    """A hook that was entered for a job.

    Args:
        hook: The hook.
        job: The job.
        manager: What was entered.
    """

    def __init__(
        self, hook: Hook, job: CurrentJob, manager: AbstractContextManager[Any]
    ) -> None:
        self._hook = hook
        self._job = job
        self._manager: AbstractContextManager[Any] | None = manager
        self._worker = os.getpid()

    def leave(self, error: BaseException | None) -> None:
        """Exit, with what the job has raised.  Further calls do nothing.

        If both have raised, the caller gets the job's error, with a note about the hook's.

        Raises:
            HookError: If only the hook fails.
            JobCancelled: If the job is to end.
        """
        manager, self._manager = self._manager, None
        if manager is None:
            return
        if os.getpid() != self._worker:
            os._exit(0)  # a copy that the job made, back from the job's call
        try:
            if error is None:
                manager.__exit__(None, None, None)
            else:
                # What it returns does not count: a job that failed has no result.
                manager.__exit__(type(error), error, error.__traceback__)
        except JobCancelled:
            raise
        except BaseException as own:
            if error is None:
                raise self._hook.failure(self._job, "exit", own) from own
            if own is not error:
                with suppress(Exception):  # its __notes__ may be anything
                    error.add_note(
                        f"The hook {self._hook.name} failed too: {describe(own)}"
                    )


async def _go_on(
    context: Context, entered: Entered, coroutine: Coroutine[Any, Any, Any]
) -> Any:
    """Run the rest of an item whose function has returned *coroutine*."""
    try:
        # The first step is taken at once, up to here.  So even what is cancelled before its
        # next step leaves the hook.
        await Pause()
        value = await InContext(coroutine, context)
        context.run(entered.leave, None)
    except BaseException as error:
        coroutine.close()
        context.run(entered.leave, error)
        raise
    return value


def _check(manager: Any) -> None:
    """Check that *manager* can be entered.

    Raises:
        TypeError: If it cannot.
    """
    if hasattr(manager, "__enter__") and hasattr(manager, "__exit__"):
        return
    if type(manager) is CoroutineType:
        manager.close()  # or Python would warn that nothing has awaited it
    raise TypeError(f"it returned {manager!r}, which is no context manager")
