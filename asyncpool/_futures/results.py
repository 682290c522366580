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
    """Yield lists of *size* calls, each as the only argument of a call."""
    while chunk := list(itertools.islice(calls, size)):
        yield (chunk,)


def flatten(chunks: Iterator[list[T]]) -> Iterator[T]:
    """Yield the items of *chunks*, and keep no reference to what was yielded."""
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
    except BaseException:  # even one that an iterable has raised
        _cancel(futures)
        raise
    # A weak reference: if nobody else has the executor, it can be collected.
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
    # No reference to a result is kept here while the caller works on it.
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
        del future  # else its exception, its traceback and this frame would be a cycle


def _cancel(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        future.cancel()
