"""What workers are to :mod:`multiprocessing`: children of this process."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import TYPE_CHECKING

from asyncpool._core.wire.messages import Identity, Variables

if TYPE_CHECKING:  # few pools have a sandbox
    from asyncpool._runtime.sandbox.places import Place

# Processes that have this key let each other in, so workers in a sandbox have another one.
_OTHER_KEY = os.urandom(32)

# A worker does not know that of a library which it has not imported, such as loky.
_START_METHODS = {"fork", "forkserver", "spawn"}


def identity_of(
    pool: str, slot: int, rank: int = 0, environment: Variables = ()
) -> Identity:
    """Return the identity of a worker that is started now; see :class:`Identity`.

    Its key must not be on a command line or in an environment, where others could see it.
    """
    this = multiprocessing.current_process()
    arguments: list[object] = [*sys.argv]
    method: str | None = multiprocessing.get_start_method(allow_none=True)
    return Identity(
        name=f"{pool}-worker-{slot}",
        number=slot + 1,
        parent=(os.getpid(), this.name),
        authkey=bytes(this.authkey),
        start_method=method if method in _START_METHODS else None,
        argv=tuple(text for text in arguments if isinstance(text, str)),
        rank=rank,
        environment=environment,
    )


def confined(identity: Identity, place: Place) -> Identity:
    """Return the identity of a worker in a sandbox, which is told nothing of the service."""
    return identity._replace(
        authkey=_OTHER_KEY,
        argv=("",),
        folder=place.folder,
        cgroup="" if place.cgroup is None else str(place.cgroup.folder),
    )
