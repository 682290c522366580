"""The launcher's process: it starts workers, reports their ends, cleans up.

Pools of one event loop share a launcher if they preload the same modules.  It imports once what
all workers need, so a worker costs a millisecond.  It never runs user code, except preloaded
modules and a script that it imports.  It has one thread, so it can fork, or only threads that a
fork does not lose (``_core/policies/starting.py``).  With
``launcher="spawn"`` a fresh interpreter replaces each fork, and everything else is the same.

When its channel or its parent ends, it kills all workers and all of their descendants, even
in the middle of a job that holds the GIL.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback

from asyncpool._core.policies.starting import SCRIPT, cannot_succeed
from asyncpool._core.wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._core.wire.messages import (
    Failure,
    LauncherConfig,
    pack_exit,
    pack_pid,
    unpack_environment,
)
from asyncpool._system.descriptors import receive_fds
from asyncpool._system.interpreter import MARK, command_line
from asyncpool._system.signals import STACKS
from asyncpool._system.sockets import socket_of
from asyncpool._worker.launcher.reaper import Reaper
from asyncpool._worker.loop import work
from asyncpool._worker.process import script, titles
from asyncpool._worker.process.os_setup import (
    adopt_orphans,
    die_with_parent,
    reset_signals,
    take_stdio,
)
from asyncpool._worker.process.preloading import Preloading, forking, warm_up

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import NoReturn

# Job channel, control channel, page, stdout, stderr.
FDS_PER_WORKER = 5

_MAX_REQUEST = 1 << 20


def main(channel_fd: int) -> NoReturn:
    """Serve the pool at the other end of *channel_fd* until it is gone."""
    reaper = Reaper()
    titles.show("pool-launcher", "launcher")
    # Keep the socket to the end: collecting an open one would cause a warning.
    channel = socket_of(channel_fd)
    try:
        LauncherProcess(channel, reaper).run()
    except _Forked as forked:
        worker = forked.args
    except (OSError, SystemExit):  # the pool's process is gone, or this one must go
        reaper.end_all()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        reaper.end_all()
        os._exit(1)
    else:
        reaper.end_all()
        os._exit(0)
    # After everything of the launcher is freed, which takes up to 0.9 ms.
    work(*_become_worker(*worker))


class _Forked(BaseException):
    """Raised in a forked process, to leave the launcher's loop and its objects."""


class LauncherProcess:
    """The loop of the launcher's process."""

    def __init__(self, channel: socket.socket, reaper: Reaper) -> None:
        self._channel = channel
        self._reaper = reaper
        self._decoder = FrameDecoder(max_payload=_MAX_REQUEST)
        self._config: LauncherConfig | None = None
        self._imports: int | None = None
        self._wake_out, self._wake_in = os.pipe()
        self._serving = True
        self._parent = os.getppid()

    def run(self) -> None:
        """Answer requests and report ends; return when the pool is gone."""
        self._arrange_signals()
        adopt_orphans()
        die_with_parent()
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wake_out, select.POLLIN)
        try:
            self._serve(poll)
        finally:
            # A SIGTERM may come with the end of the channel, and must not break off
            # the clean-up.
            self._serving = False

    def _serve(self, poll: select.poll) -> None:
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake_out:
                    os.read(self._wake_out, 4096)
                    self._report_ends()
                elif not self._answer():
                    return

    def _arrange_signals(self) -> None:
        for fd in (self._wake_out, self._wake_in):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        # Out of the main loop, and into the clean-up.
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # The service may block signals in the thread that started the pool.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _on_sigterm(self, *_: object) -> None:
        # A service manager sends SIGTERM to all processes of the service.  The launcher
        # ignores it: the service finishes its jobs first, and then closes the channel.
        if self._serving and os.getppid() != self._parent:
            sys.exit(0)

    def _report_ends(self) -> None:
        for ended in self._reaper.reap():
            self._report_end(*ended)

    def _report_end(self, pid: int, status: int, cpu: int) -> None:
        self._send(FrameKind.EXITED, pack_exit(pid, status, cpu))

    def _answer(self) -> bool:
        data, fds, truncated = receive_fds(self._channel, 65536, FDS_PER_WORKER)
        if not data:
            return False
        if self._config is None and fds:  # with the first bytes of the configuration
            self._imports = fds.pop()
        for frame in self._decoder.feed(data):
            if frame.kind is FrameKind.CONFIG:
                self._configure(LauncherConfig.unpack(frame.payload))
            elif frame.kind is FrameKind.SWEEP:
                self._reaper.sweep(self._report_end)
                self._send(FrameKind.SWEPT)
            else:
                # The kernel ends a read after bytes that came with descriptors, so
                # these descriptors belong to this request.
                self._launch(frame, fds, truncated=truncated)
                fds = []
        return True

    def _configure(self, config: LauncherConfig) -> None:
        self._config = config
        sys.path[:] = config.sys_path
        sys.argv[:] = [""]
        titles.load()
        titles.show("pool-launcher", "launcher")
        with contextlib.suppress(RuntimeError, OSError):  # there may be no stderr
            faulthandler.enable(sys.stderr if self._imports is None else self._imports)
        # If this takes too long, the pool asks where it is, and reads nothing else any more.
        faulthandler.register(STACKS, self._channel)
        preloading = Preloading()
        for name in config.preload:
            try:
                self._note(name)
                with preloading.step(name):
                    importlib.import_module(name)
            except BaseException as error:
                summary = f"{name!r} cannot be preloaded: {error!r}"
                final = cannot_succeed(error, fixed=True)
                failure = Failure("preload", summary, traceback.format_exc(), final)
                self._send(FrameKind.FAILED, failure.pack())
                return
        if config.namespaces is not None:
            importlib.import_module("asyncpool._worker.sandbox.entering")
            warm_up()
        if config.script is not None:
            script.install(config.script)
            self._note(SCRIPT)
            with preloading.step(SCRIPT):
                failed = script.load()
            if failed:  # the next launcher leaves it to the workers
                self._send(FrameKind.FAILED, Failure("script", failed).pack())
                return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # it may be anything by now
                stream.flush()  # else every worker would print what is left in it
        if "logging" in sys.modules:  # workers will need it, and can share it
            importlib.import_module("asyncpool._worker.log_handler")
        self._note("")
        with contextlib.suppress(RuntimeError, OSError):  # there may be no stderr
            faulthandler.enable()
        if self._imports is not None:
            os.close(self._imports)
        faulthandler.unregister(STACKS)
        signal.signal(STACKS, signal.SIG_IGN)  # in a worker too, until it has a handler
        shared = ""
        if config.fork and config.namespaces is None:
            # It is missing where this is no Linux.
            with contextlib.suppress(OSError), open("/proc/self/maps", "rb") as maps:  # noqa: PTH123
                if b"w-s " in maps.read():
                    from asyncpool._worker.sandbox.leftovers import shared_memory  # noqa: PLC0415 - few need it

                    shared = shared_memory()
        gc.collect()
        gc.freeze()  # else the first collection of each worker copies every page
        lost = preloading.left(whole=True) if config.fork else []
        self._send(FrameKind.HELLO, json.dumps([lost, shared]).encode())

    def _note(self, name: str) -> None:
        """Note what is imported now: the process may die of it."""
        if self._imports is not None:
            os.write(self._imports, f"\0{name}\n".encode())

    def _launch(self, frame: Frame, fds: list[int], *, truncated: bool) -> None:
        if truncated or len(fds) != FDS_PER_WORKER:
            self._refuse(frame, "the launcher may open no more descriptors")
        else:
            try:
                pid = self._fork(fds, unpack_environment(frame.payload))
                # Open the pidfd here: this process is the parent, so the pid cannot be reused yet.
                handles: list[int] = []
                with contextlib.suppress(AttributeError, OSError):
                    handles.append(os.pidfd_open(pid))
                payload = pack_pid(pid, held=bool(handles))
                self._send(FrameKind.LAUNCHED, payload, frame.job, handles)
                fds += handles
            except OSError as error:
                self._refuse(frame, str(error))
        for fd in fds:
            os.close(fd)

    def _fork(self, fds: list[int], variables: Mapping[str, str]) -> int:
        """Fork a worker that gets *fds*.

        With *variables* in its environment, if it becomes a fresh interpreter.
        """
        # A SIGTERM meant for the new worker must not run the launcher's handler in it;
        # it waits until the worker has let go of that.
        with _undisturbed(), forking():
            pid = self._reaper.fork()
            if pid == 0:
                self._let_go()
                raise _Forked(self._config, fds, variables)
        return pid

    def _refuse(self, frame: Frame, reason: str) -> None:
        self._send(FrameKind.FAILED, Failure("fork", reason).pack(), frame.job)

    def _send(
        self,
        kind: FrameKind,
        payload: bytes = b"",
        job: int = 0,
        fds: list[int] | None = None,
    ) -> None:
        data = header(kind, len(payload), job) + payload
        if fds:
            # Alone with its first byte in a read of the other side's.
            sent = socket.send_fds(self._channel, [data], fds)
            data = data[sent:]
        self._channel.sendall(data)

    def _let_go(self) -> None:
        """Leave the launcher's life behind; this is the forked process."""
        try:
            os.setsid()
            reset_signals()
            self._channel.close()
            os.close(self._wake_out)
            os.close(self._wake_in)
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def _become_worker(
    config: LauncherConfig | None, fds: list[int], variables: Mapping[str, str]
) -> list[int]:
    """Return the descriptors that a worker works with."""
    try:
        job, control, page, out, err = fds
        take_stdio(out, err)
        if config is not None and not config.fork:
            _exec(config, variables, job, control, page)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed()  # random does so itself; see docs/inside-a-job.md for others
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    return [job, control, page]


def _exec(config: LauncherConfig, variables: Mapping[str, str], *fds: int) -> NoReturn:
    for fd in fds:
        os.set_inheritable(fd, True)
    os.execvpe(  # noqa: S606 - no shell is wanted
        config.command[0],
        command_line(config.command, "worker", fds),
        {**os.environ, **variables, MARK: str(fds[0])},
    )


@contextlib.contextmanager
def _undisturbed() -> Generator[None]:
    """Let a SIGTERM wait, where its handler would leave something that nobody has."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
