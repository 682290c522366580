"""The workers of a pool, each a task from its start to its exit."""

from __future__ import annotations

import asyncio
import contextvars

from asyncpool._runtime.channel.channel import READ_SIZE
from asyncpool._runtime.channel.segments import Segments
from asyncpool._runtime.launcher.launcher import Launcher
from asyncpool._runtime.launcher.launcher_process import LaunchError
from asyncpool._runtime.pool.parts import Parts
from asyncpool._runtime.pool.worker_exit import WorkerExit
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool._runtime.worker.log_records import WorkerLogs
from asyncpool._runtime.worker.setup import WorkerSetup
from asyncpool._runtime.worker.worker_events import WorkerEvents


class Workers:
    """Starts workers, and sees each of them to its end.

    Args:
        parts: The parts of the pool.
        listener: What hears the workers.
        worker_exit: What the end of one is left to.

    Attributes:
        tasks: The tasks that the pool waits for before it ends: one for each worker, and
            what else takes more than a turn of the loop.
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
        # Not anyio's: workers are started from timers and readers too, where there
        # is no current task, which anyio needs.
        self.tasks = asyncio.TaskGroup()
        self.segments = Segments(loop, config.max_shared_memory, parts.threads)
        ahead = config.preload if config.fork else ()
        self._launcher = Launcher(loop, fork=config.fork, preload=ahead)
        self._worker_logs = WorkerLogs(loop)
        self._setup = WorkerSetup(
            pool=config.name,
            launcher=self._launcher,
            listener=listener,
            handed=() if config.handover is None else config.handover.fds,
            buffer=memoryview(bytearray(READ_SIZE)),
            max_payload=config.worker.max_payload,
            concurrency=config.worker.concurrency,
            output=config.worker_output,
            tasks=self.tasks,
            threads=parts.threads,
            segments=self.segments,
            serving=parts.serving,
            journal=self._worker_logs,
        )

    def start(self, slot: int, generation: int) -> None:
        """Start a worker in *slot*."""
        handle = WorkerHandle(self._state.loop, slot, generation, self._setup)
        self._state.handles[slot] = handle
        self._broadcasts.on_spawn(slot)
        self.tasks.create_task(
            self._tend(handle),
            name=f"slot {slot}",
            context=contextvars.Context(),  # not that of a caller whose job is in the way
        )

    async def _tend(self, handle: WorkerHandle) -> None:
        try:
            await handle.live()
        except OSError as error:
            handle.detail = str(error)
            self._launcher.drop_spare()  # descriptors may be what it lacks
        except LaunchError as error:
            handle.detail, handle.traceback = str(error), error.trace
            if handle.killed and not self._state.core.slots[handle.slot].planned:
                self._launcher.accuse()  # it has not answered for start_timeout
        self._worker_exit.handle(handle)
        self._status.update()

    async def finish(self) -> None:
        """Wait until everybody has heard of workers that are gone.

        Cancellation:
            Safe: what was called goes on.
        """
        await self._worker_exit.finish()
        await self._worker_logs.finish()

    def stop(self) -> None:
        """Let go of what the workers had, also of those that were not buried."""
        self._worker_logs.close()
        self.segments.close()
        for handle in self._state.handles.values():
            handle.page.close()

    async def close(self) -> None:
        """See to it that nothing is left of the workers, nor of the launcher.

        Cancellation:
            Costs the assurance that all is gone when this returns.
        """
        await self._launcher.close()
