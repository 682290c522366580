"""Where a pool gets its workers from: a launcher process, which several pools may share.

The launcher is a small process between the pool and its workers.  Its other half is
``_worker/launcher.py``.  It does what this process must not do.  It forks: this process has
threads, an event loop and locks.  And it reaps: here a library that calls ``waitpid(-1)`` would
steal the exit status of any child.

Pools of one loop share a launcher if their workers inherit the same: the preloaded modules,
the script or none, the module path, the environment, the directory, the user and the groups,
the niceness and the limits; on Linux also the CPUs, the umask and the ignored signals.  The
first pool starts the launcher, which takes about 60 ms.  The last pool ends it.

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
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Collection
from io import FileIO
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from asyncpool._core import log_messages as say
from asyncpool._engine.interpreter import (
    LaunchError,
    NewLauncher,
    main_script,
    worker_command,
)
from asyncpool._engine.loop import Alarm, fail_quietly, shielded
from asyncpool._engine.machine import (
    folder_at,
    is_refusal,
    module_path,
    status_of_zombie,
    tell_once,
    umask_and_ignored,
    usable_cores,
    working_folder,
)
from asyncpool._wire import scripts
from asyncpool._wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._wire.messages import (
    Failure,
    LauncherConfig,
    Variables,
    are_whole,
    pack_environment,
    tidy,
    unpack_exit,
    unpack_pid,
)
from asyncpool._wire.posix import STACKS, receive_fds, signal_name, socket_pair
from asyncpool._wire.starting import (
    BEFORE_IMPORTS,
    SCRIPT,
    Thread,
    cannot_succeed,
    share,
)
from asyncpool._wire.text import printable_lines
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:  # few pools have a sandbox
    from asyncpool._sandbox.confinement import Confinement

_MAX_REPORT = 1 << 20

# Seconds that the launcher has to report an end that the pidfd has shown already.
_REPORT_GRACE = 0.5

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

# The references are weak: if a loop is dropped with its pools, their launchers go with it.
_processes: WeakValueDictionary[tuple[object, ...], LauncherProcess] = (
    WeakValueDictionary()
)

# Modules with threads that a fork loses, for launchers that inherit the same: the next one need
# not find that out.
_known: dict[tuple[object, ...], set[str]] = {}
_MOST_KNOWN = 64

# Seconds in which a script may be over, so that the pool need not prepare for later workers.
_SHORT_LIFE = 1.0

# Seconds until the pool tries again to start a launcher for later workers.
_AGAIN = 10.0

# Seconds without an answer after which a launcher that others share counts as hung.
_SILENCE = 5.0


class Launcher:
    """Starts the workers of one pool.

    Args:
        loop: The pool's loop.
        fork: Whether workers are forked, or are fresh interpreters.
        preload: Modules that the launcher imports before it forks.
        confinement: The sandbox of the workers, if they have one.
        variables: Environment variables that the launcher and all workers have, beside those of
            this process.
        imports: Whether the launcher may import the script for its workers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        fork: bool,
        preload: tuple[str, ...],
        confinement: Confinement | None = None,
        variables: Variables = (),
        imports: bool = True,
    ) -> None:
        self._loop = loop
        # If the pool has not sent anything of the script yet, it may never do so.
        imports = imports and fork
        script = main_script() if imports and scripts.is_in_use() else None
        command = worker_command()
        path = working_folder()
        folder = path, folder_at(path)
        self._config = LauncherConfig(
            module_path(), fork, preload, command, script, folder=folder
        )
        if confinement is not None:
            first = imports and confinement.script_first
            self._config = self._config._replace(
                namespaces=confinement.plan.namespaces,
                env=confinement.plan.env,
                script=confinement.script if first else None,
            )
        elif variables:
            both = {**os.environ, **dict(variables)}
            self._config = self._config._replace(env=tuple(both.items()))
        self._process: LauncherProcess | None = None
        self._others: list[LauncherProcess] = []
        self._later: asyncio.TimerHandle | None = None
        if imports and script is None and confinement is None:
            scripts.listen(self._on_use)

    @property
    def shared(self) -> str:
        """What memory the workers share with each other, for people."""
        return "" if self._process is None else self._process.shared

    async def launch(self, fds: list[int], variables: Variables = ()) -> Process:
        """Start a worker on *fds* and return its process.

        Args:
            fds: Its descriptors.
            variables: Environment variables that it alone has.  Only a fresh interpreter starts
                with them.  A forked worker sets them when it learns who it is.

        Raises:
            LaunchError: If it cannot be started.
            OSError: If this process lacks the means to ask.

        Cancellation:
            Safe: a worker that was on its way ends when its channels close.
        """
        folder = self._config.folder
        if (leads := folder_at(folder[0])) not in {None, folder[1]}:  # to a new release
            self._config = self._config._replace(folder=(folder[0], leads))
            if self._process is not None:
                self._others.append(self._process)  # it has workers to look after
                self._process = None
        try:
            return await self._present().launch(fds, variables)
        except LaunchError as error:
            if not error.again:
                raise
            return await self.launch(fds, variables)

    def begin(self) -> None:
        """Start the launcher's process: this one has imports of its own to do meanwhile."""
        with contextlib.suppress(
            LaunchError, OSError
        ):  # launch() tries again, and tells
            self._present()

    def _present(self) -> LauncherProcess:
        if self._process is None or self._process.lost:
            self._process = self._find(self._config)
            self._config = self._process.config
        return self._process

    async def on_start_timeout(self, error: LaunchError) -> LaunchError:
        """Kill the launcher, since a start took too long; but not one that serves other pools.

        This pool may just have a short ``start_timeout``, or the machine may be busy for a moment.

        Returns:
            What it does instead, if that is known; else *error*.
        """
        process = self._process
        if process is None:
            return error
        asked_at, now = process.asked_at, self._loop.time()
        hangs = asked_at is not None and now - asked_at >= _SILENCE
        return await process.abort_late() if process.users == 1 or hangs else error

    async def close(self) -> None:
        """Wait until nothing is left of this pool's workers, nor of a launcher that it alone uses.

        Cancellation:
            Processes may be left when this returns.
        """
        scripts.forget(self._on_use)
        if self._later is not None:
            self._later.cancel()
        process, self._process = self._process, None
        if process is not None:
            self._others.append(process)
        while self._others:
            process = self._others.pop()
            process.users -= 1
            if process.users and not process.lost:
                await process.sweep()
            else:
                await process.close()

    def _find(self, config: LauncherConfig) -> LauncherProcess:
        inherited = _inheritance()
        sandboxed = config.namespaces is not None
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        # In a sandbox workers share what has threads, too; but not a script that fails.
        known = _known.setdefault((sandboxed, config.env, inherited), set())
        config = _without(config, known)
        key = (id(self._loop), config, inherited)
        process = _processes.get(key)
        if process is None or process.lost or not process.users:
            process = _processes[key] = LauncherProcess(self._loop, config, known)
        process.users += 1
        return process

    def _on_use(self) -> None:
        """Prepare for workers that need the script.  Any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._prepare_soon)

    def _prepare_soon(self) -> None:
        if self._process is None:
            # No launcher has started yet: the first one imports the script before it forks.
            self._config = self._config._replace(script=main_script())
        elif self._later is None:
            self._later = self._loop.call_later(_SHORT_LIFE, self._prepare)

    def _prepare(self) -> None:
        """Start a launcher that imports the script, for later workers.

        The present launcher has workers to look after.  And if the script left threads
        running there, the launcher could not fork any more.
        """
        if not self._config.fork:  # what would be imported first has threads
            return
        config = self._config._replace(script=main_script())
        try:
            coming = self._find(config)
        except (LaunchError, OSError):
            # Descriptors or processes may be scarce just now.  Until then each worker imports it.
            self._later = self._loop.call_later(_AGAIN, self._prepare)
            return
        if coming is self._process:  # the script is left to the workers
            coming.users -= 1
            return
        self._others.append(coming)
        coming.ready.add_done_callback(lambda _: self._change(coming))

    def _change(self, coming: LauncherProcess) -> None:
        before = self._process
        if coming.ready.exception() is not None:
            coming.abort()
        elif before is not None and not before.lost:
            self._others.remove(coming)
            self._others.append(before)
            self._process, self._config = coming, coming.config


def _without(config: LauncherConfig, left: Collection[str]) -> LauncherConfig:
    """Return *config* for workers that import these modules themselves."""
    if BEFORE_IMPORTS in left:
        return config._replace(fork=False, preload=(), script=None)
    return config._replace(
        preload=tuple(name for name in config.preload if name not in left),
        script=None if SCRIPT in left else config.script,
    )


def _inheritance() -> tuple[object, ...]:
    """Return all that a child process inherits from this one, and its own children too."""
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return (
        tuple(os.environ.items()),
        (os.getuid(), os.geteuid(), os.getgid(), os.getegid(), *os.getgroups()),
        umask_and_ignored(),
        _unless_refused(os.getpriority, os.PRIO_PROCESS, 0),
        frozenset(usable_cores()),
        *(_unless_refused(resource.getrlimit, getattr(resource, it)) for it in limits),
    )


def _unless_refused(ask: Callable[..., object], *about: int) -> object:
    """Return an answer, or nothing if a sandbox refuses it; then all pools have the same."""
    try:
        return ask(*about)
    except OSError:
        return None


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

    Raises:
        LaunchError: If it cannot be started.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: LauncherConfig, known: set[str]
    ) -> None:
        self._loop = loop
        self.users, self.shared = 0, ""
        self.ready: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.lost = self._ends = self._died = False
        self._room = asyncio.Semaphore(_MOST_REQUESTS)
        self.asked_at: float | None = loop.time()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._next_request = 0
        self._processes: dict[int, Process] = {}
        self.config = config
        self._known = known
        self._decoder = FrameDecoder(max_payload=_MAX_REPORT)
        self._stacks: bytes | None = None  # what it has written of them
        packed = config.pack()
        self._report_start = len(packed)
        self._socket, theirs = socket_pair()
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(self._socket.close)
            # Behind its configuration it writes what it imports, and its stacks if it dies of that.
            self._report = undo.enter_context(_memory_file(packed))
            fds = self._report.fileno(), theirs.fileno()
            try:
                new = NewLauncher(*fds, config)
            except OSError as error:
                text, final = str(error), cannot_succeed(error, fixed=True)
                raise LaunchError(
                    f"the launcher cannot be started: {text}", final=final
                ) from error
            undo.pop_all()
        self.ready.add_done_callback(lambda _: self._report.close())
        self._new: NewLauncher | None = new
        self._popen = new.popen
        self._patience: asyncio.TimerHandle | None = None
        if new.patience is not None:
            what = f"it has said nothing for {new.patience} s"
            self._patience = loop.call_later(new.patience, self._died_early, what)
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self._read_some)

    async def launch(self, fds: list[int], variables: Variables = ()) -> Process:
        """Start a worker on *fds*; see :meth:`Launcher.launch`."""
        async with self._room:
            await shielded(self.ready)
            answer = self._ask(FrameKind.LAUNCH, pack_environment(variables), fds)
            if self.asked_at is None:
                self.asked_at = self._loop.time()
            try:
                process: Process = await answer
            except asyncio.CancelledError:
                if answer.done() and not (answer.cancelled() or answer.exception()):
                    self._disown(answer.result())  # both in one turn of the loop
                raise
            return process

    async def sweep(self) -> None:
        """Wait until nothing is left of dead or unwanted workers."""
        # The launcher may end, or hang.
        with contextlib.suppress(LaunchError, TimeoutError):
            async with asyncio.timeout(_END_GRACE):
                while not self.lost and self.ready.done():
                    await asyncio.shield(self._ask(FrameKind.SWEEP))
                    if not any(it.unwanted for it in self._processes.values()):
                        break

    def _ask(
        self, kind: FrameKind, payload: bytes = b"", fds: Collection[int] = ()
    ) -> asyncio.Future[Any]:
        """Send a request; return what becomes of it."""
        self._next_request += 1
        number = self._next_request
        data = header(kind, len(payload), number) + payload
        try:
            # The rest cannot wait: other requests may follow.
            if socket.send_fds(self._socket, [data], [*fds]) < len(data):
                raise OSError("its socket is full")  # noqa: TRY301 - as if it did not listen
        except OSError as error:
            failure = LaunchError(f"the launcher does not listen: {error}")
            self.abort(failure)
            raise failure from error
        answer = self._requests[number] = self._loop.create_future()
        answer.add_done_callback(lambda _: self._requests.pop(number, None))
        return answer

    def abort(self, error: LaunchError | None = None) -> None:
        """Kill the process; whoever waits for it gets *error*."""
        self._popen.kill()
        self._lose(error or LaunchError("the launcher was killed"))

    async def abort_late(self) -> LaunchError:
        """Kill the process, which has not answered in time; return what it does instead.

        Cancellation:
            Kills it.
        """
        error = LaunchError("the launcher did not answer within start_timeout")
        try:
            if self._new is not None:
                error = self._new.fault("it does not answer within start_timeout")
            elif not (self.ready.done() or self.lost):
                self._stacks = self._stacks or b""
                self._popen.send_signal(STACKS)
                for _ in range(_LOOKS):
                    before = self._stacks
                    await asyncio.sleep(_NEXT_LOOK)
                    if are_whole(self._stacks, before):
                        break
                error = LaunchError(
                    "the launcher did not import within start_timeout what workers share",
                    trace=tidy(self._stacks.decode(errors="replace")),
                )
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
        if not data:
            self._at_end()
        elif self._stacks is not None:
            self._stacks += data
        else:
            try:
                if truncated:  # some descriptors are lost, and nobody knows which
                    _close_all(fds)
                self._take(data, fds)
            except LaunchError as error:
                self.abort(error)
            except ProtocolError as error:
                self.abort(LaunchError(str(error)))
            _close_all(fds)  # those that no frame has taken

    def _at_end(self) -> None:
        asked = self._ends or self._stacks is not None
        if asked or self.ready.done():
            self._died = not asked
            self._lose(LaunchError("the launcher's process ended"))
            return
        # The kernel closes the channel first, and a moment later the process has a status.
        self._loop.remove_reader(self._socket.fileno())
        self._when_ended(lambda: self._died_early("it has closed its channel"))

    def _take(self, data: bytes, fds: list[int]) -> None:
        if self._new is not None:
            rest = self._new.hear(data)
            if rest is None:
                return
            data, self._new = rest, None
            if self._patience is not None:
                self._patience.cancel()
        self.asked_at = None
        for frame in self._decoder.feed(data):
            self._hear(frame, fds)

    def _hear(self, frame: Frame, fds: list[int]) -> None:
        answer = self._requests.get(frame.job)
        match frame.kind:
            case FrameKind.HELLO:
                lost, shared = json.loads(frame.payload)
                self.shared = printable_lines(shared)
                if lost:
                    self._share([Thread(*row) for row in lost])
                if not self.ready.done():
                    self.ready.set_result(None)
            case FrameKind.SWEPT if answer is not None and not answer.done():
                answer.set_result(None)
            case FrameKind.LAUNCHED:
                pid, held = unpack_pid(frame.payload)
                # A read ends behind the bytes that a descriptor came with.  So if this frame
                # brings a descriptor, it is the only one here.
                process = Process(self._loop, pid, fds.pop() if held and fds else None)
                self._processes[pid] = process
                if answer is not None and not answer.done():
                    answer.set_result(process)
                else:
                    self._disown(process)
            case FrameKind.EXITED:
                pid, status, cpu = unpack_exit(frame.payload)
                if (ended := self._processes.pop(pid, None)) is not None:
                    ended.ended(status, cpu=cpu / 1e6)
                    if ended.unwanted:
                        ended.close()
            case FrameKind.FAILED:
                failure = Failure.unpack(frame.payload)
                error = LaunchError(
                    printable_lines(failure.summary),
                    trace=failure.text,
                    final=failure.final,
                    again=failure.stage == "script",
                )
                if error.again:
                    # Workers import the script themselves then, and say why it fails.
                    self._known.add(SCRIPT)
                if failure.stage in {"preload", "script"}:
                    raise error
                if answer is not None:
                    fail_quietly(answer, error)
            case _:
                raise ProtocolError(f"the launcher sent {frame.kind.name}")

    def _share(self, lost: list[Thread]) -> None:
        """Decide what becomes of a launcher in which a fork would lose threads.

        Raises:
            LaunchError: If it is of no use.
        """
        sandboxed = self.config.namespaces is not None
        sharing = share(lost, sandboxed=sandboxed)
        modules = ", ".join(dict.fromkeys(thread.origin for thread in lost))
        threads = ", ".join(thread.name for thread in lost)
        if sharing.text and (sandboxed, modules, threads) not in _told:
            _told.add((sandboxed, modules, threads))
            extra = {"modules": modules, "threads": threads}
            say.NOT_SHARED.log(_LOGGER, extra, text=sharing.text)
        self._known.update(sharing.left)
        if sharing.refused or sharing.left:
            again = not sharing.refused
            raise LaunchError(sharing.refused, final=True, again=again)

    def _disown(self, process: Process) -> None:
        """End a worker whose caller has left: it has closed the channels, but this is sooner."""
        if self._processes.get(process.pid) is not process:  # it has ended
            process.close()
            return
        process.unwanted = True
        process.signal(signal.SIGKILL)

    def _died_early(self, what: str) -> None:
        """Give up a process that was never ready; say *what* it does if it has not ended."""
        if self.lost:
            return
        ended = _end_of(self._popen) or what
        self.abort(self._death(ended) if self._new is None else self._new.fault(ended))

    def _death(self, ended: str) -> LaunchError:
        """Return the error of a process that imported what workers share, and has *ended* so."""
        written = os.pread(self._report.fileno(), _MAX_REPORT, self._report_start)
        names, fatal, stacks = written.decode(errors="replace").partition(
            "Fatal Python"
        )
        module = names.rpartition("\0")[2].strip()
        what = "the script" if module == SCRIPT else module
        step = f" while it imported {what}" if module else ""
        # Python also lists the extension modules.
        heading, _, stacks = stacks.partition("\nExtension modules:")[0].partition("\n")
        # It is 0 also if another library has reaped the process, or the kernel.
        status = self._popen.poll() or None
        again = status is not None and (status > 0 or -status in _FAULTS)
        return LaunchError(
            printable_lines(f"the launcher died{step}: {ended}"),
            trace=f"{fatal}{heading}\n{tidy(stacks)}" if fatal else "",
            status=status,
            final=bool(module) and again,
        )

    def _lose(self, error: LaunchError) -> None:
        if self.lost:
            return
        self.lost = True
        if self._patience is not None:
            self._patience.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for waiting in (self.ready, *self._requests.values()):
            fail_quietly(waiting, error)
        for process in self._processes.values():
            process.launcher_gone()
            if process.unwanted:
                process.close()
        self._processes.clear()
        # Its channel ends when the launcher does.  So it ends at once, unless it sleeps in the
        # kernel.  And if another library has reaped it already, it has ended too.
        self._when_ended(self._is_gone)

    def _when_ended(self, act: Callable[[], None], wait: float = _FIRST_LOOK) -> None:
        """Call *act* when the process has ended, or has not for seconds."""
        if self._popen.poll() is None and wait < _LAST_LOOK:
            self._loop.call_later(wait, self._when_ended, act, 2 * wait)
        else:
            act()

    def _is_gone(self) -> None:
        if self._died:
            reason = self._popen.poll() and _end_of(self._popen)
            extra = {
                "pid": self._popen.pid,
                "reason": reason or "its process has ended",
            }
            say.LAUNCHER_LOST.log(_LOGGER, extra)
        self.gone.set_result(None)


class Process:
    """A process that the launcher has started, and whose end the launcher will report.

    Args:
        loop: The loop that watches for its end.
        pid: Its number.
        pidfd: A descriptor that stands for the process, owned by this object, or ``None``.

    Attributes:
        pid: As above.
        cpu: Seconds of CPU time that it has used, once it has ended and if it is known.
        unwanted: Whether nobody waits for it, since its caller has left.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pid: int, pidfd: int | None
    ) -> None:
        self._loop = loop
        self.pid = pid
        self.cpu = 0.0
        self.unwanted = False
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


def _memory_file(content: bytes) -> FileIO:
    """Return a file without a name that has this content, and is at its end."""
    try:
        file = FileIO(os.memfd_create("asyncpool-launcher"), "rb+")
    except (AttributeError, OSError):  # no Linux, or a sandbox
        import tempfile  # noqa: PLC0415 - it takes some ms

        with tempfile.TemporaryFile(buffering=0) as temporary:
            file = FileIO(os.dup(temporary.fileno()), "rb+")
    file.write(content)
    return file


def _end_of(popen: subprocess.Popen[bytes]) -> str:
    """Return how a process has ended; empty if it has not."""
    status = popen.poll()
    if status is None:
        return ""
    if status < 0:
        return f"signal {signal_name(-status).removeprefix('signal ')} ended it"
    return f"it ended with exit status {status}"


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
