"""The life of a worker: it sets itself up, runs jobs one by one, and ends with the channel."""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import pickle
import socket
import sys
import traceback
from contextvars import copy_context
from functools import partial
from types import CoroutineType

from asyncpool._core.map import chunks
from asyncpool._core.pickling.serializers import PICKLE_WORKER, WorkerSerializer
from asyncpool._core.policies.starting import SCRIPT
from asyncpool._core.wire.frames import FrameKind, header
from asyncpool._core.wire.messages import MAX_CONTEXT, PLAIN, WorkerConfig
from asyncpool._core.wire.page import BEGUN, STACKS_SIZE, STACKS_START
from asyncpool._system.descriptors import HANDED, socket_of
from asyncpool._worker.api.context import (
    NO_JOB,
    know_slot,
    load_details_by,
    name_function,
    running,
)
from asyncpool._worker.api.state import on_retire, open_state
from asyncpool._worker.channel.frames_io import SMALL, decoder, receive, send
from asyncpool._worker.channel.large_buffers import LargeBuffers
from asyncpool._worker.channel.segments import Segments
from asyncpool._worker.identity import assume, install_script, load_script
from asyncpool._worker.job.chunks import ChunkLog, run_chunk
from asyncpool._worker.job.control import Control
from asyncpool._worker.job.coroutines import Coroutines
from asyncpool._worker.job.execute import JobRunner
from asyncpool._worker.job.heartbeats import HeartbeatWriter, install
from asyncpool._worker.job.streams import Streams
from asyncpool._worker.job.tracebacks import announce
from asyncpool._worker.job_ending.interrupts import Interrupts
from asyncpool._worker.job_ending.job_claims import JobClaims
from asyncpool._worker.logs.forwarding import LogForwarding
from asyncpool._worker.process import Preloading, apply_bounds, set_environment, show

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from asyncpool._worker.job.around import Hook

_JOB = FrameKind.JOB


class WorkerParts:
    """The parts of a worker; see :func:`work` for the arguments."""

    def __init__(self, job_fd: int, control_fd: int, page_fd: int) -> None:
        self.page_fd = page_fd
        self.jobs = socket_of(job_fd)
        self.claims, self.segments = JobClaims(), Segments()
        size = os.fstat(page_fd).st_size
        self.interrupts = Interrupts(page_fd, size - STACKS_SIZE)
        control = socket_of(control_fd)
        self.control = Control(control, self.claims, self.segments, self.interrupts)
        page = mmap.mmap(page_fd, STACKS_START)
        self.beats = HeartbeatWriter(page, self.interrupts, self.control.ring)
        self.coroutines = Coroutines(self.interrupts)
        self.log = ChunkLog(page)


def work(job_fd: int, control_fd: int, page_fd: int) -> NoReturn:
    """Be a worker until the job channel ends, then leave the process.

    Args:
        job_fd: The job channel.
        control_fd: The control channel.
        page_fd: The worker page, on which the worker notes which job it has begun, the
            heartbeats of its jobs, and its stacks.  It is shared memory: a note costs no
            system call, and outlives the worker.
    """
    open_state()
    parts = WorkerParts(job_fd, control_fd, page_fd)
    jobs, control, coroutines = parts.jobs, parts.control, parts.coroutines
    claims, segments = parts.claims, parts.segments
    interrupts, beats = parts.interrupts, parts.beats
    install(beats)
    chunks.install(partial(run_chunk, parts.log, coroutines.run))
    control.running = partial(_running_job, interrupts, beats.page)
    journal = LogForwarding(control.report, control.running)

    def become_nobody() -> None:
        # A job forked.  The copy must not answer in the worker's place, and must
        # not keep the channels open after the worker's death.
        beats.mute = True
        if interrupts.lanes is not None:
            interrupts.lanes.become_nobody()
        jobs.close()
        control.close()
        journal.leave()

    os.register_at_fork(
        after_in_child=become_nobody, after_in_parent=segments.after_fork
    )
    try:
        config = WorkerConfig.unpack(control.receive_config().payload)
        identity = control.identity
        if identity is not None:
            set_environment(identity.environment)  # before any import
            know_slot(identity.rank)
            lends = config.sandbox is None and not config.codec
            assume(identity, control.borrow_tracker if lends else _nothing)
            slot = identity.number - 1
            pool = identity.name.removesuffix(f"-worker-{slot}")
            show(f"pool-worker-{slot}", f"worker {slot} of {pool}")
        name = "" if identity is None else identity.name
        journal.open(config.levels, config.disabled, name)
        coroutines.kind = config.loop
        serializer = _serializer(config, beats)
        hook = _initialize(config, parts, serializer)
        if config.main is not None:
            module = config.main[0]
            __import__(module)  # this imports asyncio
            serve = sys.modules[module].serve
            leave(serve(jobs, control, coroutines, config), coroutines)
        on_retire(partial(_retire, claims, control))
        large_buffers = LargeBuffers(jobs, segments)
        if config.concurrency > 1:
            from asyncpool._worker.lanes.concurrent_jobs import ConcurrentJobs  # noqa: PLC0415 - most need none

            ConcurrentJobs(config, parts, large_buffers, hook, serializer).serve()
        else:
            executor = make_executor(parts, large_buffers, hook)
            executor.configure(config, serializer)
            _serve(jobs, claims, beats, large_buffers, executor)
        # The last job has been run: whatever else comes goes back to the pool.
        while claims.closed and jobs.recv(SMALL):
            pass
    except BaseException:
        # The pool logs an announced error itself, together with the end.
        if not control.announced:
            traceback.print_exc()
        leave(1, coroutines)
    leave(0, coroutines)


def make_executor(
    parts: WorkerParts, large_buffers: LargeBuffers, hook: Hook | None = None
) -> JobRunner:
    """Return what runs the jobs of a worker, one at a time, with *hook* around each."""
    interrupts, coroutines = parts.interrupts, parts.coroutines
    streams = Streams(parts.jobs, large_buffers, interrupts, coroutines)
    parts.control.streams = streams
    runner = JobRunner(large_buffers, interrupts, coroutines, streams)
    if hook is not None:
        runner.hook = hook
        chunks.install(partial(run_chunk, parts.log, coroutines.run, hook=hook))
    return runner


def _serializer(config: WorkerConfig, beats: HeartbeatWriter) -> WorkerSerializer:
    """Return how this worker's calls and outcomes travel."""
    if not config.codec:
        return PICKLE_WORKER
    from asyncpool._worker.job.data import DataWorkerSerializer  # noqa: PLC0415 - most need none

    serializer = DataWorkerSerializer(config.codec)
    beats.use(serializer.pack_details)
    load_details_by(serializer.load_details)
    return serializer


def _nothing() -> None:
    return None


def _running_job(interrupts: Interrupts, page: mmap.mmap) -> tuple[int, int] | None:
    if interrupts.lanes is not None:
        return interrupts.lanes.running
    if interrupts.running is None:
        return None
    job, attempt = BEGUN.unpack_from(page)
    return job, attempt


def _retire(claims: JobClaims, control: Control) -> None:
    if not claims.closed:
        claims.closed = True
        control.send(FrameKind.RETIRE)


def _initialize(
    config: WorkerConfig, parts: WorkerParts, serializer: WorkerSerializer
) -> Hook | None:
    control, coroutines = parts.control, parts.coroutines
    control.memory = config.memory
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
            _shut_in(config, parts, preloading)
            control.start()  # its thread is in the sandbox too
        hook: Hook | None = None
        if config.around is not None:
            name, payload = config.around
            stage = f"import of the hook {name}"
            from asyncpool._worker.job.around import load_hook  # noqa: PLC0415 - most need none

            hook = load_hook(name, payload)
        stage, fixed = "initializer", False
        if config.initializer is not None:
            initializer, initargs = pickle.loads(config.initializer)
            value = initializer(*initargs)
            if type(value) is CoroutineType:
                coroutines.run(value)
        for name, call in config.broadcasts:
            stage = f"broadcast of {name}"
            _broadcast(call, parts, hook, serializer)
        if config.main is None:
            stage, fixed = "check of memory", True
            control.greet()
    except BaseException as error:
        announce(control, stage, error, fixed=fixed)
        raise
    return hook


def _broadcast(
    call: bytes, parts: WorkerParts, hook: Hook | None, serializer: WorkerSerializer
) -> None:
    """Run the pickled call of a broadcast that was made before this worker was started.

    The other workers have run it as a job.  So here too it has a context of its own, a current
    job, and heartbeats.  But the pool has no such job: its number here is 0, and its heartbeats
    have no effect.
    """
    worker, interrupts, beats = os.getpid(), parts.interrupts, parts.beats

    def make(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        value = function(*args, **kwargs)
        if type(value) is CoroutineType:
            parts.coroutines.run(value)

    def run() -> None:
        running.set((NO_JOB, 1, PLAIN, 0.0, None))
        function, args, kwargs = serializer.load_job(call)
        name_function(function)
        if hook is None:
            make(function, args, kwargs)
        else:
            hook.run(make, function, args, kwargs)

    BEGUN.pack_into(beats.page, 0, NO_JOB, 1)
    interrupts.running, beats.mute = NO_JOB, True
    try:
        # The next broadcast does not see what this one sets in its context.
        copy_context().run(run)
    finally:
        if os.getpid() != worker:
            os._exit(0)  # a copy that it made, back from the call
        interrupts.running, beats.mute = None, False


def _shut_in(config: WorkerConfig, parts: WorkerParts, preloading: Preloading) -> None:
    from asyncpool._worker.sandbox.entering import enter  # noqa: PLC0415 - most are in none

    identity, page = parts.control.identity, parts.page_fd
    assert config.sandbox is not None
    assert identity is not None
    handed = [fd for fd in HANDED if fd is not None]
    channels = (parts.jobs.fileno(), parts.control.fileno())
    plan = config.sandbox._replace(env=(*config.sandbox.env, *identity.environment))
    open_loop = parts.coroutines.loop if config.loop == "uvloop" else None
    needed = (*channels, page, *handed)
    enter(plan, identity.folder, identity.cgroup, needed, preloading, open_loop)


def _serve(
    jobs: socket.socket,
    claims: JobClaims,
    beats: HeartbeatWriter,
    large_buffers: LargeBuffers,
    executor: JobRunner,
) -> None:
    worker, page = os.getpid(), beats.page
    incoming = decoder(max(executor.max_payload, MAX_CONTEXT))
    while not claims.closed and (frames := receive(jobs, incoming)):
        frames.reverse()
        while frames and not claims.closed:
            # Popped, so that nothing keeps the job's memory when the job is done.
            frame = frames.pop()
            if frame.kind is not _JOB and frame.kind is not FrameKind.STREAM:
                executor.prepare(frame)
                continue
            if not claims.claim():
                large_buffers.discard()
                continue
            # Noted before any code of the job's own can run, even that of its arguments.
            BEGUN.pack_into(page, 0, frame.job, frame.attempt)
            kind, payload, duration = executor.run(frame, claims.taken)
            if os.getpid() != worker:  # a fork that the job made, back from the job
                os._exit(0)
            ahead = b"" if beats.latest is None else beats.last_heartbeat(frame)
            if large_buffers.in_use or type(payload) is not bytes:
                news, payload = large_buffers.put(payload)
                ahead += news
            # Sent before the next job begins: a crash there must not cost this outcome.
            head = header(kind, len(payload), frame.job, frame.attempt, duration)
            send(jobs, ahead + head, payload)
            del frame, payload


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
