"""Where a pool gets its workers from: a launcher process, which several pools may share.

Pools of one loop share a launcher if their workers inherit the same: the preloaded modules,
the script or none, the module path, the environment, the directory, the user and the groups,
the niceness and the limits; on Linux also the CPUs, the umask and the ignored signals.  The
first pool starts the launcher, which takes about 60 ms.  The last pool ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from asyncpool._core.main import main_module
from asyncpool._core.policies.starting import BEFORE_IMPORTS, SCRIPT
from asyncpool._core.wire.messages import LauncherConfig, Variables
from asyncpool._runtime.base.machine import (
    folder_at,
    module_path,
    umask_and_ignored,
    usable_cores,
    working_folder,
)
from asyncpool._runtime.launcher.interpreter import worker_command
from asyncpool._runtime.launcher.launcher_process import (
    LauncherProcess,
    LaunchError,
    Process,
)
from asyncpool._runtime.preparation.script import main_script

if TYPE_CHECKING:  # few pools have a sandbox
    from asyncpool._runtime.sandbox.confinement import Confinement

# The references are weak: if a loop is dropped with its pools, their launchers go with it.
_processes: WeakValueDictionary[tuple[object, ...], LauncherProcess] = (
    WeakValueDictionary()
)

# Modules with threads that a fork loses, for launchers that inherit the same: the next one need
# not find that out.
_known: dict[tuple[object, ...], set[str]] = {}
_MOST_KNOWN = 64

# Seconds in which a script may be over, so that the pool need not prepare for later workers.
_SHORT_LIFE = 1.0

# Seconds until the pool tries again to start a launcher for later workers.
_AGAIN = 10.0

# Seconds without an answer after which a launcher that others share counts as hung.
_SILENCE = 5.0


class Launcher:
    """Starts the workers of one pool.

    Args:
        loop: The pool's loop.
        fork: Whether workers are forked, or are fresh interpreters.
        preload: Modules that the launcher imports before it forks.
        confinement: The sandbox of the workers, if they have one.
        variables: Environment variables that the launcher and all workers have, beside those of
            this process.
        imports: Whether the launcher may import the script for its workers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        fork: bool,
        preload: tuple[str, ...],
        confinement: Confinement | None = None,
        variables: Variables = (),
        imports: bool = True,
    ) -> None:
        self._loop = loop
        # If the pool has not sent anything of the script yet, it may never do so.
        imports = imports and fork
        script = main_script() if imports and main_module.is_in_use() else None
        command = worker_command()
        path = working_folder()
        folder = path, folder_at(path)
        self._config = LauncherConfig(
            module_path(), fork, preload, command, script, folder=folder
        )
        if confinement is not None:
            first = imports and confinement.script_first
            self._config = self._config._replace(
                namespaces=confinement.plan.namespaces,
                env=confinement.plan.env,
                script=confinement.script if first else None,
            )
        elif variables:
            both = {**os.environ, **dict(variables)}
            self._config = self._config._replace(env=tuple(both.items()))
        self._process: LauncherProcess | None = None
        self._others: list[LauncherProcess] = []
        self._later: asyncio.TimerHandle | None = None
        if imports and script is None and confinement is None:
            main_module.listen(self._on_use)

    @property
    def shared(self) -> str:
        """What memory the workers share with each other, for people."""
        return "" if self._process is None else self._process.shared

    async def launch(self, fds: list[int], variables: Variables = ()) -> Process:
        """Start a worker on *fds* and return its process.

        Args:
            fds: Its descriptors.
            variables: Environment variables that it alone has.  Only a fresh interpreter starts
                with them.  A forked worker sets them when it learns who it is.

        Raises:
            LaunchError: If it cannot be started.
            OSError: If this process lacks the means to ask.

        Cancellation:
            Safe: a worker that was on its way ends when its channels close.
        """
        folder = self._config.folder
        if (leads := folder_at(folder[0])) not in {None, folder[1]}:  # to a new release
            self._config = self._config._replace(folder=(folder[0], leads))
            if self._process is not None:
                self._others.append(self._process)  # it has workers to look after
                self._process = None
        if self._process is None or self._process.lost:
            self._process = self._find(self._config)
            self._config = self._process.config
        try:
            return await self._process.launch(fds, variables)
        except LaunchError as error:
            if not error.again:
                raise
            return await self.launch(fds, variables)

    async def on_start_timeout(self, error: LaunchError) -> LaunchError:
        """Kill the launcher, since a start took too long; but not one that serves other pools.

        This pool may just have a short ``start_timeout``, or the machine may be busy for a moment.

        Returns:
            What it does instead, if that is known; else *error*.
        """
        process = self._process
        if process is None:
            return error
        asked_at, now = process.asked_at, self._loop.time()
        hangs = asked_at is not None and now - asked_at >= _SILENCE
        return await process.abort_late() if process.users == 1 or hangs else error

    async def close(self) -> None:
        """Wait until nothing is left of this pool's workers, nor of a launcher that it alone uses.

        Cancellation:
            Processes may be left when this returns.
        """
        main_module.forget(self._on_use)
        if self._later is not None:
            self._later.cancel()
        process, self._process = self._process, None
        if process is not None:
            self._others.append(process)
        while self._others:
            process = self._others.pop()
            process.users -= 1
            if process.users and not process.lost:
                await process.sweep()
            else:
                await process.close()

    def _find(self, config: LauncherConfig) -> LauncherProcess:
        inherited = _inheritance()
        sandboxed = config.namespaces is not None
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        # In a sandbox workers share what has threads, too; but not a script that fails.
        known = _known.setdefault((sandboxed, config.env, inherited), set())
        config = _without(config, known)
        key = (id(self._loop), config, inherited)
        process = _processes.get(key)
        if process is None or process.lost or not process.users:
            process = _processes[key] = LauncherProcess(self._loop, config, known)
        process.users += 1
        return process

    def _on_use(self) -> None:
        """Prepare for workers that need the script.  Any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._prepare_soon)

    def _prepare_soon(self) -> None:
        if self._process is None:
            # No launcher has started yet: the first one imports the script before it forks.
            self._config = self._config._replace(script=main_script())
        elif self._later is None:
            self._later = self._loop.call_later(_SHORT_LIFE, self._prepare)

    def _prepare(self) -> None:
        """Start a launcher that imports the script, for later workers.

        The present launcher has workers to look after.  And if the script left threads
        running there, the launcher could not fork any more.
        """
        if not self._config.fork:  # what would be imported first has threads
            return
        config = self._config._replace(script=main_script())
        try:
            coming = self._find(config)
        except (LaunchError, OSError):
            # Descriptors or processes may be scarce just now.  Until then each worker imports it.
            self._later = self._loop.call_later(_AGAIN, self._prepare)
            return
        if coming is self._process:  # the script is left to the workers
            coming.users -= 1
            return
        self._others.append(coming)
        coming.ready.add_done_callback(
            lambda ready: self._change(coming, config, ready)
        )

    def _change(
        self,
        coming: LauncherProcess,
        config: LauncherConfig,
        ready: asyncio.Future[None],
    ) -> None:
        before = self._process
        if ready.exception() is not None:
            coming.abort()
        elif before is not None and not before.lost:
            self._others.remove(coming)
            self._others.append(before)
            self._process, self._config = coming, config


def _without(config: LauncherConfig, left: Collection[str]) -> LauncherConfig:
    """Return *config* for workers that import these modules themselves."""
    if BEFORE_IMPORTS in left:
        return config._replace(fork=False, preload=(), script=None)
    return config._replace(
        preload=tuple(name for name in config.preload if name not in left),
        script=None if SCRIPT in left else config.script,
    )


def _inheritance() -> tuple[object, ...]:
    """Return all that a child process inherits from this one, and its own children too."""
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return (
        tuple(os.environ.items()),
        (os.getuid(), os.geteuid(), os.getgid(), os.getegid(), *os.getgroups()),
        umask_and_ignored(),
        _unless_refused(os.getpriority, os.PRIO_PROCESS, 0),
        frozenset(usable_cores()),
        *(_unless_refused(resource.getrlimit, getattr(resource, it)) for it in limits),
    )


def _unless_refused(ask: Callable[..., object], *about: int) -> object:
    """Return an answer, or nothing if a sandbox refuses it; then all pools have the same."""
    try:
        return ask(*about)
    except OSError:
        return None
