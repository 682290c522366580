"""What ``multiprocessing`` makes, and how two workers, one after the other, use it."""

from __future__ import annotations

import multiprocessing
import operator
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from asyncpool import worker_state
from tests.helpers import jobs
from tests.helpers.patience import PATIENCE


class Kind(NamedTuple):
    """One kind of object.

    Attributes:
        make: Makes one in a context.
        begin: What the first worker does with it, before it is killed.
        go_on: What the next one finds, which is True.
    """

    make: Callable[[Any], Any]
    begin: Callable[[Any], object]
    go_on: Callable[[Any], object]


def _put(queue: Any) -> None:
    queue.put("hello")
    assert queue._reader.poll(PATIENCE)  # or it would die with who has put it


def _take_task(queue: Any) -> bool:
    found = queue.get(timeout=PATIENCE)
    queue.task_done()
    queue.join()
    return bool(found == "hello")


def _acquire(lock: Any) -> None:
    assert lock.acquire(timeout=PATIENCE)


def _is_taken(lock: Any) -> bool:
    return not lock.acquire(block=False)


def _release(lock: Any) -> bool:
    taken = _is_taken(lock)
    lock.release()
    return taken and lock.acquire(block=False)


def _fill(array: Any) -> None:
    array[:] = [4, 5, 6]


KINDS = {
    "Queue": Kind(
        lambda c: c.Queue(), _put, lambda q: q.get(timeout=PATIENCE) == "hello"
    ),
    "SimpleQueue": Kind(
        lambda c: c.SimpleQueue(),
        operator.methodcaller("put", "hello"),
        lambda q: q.get() == "hello",
    ),
    "JoinableQueue": Kind(lambda c: c.JoinableQueue(3), _put, _take_task),
    "Lock": Kind(lambda c: c.Lock(), _acquire, _release),
    "RLock": Kind(lambda c: c.RLock(), _acquire, _is_taken),
    "Semaphore": Kind(lambda c: c.Semaphore(2), _acquire, lambda s: s.get_value() == 1),
    "BoundedSemaphore": Kind(lambda c: c.BoundedSemaphore(1), _acquire, _release),
    "Event": Kind(
        lambda c: c.Event(),
        operator.methodcaller("set"),
        operator.methodcaller("is_set"),
    ),
    "Condition": Kind(lambda c: c.Condition(), _acquire, _is_taken),
    "Barrier": Kind(
        lambda c: c.Barrier(2),
        operator.methodcaller("abort"),
        operator.attrgetter("broken"),
    ),
    "Value": Kind(
        lambda c: c.Value("i", 3),
        lambda v: setattr(v, "value", 7),
        lambda v: v.value == 7,
    ),
    "Array": Kind(
        lambda c: c.Array("i", 3), _fill, lambda array: array[:] == [4, 5, 6]
    ),
    "RawArray": Kind(
        lambda c: c.RawArray("i", 3), _fill, lambda array: array[:] == [4, 5, 6]
    ),
    "Pipe": Kind(
        lambda c: c.Pipe(duplex=False),
        lambda ends: ends[1].send("hello"),
        lambda ends: ends[0].poll(PATIENCE) and ends[0].recv() == "hello",
    ),
    "socket": Kind(
        lambda _: socket.socketpair(),
        lambda ends: ends[1].send(b"hello"),
        lambda ends: ends[0].recv(9) == b"hello",
    ),
}


def keep(things: dict[str, Any]) -> None:
    """Be the initializer."""
    worker_state().things = things


def begin() -> int:
    """Use all of them; return the worker's pid."""
    for name, thing in worker_state().things.items():
        KINDS[name].begin(thing)
    return os.getpid()


def go_on() -> dict[str, object]:
    """Go on with all of them, in the next worker."""
    things: dict[str, Any] = worker_state().things
    return {name: KINDS[name].go_on(thing) for name, thing in things.items()}


def hold(path: str) -> str:
    """Have the lock while waiting at a gate."""
    with worker_state().things["Lock"]:
        return jobs.wait_at(path)


def is_free() -> bool:
    """Tell whether somebody could have the lock."""
    lock = worker_state().things["Lock"]
    got = lock.acquire(block=False)
    if got:
        lock.release()
    return bool(got)


def answer() -> None:
    """Take what is in one queue, and put it into the other one."""
    things = worker_state().things
    things["SimpleQueue"].put([things["Queue"].get(timeout=PATIENCE)])


# With proxies of managers.


def put(nested: list[Any], item: object) -> Any:
    """Put *item* into a queue that is in a list, and return the queue."""
    [queue] = nested
    queue.put(item)
    return queue


def take() -> object:
    """Take something from the queue of the initializer."""
    return worker_state().things.get(timeout=PATIENCE)


# Who a worker is.


def identity() -> dict[str, object]:
    """Return who this process is to ``multiprocessing``."""
    this, parent = multiprocessing.current_process(), multiprocessing.parent_process()
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join(PATIENCE)
    return {
        "name": this.name,
        "daemon": this.daemon,
        "parent": parent and (parent.pid, parent.name, parent.is_alive()),
        "argv": sys.argv,
        "start method": multiprocessing.get_start_method(allow_none=True),
        "key": bytes(this.authkey),
        "child": (child.name, child.exitcode),
    }


def told() -> tuple[object, ...]:
    """Return what this process was told about itself."""
    this: Any = multiprocessing.current_process()
    parent = multiprocessing.parent_process()
    assert parent is not None
    method = multiprocessing.get_start_method(allow_none=True)
    key = bytes(this.authkey)
    number, argv = this._identity, sys.argv
    return this.name, number, parent.pid, parent.name, key, method, argv
