"""Semaphores that are moved into memory with a descriptor, while others use them."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncpool._wire import semaphores as _semaphores
from asyncpool._wire.posix import HANDED, Handed
from asyncpool._wire.semaphores import descriptor_of, semaphore_at
from tests.helpers.executors import FORKS
from tests.helpers.patience import PATIENCE

pytestmark = FORKS

CONTEXT = multiprocessing.get_context("fork")


@pytest.fixture
def other() -> Iterator[Callable[[Any], Any]]:
    """Return a lock's double, as a worker has it."""

    def make(lock: Any) -> Any:
        HANDED.append(os.dup(descriptor_of(lock, {})))
        semaphore = lock._semlock
        what = type(lock), semaphore.kind, semaphore.maxvalue, Handed(len(HANDED) - 1)
        return semaphore_at(*what)

    yield make
    HANDED.clear()


def test_it_keeps_what_it_is(other: Callable[[Any], Any]) -> None:
    taken = CONTEXT.Lock()
    taken.acquire()
    assert not other(taken).acquire(block=False)
    taken.release()
    recursive = CONTEXT.RLock()
    with recursive:
        double = other(recursive)
        assert not double.acquire(block=False)
    assert double.acquire()
    assert double.acquire()


@pytest.mark.parametrize("waiting", [1, 5])
def test_who_waits_for_it_gets_it(waiting: int, other: Callable[[Any], Any]) -> None:
    lock: Any = CONTEXT.Lock()
    passed = threading.Semaphore(0)
    lock.acquire()

    def wait() -> None:
        with lock:
            passed.release()

    threads = [threading.Thread(target=wait) for _ in range(waiting)]
    for thread in threads:
        thread.start()
    handle = lock._semlock.handle
    while _semaphores._counts(handle)[1] < waiting:
        pass
    double = other(lock)
    assert _semaphores._counts(handle)[1] == waiting
    double.release()
    for thread in threads:
        thread.join(PATIENCE)
        assert passed.acquire(blocking=False)
    assert _semaphores._counts(handle)[1] == 0
    assert double.acquire(block=False)


def test_threads_may_use_it_meanwhile() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            _move_while_used()
    finally:
        sys.setswitchinterval(interval)


def _move_while_used() -> None:
    lock, over, counts = CONTEXT.Lock(), threading.Event(), [0, 0, 0]
    inside: list[int] = []
    most = 1

    def use(number: int) -> None:
        nonlocal most
        while not over.is_set():
            with lock:
                inside.append(number)
                most = max(most, len(inside))
                counts[number] += 1
                inside.remove(number)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while not all(counts):
        pass
    descriptor_of(lock, {})
    before = counts[:]
    while any(count <= old for count, old in zip(counts, before, strict=True)):
        pass
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert most == 1
    assert lock.acquire(block=False)


def test_a_process_that_is_forked_later_shares_it() -> None:
    lock = CONTEXT.Lock()
    descriptor_of(lock, {})
    child = os.fork()
    if child == 0:
        os._exit(3 if lock.acquire(block=False) else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert not lock.acquire(block=False)


@pytest.mark.parametrize("place", ["/elsewhere/", None])
def test_what_is_unknown_is_left_alone_and_refused(
    place: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = CONTEXT.Lock()
    if place is None:
        monkeypatch.setattr(sys, "platform", "darwin")
    else:
        monkeypatch.setattr(_semaphores, "_PLACE", place)
    with pytest.raises(RuntimeError) as caught:
        descriptor_of(lock, {})
    assert str(caught.value) == (
        "a lock or semaphore of the context 'fork' cannot be sent from here: make the "
        "object that has it with multiprocessing.get_context('forkserver')"
    )
    assert lock.acquire(block=False)
