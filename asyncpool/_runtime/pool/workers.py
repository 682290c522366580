"""The workers of a pool.  Each has a task from its start to its exit."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING

from asyncpool._runtime.channel.channel import READ_SIZE
from asyncpool._runtime.channel.segments import Segments
from asyncpool._runtime.launcher.launcher import Launcher
from asyncpool._runtime.launcher.launcher_process import LaunchError
from asyncpool._runtime.output.log_records import WorkerLogs
from asyncpool._runtime.pool.parts import Parts
from asyncpool._runtime.pool.worker_exit import WorkerExit
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool._runtime.worker.setup import WorkerSetup
from asyncpool._runtime.worker.worker_events import WorkerEvents

if TYPE_CHECKING:  # few pools have a sandbox
    from asyncpool._runtime.base.threads import Threads
    from asyncpool._runtime.sandbox.confinement import Confinement
    from asyncpool._runtime.sandbox.places import Places


class Workers:
    """Starts workers, and sees each of them to its end.

    Args:
        parts: The parts of the pool.
        listener: Hears what the workers send.
        worker_exit: Handles the end of each worker.

    Attributes:
        tasks: The tasks that the pool waits for before it ends: one for each worker, and
            others that take more than a turn of the loop.
        segments: The shared memory.
    """

    def __init__(
        self, parts: Parts, listener: WorkerEvents, worker_exit: WorkerExit
    ) -> None:
        state = self._state = parts.state
        config, loop = state.config, state.loop
        self._status = parts.status
        self._broadcasts = parts.broadcasts
        self._worker_exit = worker_exit
        self._pool = config.name
        # Not a task group of anyio's, which needs a current task: workers are also started in
        # timers and readers, where there is none.
        self.tasks = asyncio.TaskGroup()
        self.segments = Segments(loop, config.max_shared_memory, parts.threads)
        env, sandbox = config.worker_env, config.confinement
        self._launcher = Launcher(
            loop,
            fork=config.fork,
            preload=config.preload if config.launcher_imports else (),
            confinement=sandbox,
            variables=() if env is None else env.common,
            imports=config.launcher_imports,
        )
        self._places = None if sandbox is None else _places(sandbox, parts.threads)
        self._worker_logs = WorkerLogs(loop, config.name)
        self._setup = WorkerSetup(
            pool=config.name,
            launcher=self._launcher,
            listener=listener,
            handed=() if config.handover is None else config.handover.fds,
            buffer=memoryview(bytearray(READ_SIZE)),
            max_payload=config.worker.max_payload,
            untrusted=config.untrusted,
            concurrency=config.worker.concurrency,
            output=config.worker_output,
            tasks=self.tasks,
            threads=parts.threads,
            segments=self.segments,
            serving=parts.serving,
            worker_logs=self._worker_logs,
            places=self._places,
            worker_env=env,
            forked=config.fork,
            lends_tracker=config.confinement is None and config.data is None,
        )

    def start(self, slot: int, generation: int) -> None:
        """Start a worker in *slot*."""
        rank = self._state.core.slots[slot].rank
        handle = WorkerHandle(self._state.loop, slot, generation, rank, self._setup)
        self._state.handles[slot] = handle
        self._broadcasts.on_spawn(slot)
        self.tasks.create_task(
            self._run_worker(handle),
            name=f"asyncpool worker in slot {slot} of {self._pool}",
            context=contextvars.Context(),  # not that of the caller that happens to be here
        )

    async def _run_worker(self, handle: WorkerHandle) -> None:
        try:
            await handle.run()
        except OSError as error:
            handle.detail = str(error)
        except LaunchError as error:
            why = error
            if handle.killed and not self._state.core.slots[handle.slot].exit_planned:
                why = await self._launcher.on_start_timeout(error)
            handle.detail, handle.traceback = str(why), why.trace
            handle.final = why.final
        self._worker_exit.handle_exit(handle)
        self._status.check_all_ready()

    async def finish(self) -> None:
        """Wait until the ends of workers are logged, and their callbacks have returned.

        Cancellation:
            Safe: the callbacks go on.
        """
        await self._worker_exit.finish()
        await self._worker_logs.finish()

    def stop(self) -> None:
        """Close what the workers had, even of those whose end was not handled."""
        self._worker_logs.close()
        self.segments.close()
        for handle in self._state.handles.values():
            handle.page.close()

    async def close(self) -> None:
        """Wait until nothing is left of the workers, nor of a launcher that they alone used.

        Cancellation:
            Processes may be left when this returns.
        """
        await self._launcher.close()
        if self._places is not None:
            await self._places.close()


def _places(confinement: Confinement, threads: Threads) -> Places:
    from asyncpool._runtime.sandbox.places import Places  # noqa: PLC0415 - few have a sandbox

    return Places(confinement, threads)
