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
import errno
import json
import math
import os
import pickle
import re
import shlex
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from asyncpool._core import log_messages as say
from asyncpool._engine import machine
from asyncpool._engine.life_log import LOGGER
from asyncpool._engine.loop import Alarm, call_in, fail_quietly, shielded
from asyncpool._wire import messages, posix, scripts
from asyncpool._wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._wire.messages import SCRIPT, LauncherConfig, Thread, Variables
from asyncpool._wire.text import printable, printable_block, printable_text
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._engine.options import EngineConfig

_MAX_REPORT = 1 << 20

# Seconds that the launcher has to report an end that the pidfd has shown already.
_REPORT_GRACE = 0.5

# Seconds that the launcher has to kill what is left of its workers, and to end.
_END_GRACE = 2.0

# Seconds until the first look whether a lost launcher has ended; each wait is twice the last one.
_FIRST_LOOK = 0.0005
_LAST_LOOK = 4.0

# How often the pool polls for the stacks of a launcher that still imports, and the seconds between.
_STACK_POLLS = 30
_NEXT_POLL = 0.01

# The signals that an import brings upon itself; SIGKILL often comes for lack of memory.
_FAULTS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGBUS, signal.SIGFPE}

# More requests than this at once would fill the launcher's socket.
_MOST_REQUESTS = 16


# Seconds in which an executable that may be anything has to show that it is a Python.
_PATIENCE = 10

_LONGEST = 1000

# What the kernel says of a file that is no program.
_UNUSABLE = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.ELOOP}

# A launcher first says which Python it is: another one may not even understand what follows.
_GREET = (
    "import os, sys; k = [sys.implementation.cache_tag + 't' * ('t' in sys.abiflags), "
    "ascii(os.path.realpath(os.path.dirname(os.__file__)))]; "
    "s = k[0] + ' ' + sys.version.split()[0] + ' in ' + k[1] + '\\n'; "
    "os.write(int(sys.argv[-1]), s.encode()); k == %r or sys.exit(1); "
)

# What workers do not share is said once.
_told: set[tuple[bool, str, str]] = set()
_CURE = (
    "have them started again after a fork (os.register_at_fork), or by the initializer"
)

# The references are weak: if a loop is dropped with its pools, their launchers go with it.
_launchers = WeakValueDictionary[tuple[object, ...], "LauncherHandle"]()

# Seconds in which a script may be over, so that the pool need not prepare for later workers.
_SHORT_LIFE = 1.0

# Seconds until the pool tries again to start a launcher for later workers.
_NEXT_TRY = 10.0

# Seconds without an answer after which a launcher that others share counts as hung.
_SILENCE = 5.0


class LaunchError(Exception):
    """No worker could be started; the text says why.

    Attributes:
        trace: The traceback of the exception in the launcher, or its stacks when a signal ended it.
        status: The exit status of the launcher, if it has died of that and it is known.
        final: Whether another try would fail in the same way.
    """

    status: int | None = None

    def __init__(self, text: str, *, trace: str = "", final: bool = False) -> None:
        super().__init__(printable_text(text))
        self.trace, self.final = printable_block(trace), final


class Launcher:
    """Starts the workers of one pool.

    Args:
        loop: The pool's loop.
        pool: The options of the pool.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: EngineConfig) -> None:
        self._loop = loop
        confinement, imports = pool.confinement, pool.launcher_imports
        # If the pool has not sent anything of the script yet, it may never do so.
        script = machine.main_script() if imports and scripts.is_in_use() else None
        namespaces, env = None, None
        if confinement is not None:
            first = imports and confinement.script_first
            script = confinement.script if first else None
            namespaces, env = confinement.plan.namespaces, confinement.plan.env
        elif common := pool.worker_env.common:
            env = tuple({**os.environ, **dict(common)}.items())
        preload, path = pool.preload if imports else (), machine.working_folder()
        command, folder = machine.worker_command(), (path, machine.folder_at(path))
        modules, fork = machine.module_path(), pool.fork
        self._config = LauncherConfig(
            modules, fork, preload, command, script, namespaces, env, folder
        )
        self._launcher: LauncherHandle | None = None
        # With earlier ones, which have workers to look after.
        self._used: set[LauncherHandle] = set()
        self._later: asyncio.TimerHandle | None = None
        if imports and script is None and confinement is None:
            scripts.listeners.add(self._on_use)

    @property
    def shared(self) -> str:
        """What memory the workers share with each other, for people."""
        return "" if self._launcher is None else self._launcher.shared

    @property
    def has_imports(self) -> bool:
        """Whether workers begin with modules that were imported some time ago."""
        return bool(self._config.preload or self._config.script)

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
        path, led = self._config.folder
        if (leads := machine.folder_at(path)) not in {None, led}:  # to a new release
            self._config = self._config._replace(folder=(path, leads))
            self._launcher = None
        while not await shielded((launcher := self._present()).usable):
            pass  # the next one imports less
        return await launcher.launch(fds, variables)

    def begin(self) -> None:
        """Start the launcher's process: this one has imports of its own to do meanwhile."""
        # launch() tries again, and tells.
        with contextlib.suppress(LaunchError, OSError):
            self._present()

    async def on_start_timeout(self, error: LaunchError) -> LaunchError:
        """Kill the launcher, since a start took too long; return what it does instead, or *error*."""
        launcher = self._launcher
        return error if launcher is None else await launcher.on_start_timeout(error)

    async def close(self) -> None:
        """Wait until nothing is left of this pool's workers, nor of a launcher that it alone uses.

        Cancellation:
            Processes may be left when this returns.
        """
        scripts.listeners.discard(self._on_use)
        if self._later is not None:
            self._later.cancel()
        self._launcher = None
        while self._used:
            launcher = self._used.pop()
            launcher.users.remove(self)
            is_shared = launcher.users and not launcher.lost
            await (launcher.sweep() if is_shared else launcher.close())

    def _present(self) -> LauncherHandle:
        if self._launcher is None or self._launcher.lost:
            self._launcher = self._find(self._config)
            self._config = self._launcher.config
        return self._launcher

    def _find(self, config: LauncherConfig) -> LauncherHandle:
        """Return the launcher for *config*, without what it must leave to the workers."""
        inheritance = machine.inherited()
        # In a sandbox workers share what has threads, too; but not a script that fails.
        known = _left_to_workers(config.namespaces is None, config.env, inheritance)
        config = config._replace(
            preload=tuple(name for name in config.preload if name not in known),
            script=None if SCRIPT in known else config.script,
        )
        if messages.BEFORE_IMPORTS in known:
            config = config._replace(fork=False, preload=(), script=None)
        key = (id(self._loop), config, inheritance)
        launcher = _launchers.get(key)
        if launcher is None or launcher.lost or not launcher.users:
            launcher = _launchers[key] = LauncherHandle(self._loop, config, known)
        self._used = {it for it in self._used if not it.gone.done()} | {launcher}
        launcher.users.add(self)
        return launcher

    def _on_use(self) -> None:
        """Prepare for workers that need the script.  Any thread may call this."""
        call_in(self._loop, self._prepare_soon)

    def _prepare_soon(self) -> None:
        if self._launcher is None:
            # No launcher has started yet: the first one imports the script before it forks.
            self._config = self._config._replace(script=machine.main_script())
        elif self._later is None:
            self._later = self._loop.call_later(_SHORT_LIFE, self._prepare)

    def _prepare(self) -> None:
        """Start a launcher that imports the script, for later workers.

        The present launcher has workers to look after.  And if the script left threads
        running there, the launcher could not fork any more.
        """
        if not self._config.fork:  # what would be imported first has threads
            return
        try:
            coming = self._find(self._config._replace(script=machine.main_script()))
        except (LaunchError, OSError):
            # Descriptors or processes may be scarce just now.  Until then each worker imports it.
            self._later = self._loop.call_later(_NEXT_TRY, self._prepare)
        else:
            coming.usable.add_done_callback(lambda _: self._change(coming))

    def _change(self, coming: LauncherHandle) -> None:
        # It may have failed, or this pool may have closed meanwhile.
        of_use = coming.usable.exception() is None and coming.usable.result()
        if of_use and self._launcher is not None:
            self._launcher, self._config = coming, coming.config


@lru_cache(64)
def _left_to_workers(*_inherited: object) -> set[str]:
    """Return what launchers that inherit the same have to leave to their workers, see ``_share()``.

    The launcher that finds it out adds it, so that the next one need not.
    """
    return set()


class LauncherHandle:
    """One launcher process and the channel to it.

    Args:
        loop: The loop that watches the channel.
        config: What the process is to import and to inherit.
        known: The modules that are known to have threads which a fork loses; it adds to them.

    Attributes:
        config: As above.
        usable: Whether the process can start workers, once that is known: if not, another one can,
            which imports less.  It is failed if no launcher of these options ever will.
        gone: Done when the process has ended.  Also done if a lost process has not ended for
            seconds: it sleeps in the kernel, and the pool stops waiting for it.
        lost: Whether this launcher can be asked for nothing any more.
        users: The pools that get their workers from it; it ends with the last one.
        shared: What memory its workers share with each other, for people.

    Raises:
        LaunchError: If it cannot be started.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: LauncherConfig, known: set[str]
    ) -> None:
        self._loop, self.config, self._known = loop, config, known
        self.users, self.shared = set[Launcher](), ""
        self.usable: asyncio.Future[bool] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        # Whether it has shown that it is a launcher; and whether it is this process that ends it.
        self.lost = self._greeted = self._ends = False
        # Since when it owes an answer.
        self._asked_at = loop.time()
        self._room = asyncio.Semaphore(_MOST_REQUESTS)
        # What it was asked for and has not answered.  It answers one request after the other.
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._processes: dict[int, Process] = {}
        self._heard, self._decoder = b"", FrameDecoder(max_payload=_MAX_REPORT)
        packed = pickle.dumps(config)
        self._report_start = len(packed)
        self._socket, theirs = posix.socket_pair()
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(self._socket.close)
            # Behind its configuration it writes what it imports, and its stacks.
            self._report = undo.enter_context(_memory_file(packed))
            self._popen = self._start(self._report.fileno(), theirs.fileno())
            undo.pop_all()
        self.usable.add_done_callback(lambda _: self._report.close())
        if self._may_be_no_python and not self._frozen:
            loop.call_later(_PATIENCE, self._on_silence)
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self._read_some)

    def _start(self, file: int, channel: int) -> subprocess.Popen[bytes]:
        """Start the process on the file with its configuration and on its end of the channel."""
        fds, (folder, _) = [file, channel], self.config.folder
        variables = dict(os.environ if self.config.env is None else self.config.env)
        variables[posix.STARTS] = str(channel)
        shown = greets = self.config.command
        self._frozen = shown[-1] == posix.FROZEN
        if not self._frozen:
            shown, (code, root) = shown[:-2], shown[-2:]
            greets = *shown, _GREET % _kind(posix.greeting()) + code, root
        self._shown = f"{shlex.join(shown)} ..."
        # If stderr was closed, anything that the service has opened since may have its number.
        passes_on = machine.answer(os.get_inheritable, 2)
        is_python = re.match("python|pypy", Path(shown[0]).name)
        self._may_be_no_python = self._frozen or not is_python
        try:
            command = posix.command_line(greets, "launcher", (file, channel))
            if self._frozen:
                fds.append(int(command[-1].partition("=")[2]))
                # By these it knows that the files of the program are unpacked already.
                own = os.environ.items()
                variables |= {k: v for k, v in own if k.startswith("_PYI_")}
            return subprocess.Popen(  # noqa: S603 - our own interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if passes_on else subprocess.DEVNULL,
                pass_fds=fds,
                env=variables,
                cwd=folder if Path(folder).is_dir() else None,
                start_new_session=True,
            )
        except OSError as error:
            text = f"cannot be started: {error}"
            if error.errno in _UNUSABLE and error.filename != folder:
                raise self._fault(f"it {text}", final=True) from error
            final = messages.is_final(error, fixed=True)
            raise LaunchError(f"the launcher {text}", final=final) from error
        finally:
            for pipe in fds[2:]:
                os.close(pipe)

    def _fault(self, what: str, *, final: bool | None = None) -> LaunchError:
        """Return *what* is wrong with a process that does not become a launcher, and the way out.

        Args:
            what: It.
            final: Whether another try would come out the same; ``None`` for as far as one can know.
        """
        if final is None:
            # A Python may have had no time, on a busy machine; and SIGKILL may have come for lack
            # of memory.
            status = self._popen.poll()
            final = (
                self._may_be_no_python if status is None else status != -signal.SIGKILL
            )
        way_out = (
            "call multiprocessing.freeze_support() as the first thing under "
            "`if __name__ == '__main__':`"
            if self._frozen
            else "name a Python of this version by multiprocessing.set_executable()"
        )
        text = f"{self._shown} does not become the launcher of workers: {what}"
        return LaunchError(f"{text}; {way_out}", final=final)

    async def launch(self, fds: list[int], variables: Variables = ()) -> Process:
        """Start a worker on *fds*, once it is ready; see :meth:`Launcher.launch`."""
        async with self._room:
            payload = json.dumps(variables).encode()
            request = header(FrameKind.LAUNCH, len(payload)) + payload
            answer: asyncio.Future[Process] = self._ask(request, fds)
            self._asked_at = min(self._asked_at, self._loop.time())
            try:
                return await shielded(answer)
            except asyncio.CancelledError:
                answer.add_done_callback(_disown)
                raise

    async def sweep(self) -> None:
        """Wait until nothing is left of dead or unwanted workers."""
        # The launcher may end, or hang.
        with contextlib.suppress(LaunchError, TimeoutError):
            async with asyncio.timeout(_END_GRACE):
                while not self.lost and self.usable.done():
                    await shielded(self._ask(header(FrameKind.SWEEP, 0), []))
                    if not any(it.unwanted for it in self._processes.values()):
                        break

    def _ask(self, request: bytes, fds: list[int]) -> asyncio.Future[Any]:
        """Send a request; return what becomes of it."""
        try:
            # The rest cannot wait: other requests may follow.
            if socket.send_fds(self._socket, [request], fds) < len(request):
                raise OSError("its socket is full")  # noqa: TRY301 - as if it did not listen
        except OSError as error:
            failure = LaunchError(f"the launcher does not listen: {error}")
            self.abort(failure)
            raise failure from error
        answer = self._loop.create_future()
        self._asked.append(answer)
        return answer

    def abort(self, error: LaunchError | None = None) -> None:
        """Kill the process; whoever waits for it gets *error*."""
        self._ends = True
        self._popen.kill()
        self._fail(error or LaunchError("the launcher was killed"))
        self._lose()

    async def on_start_timeout(self, error: LaunchError) -> LaunchError:
        """Kill the process, since a start took too long; but not if it serves other pools.

        The pool may just have a short ``start_timeout``, or the machine may be busy for a moment.

        Returns:
            What it does instead, if that is known; else *error*.

        Cancellation:
            Kills it.
        """
        if len(self.users) > 1 and self._loop.time() - self._asked_at < _SILENCE:
            return error
        try:
            if not self._greeted:
                return self._fault("it does not answer within start_timeout")
            if self.usable.done() or self.lost:
                return error
            stacks = b""
            self._popen.send_signal(posix.STACKS_SIGNAL)
            for _ in range(_STACK_POLLS):
                await asyncio.sleep(_NEXT_POLL)
                if self.usable.done():
                    break
                before, stacks = stacks, self._written()[1]
                if messages.are_whole(stacks, before):
                    break
            return LaunchError(
                "the launcher did not import within start_timeout what workers share",
                trace=messages.tidy(printable_block(stacks)),
            )
        finally:
            self.abort()

    async def close(self) -> None:
        """End the process and wait until it has ended."""
        self._ends = True
        if not self.usable.done():
            self.abort()  # it still imports, and has no workers to look after
        with contextlib.suppress(OSError):  # it may be closed
            self._socket.shutdown(socket.SHUT_WR)
        try:
            await asyncio.wait((self.gone,), timeout=_END_GRACE)
        finally:
            if not self.gone.done():
                self.abort()
        await asyncio.shield(self.gone)

    def _read_some(self) -> None:
        fds: list[int] = []
        try:
            data, fds, _ = posix.receive_fds(self._socket, 65536, 1)
            if not data:
                self._lose()
            elif not self._greeted:
                data = self._after_greeting(data)
            for frame in self._decoder.feed(data):
                self._hear(frame, fds)
        except BlockingIOError:
            pass
        except OSError:
            self._lose()
        except LaunchError as error:
            self.abort(error)
        except (ProtocolError, ValueError, TypeError) as error:
            self.abort(LaunchError(str(error)))
        for fd in fds:  # that no frame has taken
            os.close(fd)

    def _after_greeting(self, data: bytes) -> bytes:
        """Return what of *data* comes after the first line of what it says.

        Raises:
            LaunchError: If it is no launcher; the text says what it is.
        """
        self._heard += data
        line, end, rest = self._heard.partition(b"\n")
        if not end and len(line) < _LONGEST:
            return b""
        said, due = _kind(line), _kind(posix.greeting())
        # Some frozen programs unpack their library anew for each process.
        if said == due or (self._frozen and said[0] == due[0]):
            self._greeted = True
            return rest
        what = "it runs the program again, which has started a pool in turn"
        if line != posix.REFUSAL.strip():
            own = printable(posix.greeting().strip())
            what = f"it is {printable(line, 500)}, and this process is {own}"
        raise self._fault(what, final=True)

    def _on_silence(self) -> None:
        if not (self._greeted or self.lost):
            silent = f"it has said nothing for {_PATIENCE} s"
            self.abort(self._fault(self._how_it_ended() or silent))

    def _hear(self, frame: Frame, fds: list[int]) -> None:
        self._asked_at = math.inf
        match frame.kind:
            case FrameKind.HELLO if not self.usable.done():
                threads, shared = json.loads(frame.payload)
                self.shared = printable(shared)
                if not threads or self._share([Thread(*row) for row in threads]):
                    self.usable.set_result(True)
            case FrameKind.SWEPT if self._asked:
                self._asked.popleft().set_result(None)
            case FrameKind.LAUNCHED if self._asked:
                pid, held = json.loads(frame.payload)
                # A read ends behind the bytes that a descriptor came with.  So if this frame
                # brings a descriptor, it is the only one here.
                process = Process(self._loop, pid, fds.pop() if held and fds else None)
                self._processes[pid] = process
                self._asked.popleft().set_result(process)
            case FrameKind.EXITED:
                pid, status, cpu = json.loads(frame.payload)
                if (gone := self._processes.pop(pid, None)) is not None:
                    gone.note_end(status, cpu=cpu / 1e6)
            case FrameKind.FAILED:
                stage, text, trace, final = messages.Failure.unpack(frame.payload)
                error = LaunchError(text, trace=trace, final=final)
                if stage == "script" and not self.usable.done():
                    self._leave_to_workers([SCRIPT])  # and they say why it fails
                elif stage == "fork" and self._asked:
                    fail_quietly(self._asked.popleft(), error)
                else:
                    raise error
            case _:
                raise ProtocolError(f"the launcher sent {frame.kind.name}")

    def _share(self, lost: list[Thread]) -> bool:
        """Decide what workers share with this launcher, in which a fork would lose threads.

        A fork copies the memory of the launcher, but only the thread that forks.  So what has
        threads there is one of three things:

        * *Whole after a fork.*  Its library ends the threads before each fork (OpenBLAS, Datadog's
          tracer) or starts them again in the copy (OpenTelemetry's exporters, debugpy).  A trial
          fork shows that.  Or the copy can do without them: allocators only tidy up in theirs.
          Workers share it, and *lost* does not have its threads.
        * *Not whole.*  A pool of threads, or an exporter that knows nothing of forks.  In a copy, a
          job that needs it would wait for ever.  So another launcher leaves that module to the
          workers, which import it after the fork; and if the threads are older than all imports,
          each worker is an interpreter of its own, in which they start as in any program.
        * *Not whole, in a sandbox.*  There a worker cannot import it: the sandbox holds for one
          thread only.  So a worker has the module without its native threads.  A thread of Python's
          is code of the module that would be missing there, so that is refused.

        Returns:
            Whether workers can be forked from it.

        Raises:
            LaunchError: If none can be forked from any.
        """
        sandboxed = self.config.namespaces is not None
        names = printable(", ".join(dict.fromkeys(thread.name for thread in lost)))
        origins = {thread.origin: thread.seconds for thread in lost}
        modules = ", ".join(
            "the script" if it == SCRIPT else printable(it) for it in origins if it
        )
        needed = [it for it in lost if it.origin and not it.native]
        if sandboxed and needed:
            raise LaunchError(messages.threads_outside(needed), final=True)
        if sandboxed:
            text = (
                f"workers in the sandbox have {modules} without its threads ({names}): a job that "
                "needs those waits for ever, so give jobs a timeout"
            )
        elif messages.BEFORE_IMPORTS in origins:
            text = (
                "each worker is an interpreter of its own and shares no import, since threads that "
                f"are older than any import ({names}) would be missing in a fork: they come from a "
                f"sitecustomize, a .pth file or what runs the program; {_CURE}"
            )
        else:
            text = (
                f"each worker imports {modules} itself, since threads that come with it ({names}) "
                f"would be missing in a fork: each start takes some {sum(origins.values()):.2g} s "
                f"longer, and workers share none of that memory; {_CURE}"
            )
        told = sandboxed, modules, names
        if told not in _told and (modules or not sandboxed):
            _told.add(told)
            threads = printable(", ".join(thread.name for thread in lost))
            extra = {"modules": printable(", ".join(origins)), "threads": threads}
            say.NOT_SHARED.log(LOGGER, extra, text=text)
        if not sandboxed:
            self._leave_to_workers(origins)
        return sandboxed

    def _leave_to_workers(self, modules: Iterable[str]) -> None:
        """End this process: the next launcher imports none of these modules."""
        self._known.update(modules)
        self.usable.set_result(False)
        self.abort()

    def _death(self, ended: str) -> LaunchError:
        """Return the error of a process that imported what workers share, and has *ended* so."""
        module, written = self._written()
        _, fatal, stacks = printable_block(written).partition("Fatal Python")
        what = "the script" if module == SCRIPT else module
        step = f" while it imported {what}" if module else ""
        # Python also lists the extension modules.
        heading, _, stacks = stacks.partition("\nExtension modules:")[0].partition("\n")
        # It is also 0 if a library, or the kernel, has reaped the process before us.
        status = self._popen.poll() or None
        again = status is not None and (status > 0 or -status in _FAULTS)
        trace = f"{fatal}{heading}\n{messages.tidy(stacks)}" if fatal else ""
        text, final = f"the launcher died{step}: {ended}", bool(module) and again
        error = LaunchError(text, trace=trace, final=final)
        error.status = status
        return error

    def _written(self) -> tuple[str, bytes]:
        """Return which module it imports, if any, and what it has written beside such notes."""
        written = os.pread(self._report.fileno(), _MAX_REPORT, self._report_start)
        *_, module = [b"", *re.findall(rb"\0(.*)\n", written)]
        return printable(module), re.sub(rb"\0.*\n", b"", written)

    def _lose(self) -> None:
        """Ask the process for nothing more."""
        if not self.lost:
            self.lost = True
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._bury()

    def _bury(self, wait: float = _FIRST_LOOK) -> None:
        """Tell everybody, as soon as the process has ended, or if it has not for seconds.

        It ends at once, as its channel does, unless it is no launcher, or sleeps in the kernel.
        And if another library has reaped it already, it has ended too.
        """
        # The kernel closes the channel first, and a moment later the process has a status.
        if self._popen.poll() is None and wait < _LAST_LOOK:
            self._loop.call_later(wait, self._bury, 2 * wait)
            return
        self._popen.kill()
        ended = self._how_it_ended()
        if not self.usable.done():
            ended = ended or "it has closed its channel"
            self._fail(self._death(ended) if self._greeted else self._fault(ended))
        elif not self._ends:
            # Nobody knows the status that another library has taken; it looks like 0.
            reason = (self._popen.poll() and ended) or "its process has ended"
            say.LAUNCHER_LOST.log(LOGGER, {"pid": self._popen.pid, "reason": reason})
        self._fail(LaunchError("the launcher's process ended"))
        for process in self._processes.values():
            process.launcher_gone()
        self._processes.clear()
        self.gone.set_result(None)

    def _fail(self, error: LaunchError) -> None:
        for waiting in (self.usable, *self._asked):
            fail_quietly(waiting, error)

    def _how_it_ended(self) -> str:
        """Say how the process has ended; empty if it has not."""
        status = self._popen.poll()
        if status is None:
            return ""
        if status < 0:
            name = posix.signal_name(-status).removeprefix("signal ")
            return f"signal {name} ended it"
        return f"it ended with exit status {status}"


def _disown(answer: asyncio.Future[Process]) -> None:
    """End a worker whose caller has left: it has closed the channels, but this is sooner."""
    if answer.exception() is None:
        process = answer.result()
        process.unwanted = True
        process.signal(signal.SIGKILL)
        process.close()


def _kind(line: bytes) -> list[str]:
    """Return what has to be the same: the version, and the folder of the standard library."""
    return printable(line.rstrip()).split(" ", 3)[::3]


class Process:
    """A process that the launcher has started, and whose end the launcher will report.

    Args:
        loop: The loop that watches for its end.
        pid: Its number.
        pidfd: A descriptor that stands for the process, owned by this object, or ``None``.

    Attributes:
        pid: As above.
        cpu: Seconds of CPU time that it has used, once it has ended and if it is known.
        ended: Done when it has ended.  The result is its exit status, which is negative if a
            signal with that number has ended it, and ``None`` if it is not known.
        unwanted: Whether nobody waits for it, since its caller has left.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pid: int, pidfd: int | None
    ) -> None:
        self._loop, self.pid, self._pidfd = loop, pid, pidfd
        self.cpu, self.unwanted, self._has_launcher = 0.0, False, True
        self.ended: asyncio.Future[int | None] = loop.create_future()
        self._alarm = Alarm(loop, lambda _: self._ended_unreported())
        if pidfd is not None:
            loop.add_reader(pidfd, self._on_pidfd, pidfd)

    def note_end(self, status: int | None, *, cpu: float = 0.0) -> None:
        """Note the exit status and the CPU time of the process, which has ended."""
        self._alarm.cancel()
        if not self.ended.done():
            self.cpu = cpu
            self.ended.set_result(status)

    def launcher_gone(self) -> None:
        """Watch the process without the launcher, which is gone.

        Without a pidfd nothing would show the end of the process.  So it is killed now.
        """
        self._has_launcher = False
        if self._pidfd is None:
            self.signal(signal.SIGKILL)
            self.note_end(None)
        elif self._alarm.is_set:
            self._ended_unreported()

    def signal(self, number: int) -> None:
        """Send the process a signal, if it is still there."""
        if self.ended.done():
            return
        try:
            self._send(number)
        except ProcessLookupError:
            pass  # the process has just ended
        except OSError as error:
            extra = {"pid": self.pid, "signal": int(number)}
            say.SIGNAL_NOT_SENT.log(LOGGER, extra, why=error)

    def close(self) -> None:
        """Close the pidfd."""
        self.note_end(None)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _send(self, number: int) -> None:
        if self._pidfd is not None:
            try:
                return signal.pidfd_send_signal(self._pidfd, number)
            except OSError as error:
                # The number is still that of this process: the launcher has not reaped it.
                instead = "workers are signalled by number"
                machine.tell_refusal("pidfd_send_signal", error, instead)
        return os.kill(self.pid, number)

    def _on_pidfd(self, pidfd: int) -> None:
        # The launcher reports the exit status and more, but it may be stopped, or dead.
        self._loop.remove_reader(pidfd)
        if not self.ended.done():
            self._alarm.set_in(_REPORT_GRACE if self._has_launcher else 0.0)

    def _ended_unreported(self) -> None:
        # Without a launcher the system collects the process, sooner or later than this.
        status = machine.status_of_zombie(self.pid) if self._has_launcher else None
        # The launcher would have killed the rest of the group.  The kernel has hardly given
        # the number to another process by now.
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        self.note_end(status)


def _memory_file(content: bytes) -> FileIO:
    """Return a file without a name that has this content, and is at its end."""
    try:
        file = FileIO(os.memfd_create("asyncpool-launcher"), "rb+")
    except (AttributeError, OSError):  # no Linux, or a sandbox
        import tempfile  # noqa: PLC0415 - it takes some ms

        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    file.write(content)
    return file
