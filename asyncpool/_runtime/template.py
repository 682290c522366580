"""This side of a launcher's process: start it, ask for workers, hear of their ends.

The launcher is a small process between the pool and its workers (``_worker/
template.py`` is its other half).  It does what this process must not: fork, since
it has threads, an event loop and locks; and reap, since a library that calls
``waitpid(-1)`` here would steal the exit status of any child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from asyncpool._core.frames import Frame, FrameDecoder, Kind, header
from asyncpool._core.messages import Failure, LauncherConfig, unpack_exit, unpack_pid
from asyncpool._descriptors import receive_fds
from asyncpool._runtime.process import Process
from asyncpool.errors import ProtocolError

__all__ = ["LaunchError", "Template", "worker_command"]

# The same asyncpool as this process has, also if another one is installed: hence in front,
# but behind everything before anything else is imported.
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); import asyncpool; "
    "sys.path.append(sys.path.pop(0)); "
    "from asyncpool._worker.bootstrap import main; main()"
)
_ROOT = str(Path(__file__).parents[2])
_MAX_REPORT = 1 << 20

# Seconds that the launcher has to kill whatever is left, and to end.
_END_GRACE = 2.0

# Seconds between looks whether a launcher that is lost has ended; each is twice the last.
_FIRST_LOOK = 0.0005
_LAST_LOOK = 4.0

# More requests than this at once would fill the launcher's socket.
_MOST_REQUESTS = 16


class LaunchError(Exception):
    """No worker could be started; the text says why."""


class Template:
    """One launcher's process and the channel to it.

    Args:
        loop: The loop that watches the channel.
        config: How the process begins.

    Attributes:
        ready: Done when it can start workers, failed if it never will.
        gone: Done when the process has ended.
        lost: Whether nothing can be asked of it any more.
        asked_at: When it was asked for something, without a word from it since.
        users: How many pools get their workers from it; with the last one it ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, config: LauncherConfig) -> None:
        self._loop = loop
        self.users = 0
        self.ready: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.lost = self._useless = False
        self._room = asyncio.Semaphore(_MOST_REQUESTS)
        self._swept: list[asyncio.Future[None]] = []
        self.asked_at: float | None = loop.time()
        self._requests: dict[int, asyncio.Future[Process]] = {}
        self._next_request = 0
        self._processes: dict[int, Process] = {}
        self._unwanted: set[int] = set()
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

    async def launch(self, fds: list[int]) -> Process:
        """Start a worker on *fds*; see :meth:`Launcher.launch`."""
        async with self._room:
            try:
                await asyncio.shield(self.ready)
                return await self._request(fds)
            except LaunchError:
                if self._useless:
                    self.abort()
                raise

    async def sweep(self) -> None:
        """Wait until nothing is left of workers that are dead, or that nobody wants."""
        with contextlib.suppress(OSError, TimeoutError):  # it is ending, or hangs
            async with asyncio.timeout(_END_GRACE):
                await self._sweep_once()
                while self._unwanted:
                    await self._sweep_once()

    async def _sweep_once(self) -> None:
        if self.lost or not self.ready.done():
            return
        swept: asyncio.Future[None] = self._loop.create_future()
        self._socket.send(header(Kind.SWEEP, 0))
        self._swept.append(swept)
        await asyncio.shield(swept)

    async def _request(self, fds: list[int]) -> Process:
        self._next_request += 1
        number = self._next_request
        answer: asyncio.Future[Process] = self._loop.create_future()
        try:
            socket.send_fds(self._socket, [header(Kind.LAUNCH, 0, number)], fds)
        except OSError as error:
            self._useless = True
            raise LaunchError(f"the launcher does not listen: {error}") from error
        self._requests[number] = answer
        if self.asked_at is None:
            self.asked_at = self._loop.time()
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
        self.asked_at = None
        try:
            for frame in self._decoder.feed(data):
                self._hear(frame, fds)
        except ProtocolError as error:
            self._popen.kill()
            self._lose(str(error))
        for fd in fds:  # nobody's
            os.close(fd)

    def _hear(self, frame: Frame, fds: list[int]) -> None:
        match frame.kind:
            case Kind.HELLO:
                _settle(self.ready)
            case Kind.SWEPT if self._swept:
                _settle(self._swept.pop(0))
            case Kind.LAUNCHED:
                self._launched(frame, fds)
            case Kind.EXITED:
                pid, status = unpack_exit(frame.payload)
                process = self._processes.pop(pid, None)
                if process is not None:
                    process.ended(status)
                if pid in self._unwanted and process is not None:
                    self._unwanted.remove(pid)
                    process.close()
            case Kind.FAILED:
                failure = Failure.unpack(frame.payload)
                error = LaunchError(failure.summary)
                if failure.stage == "preload":
                    self._useless = True
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
        self._processes[pid] = process
        answer = self._requests.get(frame.job)
        if answer is not None and not answer.done():
            answer.set_result(process)
            return
        # Who asked has left, and has closed its channels: it would end by itself.
        self._unwanted.add(pid)
        process.signal(signal.SIGKILL)

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
        for pid, process in self._processes.items():
            process.launcher_gone()
            if pid in self._unwanted:
                process.close()
        self._processes.clear()
        self._unwanted.clear()
        while self._swept:
            _settle(self._swept.pop())
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


def worker_command() -> tuple[str, ...]:
    """Return the command line of a fresh interpreter that is a worker."""
    return (*_interpreter(), "-c", _BOOTSTRAP, _ROOT, "worker")


def _interpreter() -> list[str]:
    # The flags of this interpreter, as multiprocessing passes them on; and no
    # directory in front of the path in which any file could pose as a module.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
    return [sys.executable, *flags, *([] if "-P" in flags else ["-P"])]


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(
    future: asyncio.Future[None] | asyncio.Future[Process], error: Exception
) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # heard: nobody may be waiting, and that is no error
