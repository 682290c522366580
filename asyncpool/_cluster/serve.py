"""The life of a worker that serves: it imports its target, runs it, drains and leaves."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from functools import partial
from itertools import islice

from asyncpool._cluster.server_worker import DrainTime, ServerWorker
from asyncpool._cluster.worker import Worker
from asyncpool._wire import log_records as say
from asyncpool._wire.messages import COROUTINE
from asyncpool._wire.records import import_named
from asyncpool._worker.channels import Control, own_logger, print_error
from asyncpool._worker.stacks import line_of

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from asyncpool._worker.runner import JobRunner

    Target = Callable[[Worker], Awaitable[object]]

# What the service manager tells the master.  A program that a worker starts would take it for
# itself.
_MASTERS = (
    *("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"),
    *("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"),
)

# The most tasks that are shown, the most calls of each, and the most characters in all.
_MOST_TASKS = 100
_DEEPEST = 20
_LONGEST = 16_384

# Seconds in which code that is cancelled at the end of its time may clean up.  The pool ends the
# process after a second, so it is less.
_CLEAN_UP = 0.5


def serve(runner: JobRunner) -> int:
    """Be a worker of a cluster until it is drained.

    Args:
        runner: Has the event loop, and a configuration with the pickled ``(target, spread,
            drain_timeouts, slot, generation, broadcasts)``.  Its job channel becomes the link.

    Returns:
        The status to leave with: 1 if an exception was not caught.

    Raises:
        BaseException: What has kept it from becoming ready; the pool was told.
    """
    config, control = runner.config, runner.control
    assert config.main is not None
    for name in _MASTERS:
        os.environ.pop(name, None)
    target, spread, drain_timeouts, *who, broadcasts = pickle.loads(config.main[1])
    life = None
    try:
        function = _load(target)
        life = _Life(control, function, drain_timeouts, broadcasts)
        return runner.run(  # type: ignore[no-any-return]
            life.run(control.job_socket, config.max_payload, spread, *who)
        )
    except BaseException as error:
        control.report_failure("serve", error)
        if life is not None and life.was_ready:  # else it is a failed start
            print_error(error)
        raise


def find_object(name: str) -> Any:
    """Import the object that ``package.module:object`` names.

    Raises:
        ValueError: If *name* does not have that form.
        AttributeError: If the module has no such object.
        Exception: Whatever the module raises when it is imported.
    """
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise ValueError(
            f"{name!r} does not name an object: write package.module:object"
        )
    return import_named(name)


def _load(target: bytes | str) -> Target:
    found = find_object(target) if isinstance(target, str) else pickle.loads(target)
    if not callable(found):
        raise TypeError(f"{target!r} is not a function, but {type(found).__name__}")
    return found  # type: ignore[no-any-return]


class _Life:
    """Runs the target; then waits until what the target serves is done.

    Args:
        control: The control channel.
        target: What serves.
        drain_timeouts: How many seconds draining may take: if the cluster ends, and if others
            go on serving.
        broadcasts: The pickled messages for every worker that were sent before this one came.

    Attributes:
        was_ready: Whether the target has said that it is ready, at the latest when it ended.
    """

    def __init__(
        self,
        control: Control,
        target: Target,
        drain_timeouts: tuple[float, float],
        broadcasts: tuple[bytes, ...],
    ) -> None:
        self._control = control
        self._target = target
        self._drain_timeouts = drain_timeouts
        self._broadcasts = broadcasts
        self._error: BaseException | None = None
        self._thread_died = self._is_over = self.was_ready = False

    async def run(
        self,
        jobs: socket.socket,
        max_payload: int,
        spread: str,
        slot: int,
        generation: int,
    ) -> int:
        """Run everything, and return the status to leave with."""
        self._loop = asyncio.get_running_loop()
        self._control.runner.tell = partial(_task_stacks, self._loop)
        time = DrainTime(*self._drain_timeouts)
        server_worker = self._server_worker = ServerWorker(
            jobs,
            self._control,
            accepts=spread != "handoff",
            max_payload=max_payload,
            time=time,
        )
        server_worker.queues.begin_with(self._broadcasts)
        self._control.on_thread_death = self._mourn
        self._control.on_end_of_all = time.cluster_ends
        try:
            await server_worker.until_listening()
            worker = Worker(slot, generation, server_worker)
            await self._serve(worker)
            unasked = self._error is None and not server_worker.draining.is_set()
            server_worker.drain()
            server_worker.refuse_rest()
            if not unasked:  # more connections may come, and others can serve them
                await time.bound(server_worker.ended.wait())
            await time.bound(server_worker.idle.wait())
            if server_worker.load.open and not self._is_over:
                self._tell_of_end()
            await time.bound(server_worker.link.until_read())
        finally:
            self.was_ready = server_worker.is_ready
            self._control.on_thread_death = self._control.on_end_of_all = None
            server_worker.close()
        if server_worker.error is not None:
            raise server_worker.error
        return 1 if self._error is not None or self._thread_died else 0

    async def _serve(self, worker: Worker) -> None:
        """Run the target to its end, or to the end of its time."""
        server_worker = self._server_worker
        task = self._loop.create_task(self._call(worker), name="asyncpool server")
        drains = self._loop.create_task(
            server_worker.draining.wait(), name="asyncpool drain"
        )
        await asyncio.wait({task, drains}, return_when=asyncio.FIRST_COMPLETED)
        drains.cancel()
        if server_worker.error is not None:
            raise server_worker.error  # there is no pool to drain for
        if not task.done():
            await server_worker.time.bound(asyncio.wait({task}))
        if not task.done():
            self._tell_of_end()
            self._is_over = True
            task.cancel()
            await asyncio.wait({task}, timeout=_CLEAN_UP)
        elif self._error is not None:
            if not server_worker.is_ready:
                raise self._error
            print_error(self._error)
            self._control.report_failure("serve", self._error)
        elif not server_worker.is_ready and not server_worker.draining.is_set():
            raise RuntimeError("serve() returned before it was ready")

    async def _call(self, worker: Worker) -> None:
        # SystemExit or KeyboardInterrupt would end the loop, if it left the task.
        try:
            await self._target(worker)
        except BaseException as error:
            if not self._is_over:
                self._error = error

    def _tell_of_end(self) -> None:
        """Log what is cut off now, at the end of the time."""
        load, limit = self._server_worker.load, self._server_worker.time.applied
        extra: dict[str, object] = {"limit": limit.name, "seconds": limit.seconds}
        if not load.open:
            say.SERVE_CANCELLED.log(own_logger(), extra)
            return
        who = load.tell_who()
        extra |= {"open": load.open, "opened": load.opened}
        say.CONNECTIONS_CUT_OFF.log(own_logger(), extra, who=f": {who}" if who else "")
        load.cut_off()

    def _mourn(self) -> None:
        self._thread_died = True
        self._loop.call_soon_threadsafe(self._server_worker.drain)


def _task_stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Return where the tasks of *loop* wait; another thread calls this."""
    lines = [COROUTINE]
    for task in islice(asyncio.all_tasks(loop), _MOST_TASKS):
        lines.append(f"  task {task.get_name()!r}:")
        stack = task.get_stack(limit=_DEEPEST)
        lines += [f"  {line_of(frame)}" for frame in stack[::-1]]
    text = "\n".join(lines)
    return text[:_LONGEST]
