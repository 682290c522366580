"""The results of :meth:`asyncpool.ProcessPoolExecutor.map`, in order."""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


def chunks_of(calls: Iterator[T], size: int) -> Iterator[tuple[list[T]]]:
    """Yield *size* of *calls* after the other, each as the only argument of a call."""
    while chunk := list(itertools.islice(calls, size)):
        yield (chunk,)


def flatten(chunks: Iterator[list[T]]) -> Iterator[T]:
    """Yield what is in *chunks*, and keep nothing of what was yielded."""
    for chunk in chunks:
        chunk.reverse()
        while chunk:
            yield chunk.pop()


def results_of(
    executor: Executor,
    function: Callable[..., T],
    calls: Iterator[tuple[Any, ...]],
    timeout: float | None,
    buffersize: int | None,
) -> Iterator[T]:
    """Submit *calls* now, or *buffersize* of them; return an iterator over the results."""
    end = None if timeout is None else time.monotonic() + timeout
    futures: deque[Future[T]] = deque()
    try:
        for args in itertools.islice(calls, buffersize):
            futures.append(executor.submit(function, *args))
    except BaseException:  # an iterable's, too
        _cancel(futures)
        raise
    # Nobody else may have the executor, and then it should go.
    found = weakref.ref(executor)

    def more() -> None:
        owner = found()
        if buffersize is None or owner is None:
            return
        for args in itertools.islice(calls, 1):
            futures.append(owner.submit(function, *args))

    return _in_turn(futures, more, end)


def _in_turn(
    futures: deque[Future[T]], more: Callable[[], None], end: float | None
) -> Iterator[T]:
    # What the caller has got is kept by nobody here, while it works on it.
    try:
        while futures:
            result = [_result_of(futures.popleft(), end)]
            more()
            yield result.pop()
    finally:
        _cancel(futures)


def _result_of(future: Future[T], end: float | None) -> T:
    try:
        return future.result(None if end is None else end - time.monotonic())
    finally:
        future.cancel()
        del future  # its exception has a traceback that has this frame


def _cancel(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        future.cancel()
