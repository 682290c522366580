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
from asyncpool._worker.runner import InContext, Pause
from asyncpool.errors import HookError, JobCancelled

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context
    from typing import Any, Literal

    Leave = Callable[[BaseException | None], None]


def load_hook(name: str, payload: bytes) -> Hook:
    """Return the hook that the pool has sent, or that is to be imported by its name.

    Raises:
        BaseException: If there is no such hook, or importing it raises.
    """
    function = pickle.loads(payload) if payload else import_named(name)
    if not callable(function):
        raise TypeError(f"{name} is no function: {function!r}")
    return Hook(name, function)


def _check(manager: Any) -> None:
    if hasattr(manager, "__enter__") and hasattr(manager, "__exit__"):
        return
    if type(manager) is CoroutineType:
        manager.close()  # or Python would warn that nothing has awaited it
    raise TypeError(f"it returned {manager!r}, which is no context manager")


class Hook:
    """The hook of one worker.

    Args:
        name: What errors call it.
        function: Returns what is entered around a job.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function

    def enter(self) -> Leave:
        """Enter the hook for the running job.

        Returns:
            A function that leaves it, with what the job has raised.  Further calls do nothing.
            If both have raised, the caller gets the job's error, with a note about the hook's.
            If only the hook fails, the function raises ``HookError``; and ``JobCancelled`` if the
            job is to end.

        Raises:
            HookError: If the hook fails.
            JobCancelled: If the job is to end.
        """
        job, worker = current_job(), os.getpid()

        def failure(stage: Literal["enter", "exit"], error: BaseException) -> HookError:
            tb = error.__traceback__
            error.__traceback__ = tb and tb.tb_next  # the first frame is ours
            return HookError(
                self._name,
                stage=stage,
                exception=error,
                job_id=job.id,
                attempt=job.attempt,
                function=job.function,
            )

        try:
            manager: Any = self._function(job)
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
                        error.add_note(
                            f"The hook {self._name} failed too: {describe(own)}"
                        )

        return leave

    def around_items(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls *function* for one item of a map, inside the hook."""

        def call_in(context: Context, args: tuple[Any, ...]) -> Any:
            leave = self.enter()
            try:
                value = function(*args)
                if type(value) is CoroutineType:
                    goes_on = _go_on(context, leave, value)
                    goes_on.send(None)
                    return goes_on
                leave(None)
            except BaseException as error:
                leave(error)
                raise
            return value

        def call(*args: Any) -> Any:
            # A coroutine goes on elsewhere, and the hook exits where it has entered.
            context = copy_context()
            return context.run(call_in, context, args)

        return call


async def _go_on(
    context: Context, leave: Leave, coroutine: Coroutine[Any, Any, Any]
) -> Any:
    """Run the rest of an item whose function has returned *coroutine*."""
    try:
        # The first step is taken at once, up to here.  So even what is cancelled before its
        # next step leaves the hook.
        await Pause()
        value = await InContext(coroutine, context)
        context.run(leave, None)
    except BaseException as error:
        coroutine.close()
        context.run(leave, error)
        raise
    return value
