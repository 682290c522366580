"""The life of a worker: it sets itself up, runs jobs, and ends with the channel."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import sys
import traceback
from types import CoroutineType

from asyncpool._wire.messages import SCRIPT, WorkerConfig
from asyncpool._wire.posix import HANDED, socket_of
from asyncpool._worker.api import become_worker
from asyncpool._worker.channel import LargeBuffers
from asyncpool._worker.control import Control
from asyncpool._worker.identity import (
    ImportWatch,
    adopt,
    install_script,
    load_script,
)
from asyncpool._worker.process import Preloading, apply_bounds, set_environment, show
from asyncpool._worker.runner import JobRunner

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from typing import Any, NoReturn


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
    buffers = LargeBuffers(jobs)
    control = Control(socket_of(control_fd), page_fd, buffers)
    runner: JobRunner | None = None
    status = 1
    try:
        config: WorkerConfig = pickle.loads(control.receive_config().payload)
        runner = JobRunner(config, jobs, page_fd, control)
        control.runner = control.stacks.runner = runner
        become_worker(runner)
        identity = control.identity
        set_environment(identity.environment)  # before any import
        named = "PYTHONBREAKPOINT" in os.environ  # a debugger that needs no terminal
        if sys.breakpointhook is sys.__breakpointhook__ and not named:
            sys.breakpointhook = _breakpoint
        lends = config.sandbox is None and not config.codec
        adopt(identity, control.borrow_tracker if lends else lambda: None)
        slot = identity.number - 1
        pool = identity.name.removesuffix(f"-worker-{slot}")
        show(f"pool-worker-{slot}", f"worker {slot} of {pool}")

        def forward_logs() -> None:
            from asyncpool._worker.log_handler import RecordHandler  # noqa: PLC0415 - with logging

            handler = RecordHandler(
                control.report, lambda: control.runner.running, config, identity.name
            )
            os.register_at_fork(
                after_in_child=handler.leave
            )  # see after_fork_in_child()

        import_watch = ImportWatch("logging", forward_logs)

        def after_fork_in_child() -> None:
            # A job forked.  The copy must not answer in the worker's place, and must
            # not keep the channels open after the worker's death.
            jobs.close()
            control.close()
            import_watch.end()

        os.register_at_fork(after_in_child=after_fork_in_child)
        control.memory = config.memory
        _initialize(config, control, runner)
        if config.main is not None:
            module = config.main[0]
            __import__(module)  # this imports asyncio
            status = sys.modules[module].serve(jobs, control, runner, config)
        else:
            runner.serve()
            status = 0
    except BaseException:
        # The pool logs an announced error itself, together with the end.
        if not control.announced:
            traceback.print_exc()
    _leave(status, runner)


def _breakpoint(*_: Any, **__: Any) -> NoReturn:
    """Refuse ``breakpoint()``."""
    raise RuntimeError(
        "breakpoint() in a worker, which has no terminal: call the function without a pool, or "
        "name a debugger in PYTHONBREAKPOINT that needs none"
    )


def _initialize(config: WorkerConfig, control: Control, runner: JobRunner) -> None:
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
            env = (*config.sandbox.env, *identity.environment)
            plan = config.sandbox._replace(env=env)
            channels = (runner.job_socket.fileno(), control.fileno(), runner.page_fd)
            needed = (*channels, *(fd for fd in HANDED if fd is not None))
            open_loop = runner.loop if config.loop == "uvloop" else None
            place = identity.folder, identity.cgroup
            enter(plan, *place, needed, preloading, open_loop)
            control.start()  # its thread is in the sandbox too
        if config.around is not None:
            stage = f"import of the hook {config.around[0]}"
            from asyncpool._worker.hooks import load_hook  # noqa: PLC0415 - most need none

            runner.hook = load_hook(*config.around)
        stage, fixed = "initializer", False
        if config.initializer is not None:
            initializer, initargs = pickle.loads(config.initializer)
            value = initializer(*initargs)
            if type(value) is CoroutineType:
                runner.run(value)
        for name, call in config.broadcasts:
            stage = f"broadcast of {name}"
            runner.broadcast(call)
        if config.main is None:
            stage, fixed = "check of memory", True
            control.send_hello()
    except BaseException as error:
        control.report_failure(stage, error, fixed=fixed)
        raise


def _leave(status: int, runner: JobRunner | None) -> NoReturn:
    """End the event loop, and then this process, with *status*.

    It does not wait for threads that calls have left behind: otherwise a replaced worker
    would live as long as they do.  It names them on stderr if somebody may miss them.
    """
    # sys.exit() would unwind the stack, and in a forked worker its frames are the launcher's.
    with contextlib.suppress(BaseException):
        if runner is not None:
            runner.close()
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
