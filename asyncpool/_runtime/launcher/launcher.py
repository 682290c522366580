"""Where a pool gets its workers from: a launcher's process, shared with others.

Pools of one loop share a launcher if what their workers inherit is the same: what is
preloaded, whether the script is imported, the module path, the environment, the directory,
the user and the groups, the niceness, the limits; on Linux also the CPUs, the umask and the
signals that are ignored.  The first pool starts it, which takes some 60 ms, and the last one
ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from asyncpool._core.main import main_module
from asyncpool._core.wire.messages import LauncherConfig
from asyncpool._runtime.base.machine import module_path, umask_and_ignored, usable_cores
from asyncpool._runtime.base.script import main_script
from asyncpool._runtime.launcher.interpreter import worker_command
from asyncpool._runtime.launcher.launcher_process import (
    LauncherProcess,
    LaunchError,
    ScriptError,
)
from asyncpool._runtime.launcher.process import Process

# Weak, so that a loop that is dropped with its pools takes their launchers along.
_processes: WeakValueDictionary[tuple[object, ...], LauncherProcess] = (
    WeakValueDictionary()
)


# Seconds in which a script may be at its end, and needs no other workers.
_SHORT_LIFE = 1.0

# Seconds until a launcher that could not be started for later workers is tried again.
_AGAIN = 10.0

# Seconds without an answer after which a launcher that others share counts as hung.
_SILENCE = 5.0


class Launcher:
    """Starts the workers of one pool.

    Args:
        loop: The pool's loop.
        fork: Whether workers are forked, or are fresh interpreters.
        preload: Modules that the launcher imports before it forks.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, fork: bool, preload: tuple[str, ...]
    ) -> None:
        self._loop = loop
        # Where nothing of the script has been sent yet, nothing may ever be.
        script = main_script() if fork and main_module.is_in_use() else None
        command = worker_command()
        self._config = LauncherConfig(module_path(), fork, preload, command, script)
        self._process: LauncherProcess | None = None
        self._others: list[LauncherProcess] = []
        self._later: asyncio.TimerHandle | None = None
        if fork and script is None:
            main_module.listen(self._on_use)

    async def launch(self, fds: list[int]) -> Process:
        """Start a worker on *fds* and return its process.

        Raises:
            LaunchError: If it cannot be started.
            OSError: If this process lacks the means to ask.

        Cancellation:
            Safe: a worker that was on its way ends when its channels close.
        """
        if self._process is None or self._process.lost:
            self._process = self._find(self._config)
        try:
            return await self._process.launch(fds)
        except ScriptError:
            # It cannot be imported, or not where workers are forked: let them do it.
            self._config = self._config._replace(script=None)
            return await self.launch(fds)

    def accuse(self) -> None:
        """Kill the launcher, since a start took too long; but not one that serves others.

        A pool may have a short ``start_timeout``, or a machine that is busy for a moment.
        """
        process = self._process
        if process is None:
            return
        asked_at, now = process.asked_at, self._loop.time()
        hangs = asked_at is not None and now - asked_at >= _SILENCE
        if process.users == 1 or hangs:
            process.abort()

    def drop_spare(self) -> None:
        """Let go of two descriptors, which the process that was forked ahead needs."""
        if self._process is not None:
            self._process.drop_spare()

    def abort(self) -> None:
        """Kill a launcher that does not answer; workers that run go on."""
        if self._process is not None:
            self._process.abort()

    async def close(self) -> None:
        """See to it that nothing is left of this pool's workers, nor of the launcher.

        Cancellation:
            Costs the assurance that all is gone when this returns.
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
        key = (id(self._loop), config, _inheritance())
        process = _processes.get(key)
        if process is None or process.lost or not process.users:
            process = _processes[key] = LauncherProcess(self._loop, config)
        process.users += 1
        return process

    def _on_use(self) -> None:
        """Take note, in any thread, that workers have to import the script."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._prepare_soon)

    def _prepare_soon(self) -> None:
        if self._process is None:
            # Nothing was started yet: the first launcher imports it before it forks.
            self._config = self._config._replace(script=main_script())
        elif self._later is None:
            self._later = self._loop.call_later(_SHORT_LIFE, self._prepare)

    def _prepare(self) -> None:
        """Have a launcher that has imported the script, for the workers to come.

        The one that there is has workers to look after, and could not be forked from any
        more if the script left threads.
        """
        config = self._config._replace(script=main_script())
        try:
            coming = self._find(config)
        except (LaunchError, OSError):
            # Descriptors or processes may be scarce just now; each worker imports it.
            self._later = self._loop.call_later(_AGAIN, self._prepare)
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
            before.drop_spare()
            self._others.remove(coming)
            self._others.append(before)
            self._process, self._config = coming, config


def _inheritance() -> tuple[object, ...]:
    """Return what a child inherits of this process, and its children in turn."""
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return (
        tuple(os.environ.items()),
        _directory(),
        (os.getuid(), os.geteuid(), os.getgid(), os.getegid(), *os.getgroups()),
        umask_and_ignored(),
        _unless_refused(lambda: os.getpriority(os.PRIO_PROCESS, 0)),
        frozenset(usable_cores()),
        *(_unless_refused(partial(_limit, name)) for name in limits),
    )


def _limit(name: str) -> tuple[int, int]:
    return resource.getrlimit(getattr(resource, name))


def _unless_refused(ask: Callable[[], object]) -> object:
    """Return an answer; or nothing in a sandbox, where all pools have the same one then."""
    try:
        return ask()
    except OSError:
        return None


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""
