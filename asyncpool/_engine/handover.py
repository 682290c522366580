"""Hand over to workers what each of them calls first.

Objects of :mod:`multiprocessing` can be pickled only while a process is started.  They contain
a descriptor, which must travel beside the pickle, or a key.  Every worker of a pool needs them,
even one that starts much later.  So the pool keeps its own copies of the descriptors, and keeps
the objects alive.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, cast

from asyncpool._wire.messages import MAX_HOOK, MAX_INITIALIZER
from asyncpool._wire.pickling import Subject, dumps_call, refuse, unpicklable
from asyncpool._wire.posix import Handed
from asyncpool._wire.text import function_name

if TYPE_CHECKING:
    from asyncpool._wire.pickling import Reducers


class Handover:
    """An initializer with its arguments, pickled, and the descriptors that go with it.

    Args:
        initializer: What each new worker calls first.
        initargs: Its arguments.

    Attributes:
        payload: The pickled ``(initializer, initargs)``.
        fds: The descriptors.

    Raises:
        JobNotPicklableError: If it cannot be pickled.
        ValueError: If it is too large.
        OSError: If this process may open no more descriptors.
    """

    # While the arguments are pickled, it stands for a process that is being started: the standard
    # library takes it for the ``Popen`` of that process, and asks it how an object gets there.
    DupFd = Handed

    def __init__(
        self, initializer: Callable[..., object], initargs: tuple[Any, ...]
    ) -> None:
        # Kept alive, since a named semaphore loses its name when its object goes.
        self._objects: object = initargs
        self._mappings: dict[int, str] = {}
        self.fds: list[int] = []
        before = get_spawning_popen()
        set_spawning_popen(cast(Any, self))
        try:
            self.payload = dumps_call((initializer, initargs), self._reducers)
        except Exception as error:  # noqa: BLE001 - an object's own methods
            parts = [("initializer", initializer)]
            parts += [(f"initargs[{i}]", value) for i, value in enumerate(initargs)]
            attempt = partial(dumps_call, others=self._reducers)
            refuse(error, parts, attempt, Subject("the initializer with its arguments"))
        finally:
            set_spawning_popen(before)
            self._mappings.clear()
        if len(self.payload) > MAX_INITIALIZER:
            raise ValueError(
                f"initializer and initargs have {len(self.payload)} bytes when pickled, and "
                f"{MAX_INITIALIZER} is the most, since every new worker gets them: have "
                "the initializer load large objects itself, for example from a file"
            )
        theirs, self.fds = self.fds, []
        self._close = weakref.finalize(self, _close_all, self.fds)
        for fd in theirs:
            self.fds.append(os.dup(fd))

    def close(self) -> None:
        """Close the descriptors and drop the objects: no more workers will start."""
        self._close()
        self._objects = None

    def duplicate_for_child(self, fd: int) -> int:
        """Keep a copy of a descriptor for the worker; return the number that it has there."""
        self.fds.append(fd)
        return len(self.fds) - 1

    def _reducers(self) -> Reducers:
        """Return how to reduce objects; this drops the descriptors of an earlier call."""
        self.fds.clear()
        table: Reducers = dict(ForkingPickler._extra_reducers)  # type: ignore[attr-defined] # noqa: SLF001
        synchronize = sys.modules.get("multiprocessing.synchronize")
        if synchronize is not None:
            for name in ("Lock", "RLock", "Semaphore", "BoundedSemaphore"):
                table[getattr(synchronize, name)] = self._reduce_semaphore
        return table

    def _reduce_semaphore(self, lock: Any) -> Any:
        semaphore = lock._semlock  # noqa: SLF001
        if semaphore.name is not None:
            return lock.__reduce_ex__(2)
        # Imported here, since it needs ctypes, which few pools do.
        from asyncpool._wire.semaphores import descriptor_of, semaphore_at  # noqa: PLC0415

        handed = Handed(self.duplicate_for_child(descriptor_of(lock, self._mappings)))
        return semaphore_at, (type(lock), semaphore.kind, semaphore.maxvalue, handed)


def packed_hook(around: Callable[..., object] | str) -> tuple[str, bytes]:
    """Return the hook around jobs as :class:`WorkerConfig` has it.

    Raises:
        JobNotPicklableError: If it cannot be pickled.
        ValueError: If it is too large.
    """
    if isinstance(around, str):
        return around, b""
    try:
        payload = dumps_call(around)
    except Exception as error:
        raise unpicklable(error, Subject("around")) from error
    if len(payload) > MAX_HOOK:
        raise ValueError(
            f"around has {len(payload)} bytes when pickled, and {MAX_HOOK} is the most: "
            "name a function of a module"
        )
    return function_name(around), payload


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
