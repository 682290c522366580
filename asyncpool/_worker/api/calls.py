"""Functions that a worker calls, and that call the user's function."""

from __future__ import annotations

from asyncpool._core.pickling.calls import load_job
from asyncpool._worker.api.context import name_function
from asyncpool._worker.api.state import retire_worker

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_begun = 0


def call_chunk(
    function: Callable[..., Any], chunk: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Call *function* once for each tuple of arguments."""
    name_function(function)
    return [function(*args) for args in chunk]


def call_counted(
    limit: int, function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call *function*, and retire this worker after its call number *limit*.

    The pool's own limit counts outcomes, and a worker continues until its replacement is
    ready, so it may run more jobs than the limit.  This limit is exact.
    """
    global _begun  # noqa: PLW0603 - one worker is one process
    name_function(function)
    _begun += 1
    if _begun >= limit:
        retire_worker()
    return function(*args, **kwargs)


def call_packed(payload: bytes) -> Any:
    """Unpickle the call in *payload*, and make it."""
    function, args, kwargs = load_job(payload)
    name_function(function)
    return function(*args, **kwargs)
