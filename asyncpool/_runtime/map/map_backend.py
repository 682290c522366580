"""What a map needs of its pool, local or remote."""

from __future__ import annotations

from typing import Any, Protocol

from asyncpool._runtime.state.draining import MapHold


class Room(Protocol):
    """What a map needs of its pool's ``Admission``."""

    async def room(self) -> None:
        """Wait until the queue, which was full, is empty; or until the pool is closed."""


class Holds(Protocol):
    """What a map needs of its pool's ``Draining``."""

    def hold(self, hold: MapHold, /) -> None:
        """Keep the pool open: while it drains, it takes jobs with this *hold*."""


class MapBackend(Protocol):
    """What a map needs of its pool."""

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        ...

    @property
    def concurrency(self) -> int:
        """How many jobs each worker runs at once."""
        ...

    @property
    def counts_jobs(self) -> bool:
        """Whether a worker begins a limited number of jobs (``max_jobs``)."""
        ...

    @property
    def fresh(self) -> bool:
        """Whether each job has a new worker."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether workers belong to another program, which does not tell how long jobs take."""
        ...

    @property
    def max_payload(self) -> int:
        """The most bytes of a result."""
        ...

    @property
    def admission(self) -> Room:
        """The pool's admission, which knows when the queue has room."""
        ...

    @property
    def draining(self) -> Holds:
        """The pool's holds, which keep it open."""
        ...

    def are_stored(self, items: list[Any], *, star: bool) -> bool:
        """Tell whether an engine, and not the pool, brings arguments of *items*."""
        ...

    def check_home(self) -> None:
        """Check that this is the pool's event loop."""
        ...
