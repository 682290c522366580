"""What each worker in a sandbox has for itself: a private folder, and a cgroup where there may be one."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import NamedTuple

from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.sandbox.cgroups import WorkerCgroup, delegated_folder
from asyncpool._runtime.sandbox.confinement import Confinement
from asyncpool._runtime.sandbox.folders import PrivateFolders

# Workers of all pools of this process have other names.
_numbers = itertools.count(1)


class Place(NamedTuple):
    """What one worker has for itself.

    Attributes:
        name: The name of both.
        folder: Its private folder.
        cgroup: Its cgroup, if it has one.
    """

    name: str
    folder: str
    cgroup: WorkerCgroup | None

    def lacked_memory(self) -> bool:
        """Return whether the kernel has killed a process of the worker for lack of memory."""
        return self.cgroup is not None and self.cgroup.lacked_memory()


class Places:
    """Makes what workers have for themselves, and removes it when they have ended.

    Args:
        confinement: The sandbox of the pool.
        threads: Remove what jobs have left, which may be a million files.
    """

    def __init__(self, confinement: Confinement, threads: Threads) -> None:
        self._threads = threads
        self._limits = confinement.limits
        self._folders = PrivateFolders(
            confinement.plan.user, apart=confinement.plan.apart
        )
        self._parent = delegated_folder() if self._limits else None
        self._left: list[WorkerCgroup] = []

    def open(self) -> Place:
        """Return what a new worker has for itself.

        Raises:
            OSError: If it cannot be made.
        """
        name = f"{next(_numbers)}"
        folder = self._folders.make(name)
        cgroup = None
        if self._parent is not None:
            cgroup = WorkerCgroup(self._parent / f"asyncpool-{os.getpid()}-{name}")
            cgroup.limit(self._limits)
        return Place(name, folder, cgroup)

    def release(self, place: Place) -> None:
        """Remove what a worker had, which has ended; in a thread, if there is much of it."""
        # Most jobs leave nothing, and a thread would get in the way of the worker that follows.
        if place.cgroup is not None or not self._folders.remove_empty(place.name):
            self._threads.copy(self._remove, place)

    def _remove(self, place: Place) -> None:
        self._folders.remove(place.name)
        if place.cgroup is not None and not place.cgroup.remove():
            self._left.append(place.cgroup)

    async def close(self) -> None:
        """Remove what is left, once nothing is left of any worker.

        Cancellation:
            Something may be left.
        """
        threads = Threads(asyncio.get_running_loop())
        try:
            await threads.copy(self._folders.close)
            for cgroup in self._left:
                cgroup.remove()
        finally:
            await threads.close()
