"""The pool's end of the launcher: start it, ask it for workers, hear of their ends.

The launcher is a small process between the pool and its workers (``_worker/
template.py`` is its other half).  It does what this process must not: fork, since
it has threads, an event loop and locks; and reap, since a library that calls
``waitpid(-1)`` here would steal the exit status of any child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

from asyncpool._core.frames import Frame, FrameDecoder, Kind, header
from asyncpool._core.messages import Failure, LauncherConfig, unpack_exit, unpack_pid
from asyncpool._descriptors import receive_fds
from asyncpool._runtime.machine import module_path
from asyncpool._runtime.process import Process
from asyncpool.errors import ProtocolError

__all__ = ["LaunchError", "Launcher"]

_BOOTSTRAP = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from asyncpool._worker.bootstrap import main; main()"
)
_ROOT = str(Path(__file__).parents[2])
_MAX_REPORT = 1 << 20

# Seconds that the launcher has to kill whatever is left, and to end.
_END_GRACE = 2.0

# Seconds between looks whether a launcher that is lost has ended; each is twice the last.
_FIRST_LOOK = 0.0005
_LAST_LOOK = 1.0

# More requests than this at once would fill the launcher's socket.
_MOST_REQUESTS = 16


class LaunchError(Exception):
    """No worker could be started; the text says why."""


class Launcher:
    """Starts workers, through a process that it keeps alive.

    Args:
        loop: The pool's loop.
        fork: Whether workers are forked, or are fresh interpreters.
        preload: Modules that the launcher imports before it forks.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, fork: bool, preload: tuple[str, ...]
    ) -> None:
        self._loop = loop
        self._fork = fork
        self._preload = preload
        self._template: _Template | None = None
        self._room = asyncio.Semaphore(_MOST_REQUESTS)

    async def launch(self, fds: list[int]) -> Process:
        """Start a worker on *fds* and return its process.

        Raises:
            LaunchError: If it cannot be started.
            OSError: If this process lacks the means to ask.

        Cancellation:
            Safe: a worker that was on its way ends when its channels close.
        """
        async with self._room:
            return await self._launch(fds)

    async def _launch(self, fds: list[int]) -> Process:
        if self._template is None or self._template.lost:
            self._template = _Template(self._loop, self._config())
        template = self._template
        try:
            await asyncio.shield(template.ready)
            return await template.request(fds)
        except LaunchError:
            if template.useless:
                template.abort()
            raise

    def abort(self) -> None:
        """Kill a launcher that does not answer; workers that run go on."""
        if self._template is not None:
            self._template.abort()

    async def close(self) -> None:
        """End the launcher's process, and with it whatever it still looks after.

        Cancellation:
            Costs the assurance that the process is gone when this returns.
        """
        if self._template is not None:
            await self._template.close()
            self._template = None

    def _config(self) -> LauncherConfig:
        return LauncherConfig(
            sys_path=module_path(),
            fork=self._fork,
            preload=self._preload,
            command=(*_interpreter(), "-c", _BOOTSTRAP, _ROOT, "worker"),
        )


class _Template:
    """One launcher process and the channel to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: LauncherConfig) -> None:
        self._loop = loop
        self.ready: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.lost = self.useless = False
        self._requests: dict[int, asyncio.Future[Process]] = {}
        self._next_request = 0
        self._processes: dict[int, Process] = {}
        self._decoder = FrameDecoder(max_payload=_MAX_REPORT)
        self._socket, theirs = socket.socketpair()
        try:
            self._popen = self._start(theirs)
        except OSError as error:
            self._socket.close()
            raise LaunchError(
                f"the interpreter {sys.executable} cannot be started: {error}"
            ) from error
        finally:
            theirs.close()
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self._read_some)
        payload = config.pack()
        data = header(Kind.CONFIG, len(payload)) + payload
        if self._socket.send(data) < len(data):
            # The socket was empty, and has room for some thousand directories.
            self.abort()
            raise LaunchError(f"sys.path and preload have {len(payload)} bytes")

    @staticmethod
    def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
        command = [*_interpreter(), "-c", _BOOTSTRAP, _ROOT, "launcher"]
        return subprocess.Popen(  # noqa: S603 - our own interpreter
            [*command, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if _is_open(2) else subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )

    async def request(self, fds: list[int]) -> Process:
        """Ask for a worker on *fds*."""
        self._next_request += 1
        number = self._next_request
        answer: asyncio.Future[Process] = self._loop.create_future()
        try:
            socket.send_fds(self._socket, [header(Kind.LAUNCH, 0, number)], fds)
        except OSError as error:
            self.useless = True
            raise LaunchError(f"the launcher does not listen: {error}") from error
        self._requests[number] = answer
        try:
            return await answer
        finally:
            self._requests.pop(number, None)

    def abort(self) -> None:
        """Kill the process."""
        if not self.lost:
            self._popen.kill()
            self._lose("the launcher was killed")

    async def close(self) -> None:
        """End the process and wait until it has ended."""
        if not self.ready.done():
            self.abort()  # it still imports, and has no workers to look after
        if not self.lost:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        try:
            async with asyncio.timeout(_END_GRACE):
                await asyncio.shield(self.gone)
        except TimeoutError:
            self.abort()
            await self.gone
        except asyncio.CancelledError:
            self.abort()
            raise

    def _read_some(self) -> None:
        try:
            data, fds, _ = receive_fds(self._socket, 65536, 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self._lose("the launcher's process ended")
            return
        try:
            for frame in self._decoder.feed(data):
                self._hear(frame, fds)
        except ProtocolError as error:
            self._lose(str(error))
        for fd in fds:  # nobody's
            os.close(fd)

    def _hear(self, frame: Frame, fds: list[int]) -> None:
        match frame.kind:
            case Kind.HELLO:
                _settle(self.ready, None)
            case Kind.LAUNCHED:
                self._launched(frame, fds)
            case Kind.EXITED:
                pid, status = unpack_exit(frame.payload)
                process = self._processes.pop(pid, None)
                if process is not None:
                    process.ended(status)
            case Kind.FAILED:
                failure = Failure.unpack(frame.payload)
                error = LaunchError(failure.summary)
                if failure.stage == "preload":
                    self.useless = True
                    _fail(self.ready, error)
                elif (answer := self._requests.get(frame.job)) is not None:
                    _fail(answer, error)
            case _:
                raise ProtocolError(f"the launcher sent {frame.kind.name}")

    def _launched(self, frame: Frame, fds: list[int]) -> None:
        pid, held = unpack_pid(frame.payload)
        # A read ends behind the bytes that a descriptor came with, so if this frame
        # brings one, it is the only one here.
        process = Process(self._loop, pid, fds.pop() if held and fds else None)
        answer = self._requests.get(frame.job)
        if answer is None or answer.done():
            process.close()  # who asked has left, and has closed its channels
            return
        self._processes[process.pid] = process
        answer.set_result(process)

    def _lose(self, reason: str) -> None:
        if self.lost:
            return
        self.lost = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        error = LaunchError(reason)
        _fail(self.ready, error)
        for answer in list(self._requests.values()):
            _fail(answer, error)
        for process in self._processes.values():
            process.launcher_gone()
        self._processes.clear()
        self._reap(_FIRST_LOOK)

    def _reap(self, wait: float) -> None:
        # Its channel ended as a part of its own end, or it was killed: it takes no
        # time, unless it sleeps in the kernel.  And if another library has reaped it
        # already, that is all right too.
        if self._popen.poll() is None and wait < _LAST_LOOK:
            self._loop.call_later(wait, self._reap, 2 * wait)
        else:
            self.gone.set_result(None)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _interpreter() -> list[str]:
    # The flags of this interpreter, as multiprocessing passes them on; and no
    # directory in front of the path in which any file could pose as a module.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
    return [sys.executable, *flags, *([] if "-P" in flags else ["-P"])]


def _settle(future: asyncio.Future[None], value: None) -> None:
    if not future.done():
        future.set_result(value)


def _fail(
    future: asyncio.Future[None] | asyncio.Future[Process], error: Exception
) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # heard: nobody may be waiting, and that is no error
