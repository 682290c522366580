"""The service's side of a launcher process: start it, ask it for workers, hear of their ends.

The launcher is a small process between the pool and its workers.  Its other half is
``_worker/launcher/launcher_process.py``.  It does what this process must not do.  It forks: this
process has threads, an event loop and locks.  And it reaps: here a library that calls
``waitpid(-1)`` would steal the exit status of any child.

On Linux the pool holds each worker's process by a pidfd, so that a signal can never hit a later
process with the same number.  On other systems the pool sends no signal after the launcher has
reported the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket

from asyncpool._core.base.text import printable_lines
from asyncpool._core.logs import pool_messages as say
from asyncpool._core.policies.starting import SCRIPT, Thread, cannot_succeed, share
from asyncpool._core.wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._core.wire.messages import (
    Failure,
    LauncherConfig,
    Variables,
    pack_environment,
    unpack_exit,
    unpack_pid,
)
from asyncpool._core.wire.stacks import are_whole, tidy
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.base.arguments import is_refusal, tell_once
from asyncpool._runtime.base.event_loop import shielded
from asyncpool._runtime.base.machine import status_of_zombie
from asyncpool._runtime.launcher.interpreter import NewLauncher, end_of
from asyncpool._system.descriptors import receive_fds
from asyncpool._system.signals import STACKS
from asyncpool._system.sockets import socket_pair
from asyncpool.errors import ProtocolError

_MAX_REPORT = 1 << 20

# Seconds that the launcher has to report an end that the pidfd has shown already.
_REPORT_GRACE = 0.5

# The most bytes of configuration that the launcher accepts.
_MAX_CONFIG = 1 << 20

# Seconds that the launcher has to kill what is left of its workers, and to end.
_END_GRACE = 2.0

# Seconds until the first look whether a lost launcher has ended; each wait is twice the last one.
_FIRST_LOOK = 0.0005
_LAST_LOOK = 4.0

# Looks for the stacks of one that still imports, and the seconds between two of them.
_LOOKS = 30
_NEXT_LOOK = 0.01

# The signals that an import brings upon itself; SIGKILL often comes for lack of memory.
_FAULTS = {
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGILL,
    signal.SIGBUS,
    signal.SIGFPE,
}

# More requests than this at once would fill the launcher's socket.
_MOST_REQUESTS = 16


_LOGGER = logging.getLogger("asyncpool")


# What workers do not share is said once.
_told: set[tuple[bool, str, str]] = set()


class LaunchError(Exception):
    """No worker could be started; the text says why.

    Attributes:
        trace: The traceback of the exception in the launcher, or its stacks when a signal ended it.
        status: The exit status of the launcher, if it has died of that and it is known.
        final: Whether another try would fail in the same way.
        again: Whether another launcher can start workers, with which they share less.
    """

    trace = ""
    status: int | None = None
    final = False
    again = False


class InterpreterError(LaunchError):
    """What was to be the launcher is none: not this Python, or a frozen program by itself."""

    final = True


class Process:
    """A process that the launcher has started, and whose end the launcher will report.

    Args:
        loop: The loop that watches for its end.
        pid: Its number.
        pidfd: A descriptor that stands for the process, owned by this object, or ``None``.

    Attributes:
        pid: As above.
        cpu: Seconds of CPU time that it has used, once it has ended and if it is known.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pid: int, pidfd: int | None
    ) -> None:
        self._loop = loop
        self.pid = pid
        self.cpu = 0.0
        self._has_launcher = True
        self._pidfd = pidfd
        self._end: asyncio.Future[int | None] = loop.create_future()
        self._alarm = Alarm(loop, lambda _: self._ended_unreported())
        if pidfd is not None:
            loop.add_reader(pidfd, self._is_gone)

    async def wait(self) -> int | None:
        """Wait until the process has ended; return its exit status, or ``None`` if unknown.

        A negative status means that a signal with that number has ended the process.

        Cancellation:
            Safe: the process goes on.
        """
        return await asyncio.shield(self._end)

    def ended(self, status: int | None, *, cpu: float = 0.0) -> None:
        """Note the exit status and the CPU time of the process, which has ended."""
        self._alarm.cancel()
        if not self._end.done():
            self.cpu = cpu
            self._end.set_result(status)

    def launcher_gone(self) -> None:
        """Watch the process without the launcher, which is gone.

        Without a pidfd nothing would show the end of the process.  So it is killed now.
        """
        self._has_launcher = False
        if self._pidfd is None:
            self.signal(signal.SIGKILL)
            self.ended(None)
        elif self._alarm.is_set:
            self._ended_unreported()

    def signal(self, number: int) -> None:
        """Send the process a signal, if it is still there."""
        if self._end.done():
            return
        try:
            self._send(number)
        except ProcessLookupError:
            pass  # the process has just ended
        except OSError as error:
            extra = {"pid": self.pid, "signal": int(number)}
            say.SIGNAL_NOT_SENT.log(_LOGGER, extra, why=error)

    def close(self) -> None:
        """Close the pidfd."""
        self.ended(None)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _send(self, number: int) -> None:
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except OSError as error:
                if not is_refusal(error):
                    raise
                # The number is still that of this process: the launcher has not reaped it.
                tell_once("pidfd_send_signal", error, "workers are signalled by number")
            else:
                return
        os.kill(self.pid, number)

    def _is_gone(self) -> None:
        # The launcher reports the exit status and more, but it may be stopped, or dead.
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        if not self._end.done():
            self._alarm.set_in(_REPORT_GRACE if self._has_launcher else 0.0)

    def _ended_unreported(self) -> None:
        # Without a launcher the system collects the process, sooner or later than this.
        status = status_of_zombie(self.pid) if self._has_launcher else None
        # The launcher would have killed the rest of the group.  The kernel has hardly given
        # the number to another process by now.
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        self.ended(status)


class LauncherProcess:
    """One launcher process and the channel to it.

    Args:
        loop: The loop that watches the channel.
        config: What the process is to import and to inherit.
        known: The modules that are known to have threads which a fork loses; it adds to them.

    Attributes:
        config: As above.
        ready: Done when the process can start workers; failed if it never will.
        gone: Done when the process has ended.  Also done if a lost process has not ended for
            seconds: it sleeps in the kernel, and the pool stops waiting for it.
        lost: Whether the pool can ask it for nothing any more.
        asked_at: When the pool asked it for something that it has not answered.
        users: How many pools get their workers from it; it ends with the last one.
        shared: What memory its workers share with each other, for people.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: LauncherConfig, known: set[str]
    ) -> None:
        self._loop = loop
        self.users, self.shared = 0, ""
        self.ready: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.lost = self._useless = self._ends = self._died = False
        self._room = asyncio.Semaphore(_MOST_REQUESTS)
        self._swept: list[asyncio.Future[None]] = []
        self.asked_at: float | None = loop.time()
        self._requests: dict[int, asyncio.Future[Process]] = {}
        self._next_request = 0
        self._processes: dict[int, Process] = {}
        self.config = config
        self._known = known
        self._unwanted: set[int] = set()
        self._decoder = FrameDecoder(max_payload=_MAX_REPORT)
        self._socket, theirs = socket_pair()
        try:
            self._new: NewLauncher | None = NewLauncher(theirs, config)
        except ValueError as error:
            self._socket.close()
            raise InterpreterError(str(error)) from error
        except OSError as error:
            self._socket.close()
            failure = LaunchError(f"the launcher cannot be started: {error}")
            failure.final = cannot_succeed(error, fixed=True)
            raise failure from error
        finally:
            theirs.close()
        self._popen = self._new.popen
        # Here it writes what it imports, and its stacks if it dies of that.
        self._imports: int | None = None
        with contextlib.suppress(AttributeError, OSError):  # no Linux, or a sandbox
            self._imports = os.memfd_create("asyncpool-imports")
        self.ready.add_done_callback(lambda _: self._close_imports())
        self._stacks: bytes | None = None  # what it has written of them
        patience = self._new.patience
        what = f"it has said nothing for {patience} s"
        self._patience = Alarm(loop, lambda _: self._died_early(what))
        if patience is not None:
            self._patience.set_in(patience)
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self._read_some)
        payload = config.pack()
        data = header(FrameKind.CONFIG, len(payload)) + payload
        if len(payload) > _MAX_CONFIG:
            self.abort()
            failure = LaunchError(f"sys.path and preload have {len(payload)} bytes")
            failure.final = True
            raise failure
        # Linux takes about a thousand directories at once, macOS 8 KB.
        self._unsent = memoryview(data)
        self._begun = False
        loop.add_writer(self._socket.fileno(), self._send_config)
        self._send_config()

    def _send_config(self) -> None:
        """Send the rest of the configuration; nothing else is sent before the process is ready."""
        fds: list[int] = []
        if self._imports is not None and not self._begun:
            fds.append(self._imports)
        try:
            sent = socket.send_fds(self._socket, [self._unsent], fds)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the process is gone, and its channel reports that
            sent = len(self._unsent)
        self._unsent, self._begun = self._unsent[sent:], True
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    async def launch(self, fds: list[int], variables: Variables = ()) -> Process:
        """Start a worker on *fds*; see :meth:`Launcher.launch`."""
        async with self._room:
            try:
                await shielded(self.ready)
                return await self._request(fds, variables)
            except LaunchError:
                if self._useless:
                    self.abort()
                raise

    async def sweep(self) -> None:
        """Wait until nothing is left of dead or unwanted workers."""
        with contextlib.suppress(OSError, TimeoutError):  # the launcher ends, or hangs
            async with asyncio.timeout(_END_GRACE):
                await self._sweep_once()
                while self._unwanted:
                    await self._sweep_once()

    async def _sweep_once(self) -> None:
        if self.lost or not self.ready.done():
            return
        swept: asyncio.Future[None] = self._loop.create_future()
        self._socket.send(header(FrameKind.SWEEP, 0))
        self._swept.append(swept)
        await asyncio.shield(swept)

    async def _request(self, fds: list[int], variables: Variables) -> Process:
        self._next_request += 1
        number = self._next_request
        answer: asyncio.Future[Process] = self._loop.create_future()
        payload = pack_environment(variables)
        data = header(FrameKind.LAUNCH, len(payload), number) + payload
        try:
            # The rest cannot wait: other requests may follow.
            if socket.send_fds(self._socket, [data], fds) < len(data):
                raise OSError("its socket is full")  # noqa: TRY301 - as if it did not listen
        except OSError as error:
            self._useless = True
            raise LaunchError(f"the launcher does not listen: {error}") from error
        self._requests[number] = answer
        if self.asked_at is None:
            self.asked_at = self._loop.time()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not (answer.cancelled() or answer.exception()):
                self._disown(answer.result())  # both in one turn of the loop
            raise
        finally:
            self._requests.pop(number, None)

    def abort(self) -> None:
        """Kill the process."""
        if not self.lost:
            self._popen.kill()
            self._lose("the launcher was killed")

    async def abort_late(self) -> LaunchError:
        """Kill the process, which has not answered in time; return what it does instead.

        Cancellation:
            Kills it.
        """
        error = LaunchError("the launcher did not answer within start_timeout")
        try:
            if self._new is not None:
                what = "it does not answer within start_timeout"
                error = InterpreterError(self._new.fault(what))
                error.final = self._new.is_hopeless()
            elif not (self.ready.done() or self.lost):
                self._stacks = self._stacks or b""
                self._popen.send_signal(STACKS)
                for _ in range(_LOOKS):
                    before = self._stacks
                    await asyncio.sleep(_NEXT_LOOK)
                    if are_whole(self._stacks, before):
                        break
                error = LaunchError(
                    "the launcher did not import within start_timeout what workers share"
                )
                stacks = self._stacks.decode(errors="replace")
                error.trace = printable_lines(tidy(stacks))
        finally:
            self.abort()
        return error

    async def close(self) -> None:
        """End the process and wait until it has ended."""
        self._ends = True
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
            data, fds, truncated = receive_fds(self._socket, 65536, 2)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, fds, truncated = b"", [], False
        if self._stacks is not None and data:
            self._stacks += data
            return
        if self._new is not None and data:
            try:
                rest = self._new.hear(data)
            except ValueError as error:
                self._popen.kill()
                self._lose(InterpreterError(str(error)))
                return
            if rest is None:
                return
            data, self._new = rest, None
            self._patience.cancel()
        elif not data:
            asked = self._ends or self._stacks is not None
            if not (asked or self.ready.done()):
                self._loop.remove_reader(self._socket.fileno())
                self._died_early("it has closed its channel", _FIRST_LOOK)
                return
            self._died = not asked
            self._lose("the launcher's process ended")
            return
        self.asked_at = None
        if truncated:  # some descriptors are lost, and nobody knows which
            _close_all(fds)
        try:
            for frame in self._decoder.feed(data):
                self._hear(frame, fds)
        except ProtocolError as error:
            self._popen.kill()
            self._lose(str(error))
        _close_all(fds)  # those that no frame has taken

    def _hear(self, frame: Frame, fds: list[int]) -> None:
        match frame.kind:
            case FrameKind.HELLO:
                lost, shared = json.loads(frame.payload)
                self.shared = printable_lines(shared)
                if lost:
                    self._share([Thread(*row) for row in lost])
                else:
                    _settle(self.ready)
            case FrameKind.SWEPT if self._swept:
                _settle(self._swept.pop(0))
            case FrameKind.LAUNCHED:
                self._launched(frame, fds)
            case FrameKind.EXITED:
                self._exited(*unpack_exit(frame.payload))
            case FrameKind.FAILED:
                failure = Failure.unpack(frame.payload)
                error = LaunchError(printable_lines(failure.summary))
                error.trace = printable_lines(failure.text)
                error.final = failure.final
                if failure.stage == "script":  # workers import it, and say why it fails
                    self._known.add(SCRIPT)
                    error.again = True
                if failure.stage in {"preload", "script"}:
                    self._useless = True
                    _fail(self.ready, error)
                elif (answer := self._requests.get(frame.job)) is not None:
                    _fail(answer, error)
            case _:
                raise ProtocolError(f"the launcher sent {frame.kind.name}")

    def _share(self, lost: list[Thread]) -> None:
        """Decide what becomes of a launcher in which a fork would lose threads."""
        sandboxed = self.config.namespaces is not None
        sharing = share(lost, sandboxed=sandboxed)
        modules = ", ".join(dict.fromkeys(thread.origin for thread in lost))
        threads = ", ".join(thread.name for thread in lost)
        if sharing.text and (sandboxed, modules, threads) not in _told:
            _told.add((sandboxed, modules, threads))
            extra = {"modules": modules, "threads": threads}
            say.NOT_SHARED.log(_LOGGER, extra, text=sharing.text)
        self._known.update(sharing.left)
        if not (sharing.refused or sharing.left):
            _settle(self.ready)
            return
        error = LaunchError(sharing.refused)
        error.final, error.again = True, not sharing.refused
        self._useless = True
        _fail(self.ready, error)

    def _exited(self, pid: int, status: int, cpu: int) -> None:
        if (process := self._processes.pop(pid, None)) is None:
            return
        process.ended(status, cpu=cpu / 1e6)
        if pid in self._unwanted:
            self._unwanted.remove(pid)
            process.close()

    def _launched(self, frame: Frame, fds: list[int]) -> None:
        pid, held = unpack_pid(frame.payload)
        # A read ends behind the bytes that a descriptor came with.  So if this frame brings a
        # descriptor, it is the only one here.
        process = Process(self._loop, pid, fds.pop() if held and fds else None)
        self._processes[pid] = process
        answer = self._requests.get(frame.job)
        if answer is not None and not answer.done():
            answer.set_result(process)
            return
        self._disown(process)

    def _disown(self, process: Process) -> None:
        """End a worker whose caller has left: it has closed the channels, but this is sooner."""
        if self._processes.get(process.pid) is not process:  # it has ended
            process.close()
            return
        self._unwanted.add(process.pid)
        process.signal(signal.SIGKILL)

    def _died_early(self, what: str, wait: float = _LAST_LOOK) -> None:
        """Give up a process that was never ready, and say how it has ended.

        Args:
            what: What to say if it goes on.
            wait: Seconds until the next look whether it has ended.
        """
        if self.lost:
            return
        ended = end_of(self._popen)
        # The kernel closes the channel first, and a moment later the process has a status.
        if not ended and wait < _LAST_LOOK:
            self._loop.call_later(wait, self._died_early, what, 2 * wait)
            return
        error = self._death(ended or what)
        self._popen.kill()
        self._lose(error)

    def _death(self, ended: str) -> LaunchError:
        """Return the error of a process that was never ready, and has *ended* so."""
        if self._new is not None:
            failure = InterpreterError(self._new.fault(ended))
            failure.final = self._new.is_hopeless()
            return failure
        written = (
            b"" if self._imports is None else os.pread(self._imports, _MAX_REPORT, 0)
        )
        names, fatal, stacks = written.decode(errors="replace").partition(
            "Fatal Python"
        )
        module = names.rpartition("\0")[2].strip()
        what = "the script" if module == SCRIPT else module
        step = f" while it imported {what}" if module else ""
        error = LaunchError(printable_lines(f"the launcher died{step}: {ended}"))
        # Python also lists the extension modules.
        heading, _, stacks = stacks.partition("\nExtension modules:")[0].partition("\n")
        if fatal:
            error.trace = printable_lines(f"{fatal}{heading}\n{tidy(stacks)}")
        # It is 0 also if another library has reaped the process, or the kernel.
        status = error.status = self._popen.poll() or None
        again = status is not None and (status > 0 or -status in _FAULTS)
        error.final = bool(module) and again
        return error

    def _close_imports(self) -> None:
        if self._imports is not None:
            os.close(self._imports)
            self._imports = None

    def _lose(self, reason: str | LaunchError) -> None:
        if self.lost:
            return
        self.lost = True
        self._patience.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        error = LaunchError(reason) if isinstance(reason, str) else reason
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
        # The launcher's channel ends when the launcher does.  So it ends at once, unless it
        # sleeps in the kernel.  And if another library has reaped it already, it has ended too.
        if self._popen.poll() is None and wait < _LAST_LOOK:
            self._loop.call_later(wait, self._reap, 2 * wait)
            return
        if self._died:
            reason = end_of(self._popen) if self._popen.poll() else ""
            extra = {
                "pid": self._popen.pid,
                "reason": reason or "its process has ended",
            }
            say.LAUNCHER_LOST.log(_LOGGER, extra)
        self.gone.set_result(None)


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(
    future: asyncio.Future[None] | asyncio.Future[Process], error: Exception
) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # marks it as seen, since perhaps nobody waits for it
