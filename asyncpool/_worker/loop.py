"""The life of a worker: it sets itself up, runs jobs, and ends with the channel."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import sys
import traceback
from functools import partial
from types import CoroutineType

from asyncpool._wire import page
from asyncpool._wire.frames import FrameKind
from asyncpool._wire.messages import SCRIPT, WorkerConfig
from asyncpool._wire.page import STACKS_SIZE
from asyncpool._wire.pickling import PICKLE_WORKER, WorkerSerializer
from asyncpool._wire.posix import HANDED, socket_of
from asyncpool._worker.api import HeartbeatWriter, become_worker
from asyncpool._worker.channel import SMALL, LargeBuffers, Segments
from asyncpool._worker.chunks import run_chunk
from asyncpool._worker.control import Control
from asyncpool._worker.coroutines import Coroutines
from asyncpool._worker.identity import (
    ImportWatch,
    assume,
    install_script,
    load_script,
)
from asyncpool._worker.interrupts import Interrupts, JobClaims
from asyncpool._worker.process import Preloading, apply_bounds, set_environment, show
from asyncpool._worker.runner import JobRunner
from asyncpool._worker.stacks import Stacks

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from typing import NoReturn

    from asyncpool._worker.log_handler import RecordHandler


def work(job_fd: int, control_fd: int, page_fd: int) -> NoReturn:
    """Be a worker until the job channel ends, then leave the process.

    Args:
        job_fd: The job channel.
        control_fd: The control channel.
        page_fd: The worker page, on which the worker notes which job it has begun, the
            heartbeats of its jobs, and its stacks.  It is shared memory: a note costs no
            system call, and outlives the worker.
    """
    jobs = socket_of(job_fd)
    claims, segments = JobClaims(), Segments()
    interrupts = Interrupts()
    stacks = Stacks(page_fd, os.fstat(page_fd).st_size - STACKS_SIZE)
    control = Control(socket_of(control_fd), claims, segments, interrupts, stacks)
    coroutines = Coroutines(interrupts, stacks)
    try:
        config: WorkerConfig = pickle.loads(control.receive_config().payload)
        serializer = _serializer(config)
        buffers = LargeBuffers(jobs, segments)
        runner = JobRunner(
            config, serializer, jobs, page_fd, claims, buffers, interrupts, coroutines
        )
        control.runner = interrupts.runner = stacks.runner = runner
        beats = HeartbeatWriter(
            runner, interrupts, control.ring, serializer.pack_details
        )

        def retire() -> None:
            if not claims.closed:
                claims.closed = True
                control.send(FrameKind.RETIRE)

        identity = control.identity
        rank = 0 if identity is None else identity.rank
        become_worker(beats, retire, serializer.load_details, rank)
        page.install(partial(run_chunk, runner))
        if identity is not None:
            set_environment(identity.environment)  # before any import
            lends = config.sandbox is None and not config.codec
            assume(identity, control.borrow_tracker if lends else _nothing)
            slot = identity.number - 1
            pool = identity.name.removesuffix(f"-worker-{slot}")
            show(f"pool-worker-{slot}", f"worker {slot} of {pool}")
        name = "" if identity is None else identity.name
        handlers: list[RecordHandler] = []

        def forward_logs() -> None:
            from asyncpool._worker.log_handler import RecordHandler  # noqa: PLC0415 - with logging

            handler = RecordHandler(
                control.report, lambda: runner.running, config, name
            )
            handlers.append(handler)

        import_watch = ImportWatch("logging", forward_logs)

        def become_nobody() -> None:
            # A job forked.  The copy must not answer in the worker's place, and must
            # not keep the channels open after the worker's death.
            runner.mute = True
            jobs.close()
            control.close()
            import_watch.end()
            for handler in handlers:
                handler.leave()

        os.register_at_fork(
            after_in_child=become_nobody, after_in_parent=segments.after_fork
        )
        coroutines.kind = config.loop
        control.memory = config.memory
        _initialize(config, control, coroutines, runner)
        if config.main is not None:
            module = config.main[0]
            __import__(module)  # this imports asyncio
            serve = sys.modules[module].serve
            leave(serve(jobs, control, coroutines, config), coroutines)

        runner.serve()
        # The last job has been run: whatever else comes goes back to the pool.
        while claims.closed and jobs.recv(SMALL):
            pass
    except BaseException:
        # The pool logs an announced error itself, together with the end.
        if not control.announced:
            traceback.print_exc()
        leave(1, coroutines)
    leave(0, coroutines)


def _serializer(config: WorkerConfig) -> WorkerSerializer:
    """Return how this worker's calls and outcomes travel."""
    if not config.codec:
        return PICKLE_WORKER
    from asyncpool._worker.data import DataWorkerSerializer  # noqa: PLC0415 - most need none

    return DataWorkerSerializer(config.codec)


def _nothing() -> None:
    return None


def _initialize(
    config: WorkerConfig,
    control: Control,
    coroutines: Coroutines,
    runner: JobRunner,
) -> None:
    """Do what comes before the first job, and tell the pool that this worker is ready.

    Raises:
        BaseException: What ends the worker; the pool was told.
    """
    sys.path[:] = config.sys_path
    install_script(config.script)
    if config.sandbox is None:
        control.start()
    stage, fixed = "limits", True
    try:
        apply_bounds(config.nice, config.cpus, config.rlimits)
        preloading = Preloading()
        for name in config.preload:
            stage = f"preload of {name}"
            with preloading.step(name):
                __import__(name)
        if config.script_first:
            with preloading.step(SCRIPT):
                load_script()
        if config.sandbox is not None:
            stage = "sandbox"
            from asyncpool._sandbox.entering import enter  # noqa: PLC0415 - most are in none

            identity = control.identity
            assert identity is not None
            env = (*config.sandbox.env, *identity.environment)
            plan = config.sandbox._replace(env=env)
            channels = (runner.jobs.fileno(), control.fileno(), runner.page_fd)
            needed = (*channels, *(fd for fd in HANDED if fd is not None))
            open_loop = coroutines.loop if config.loop == "uvloop" else None
            place = identity.folder, identity.cgroup
            enter(plan, *place, needed, preloading, open_loop)
            control.start()  # its thread is in the sandbox too
        if config.around is not None:
            name, payload = config.around
            stage = f"import of the hook {name}"
            from asyncpool._worker.hooks import load_hook  # noqa: PLC0415 - most need none

            runner.hook = load_hook(name, payload)
        stage, fixed = "initializer", False
        if config.initializer is not None:
            initializer, initargs = pickle.loads(config.initializer)
            value = initializer(*initargs)
            if type(value) is CoroutineType:
                coroutines.run(value)
        for name, call in config.broadcasts:
            stage = f"broadcast of {name}"
            runner.broadcast(call)
        if config.main is None:
            stage, fixed = "check of memory", True
            control.greet()
    except BaseException as error:
        control.announce(stage, error, fixed=fixed)
        raise


def leave(status: int, coroutines: Coroutines) -> NoReturn:
    """End the event loop, and then this process, with *status*.

    It does not wait for threads that calls have left behind: otherwise a replaced worker
    would live as long as they do.  It names them on stderr if somebody may miss them.
    """
    # sys.exit() would unwind the stack, and in a forked worker its frames are the launcher's.
    with contextlib.suppress(BaseException):
        coroutines.close()
    with contextlib.suppress(BaseException):
        _tell_of_threads()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # noqa: SLF001 - there is no public way
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(status)


def _tell_of_threads() -> None:
    if "threading" not in sys.modules:
        return
    import threading  # noqa: PLC0415 - see _worker/__init__.py

    # Threads of a ThreadPoolExecutor are no daemons, but usually wait for no work.
    pools = sys.modules.get("concurrent.futures.thread")
    waiting = getattr(pools, "_threads_queues", ())
    names = sorted(
        thread.name
        for thread in threading.enumerate()
        if not (thread.daemon or thread is threading.main_thread() or thread in waiting)
    )
    if names:
        sys.stderr.write(
            "asyncpool: this worker ends, and with it the threads that its calls have"
            f" left running: {', '.join(names)}; a call should join the threads that it starts\n"
        )
