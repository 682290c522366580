"""The launcher's process: it starts workers, reports their ends, cleans up.

Pools of one event loop share a launcher if they preload the same modules.  It imports once what
all workers need, so a worker costs a millisecond.  It never runs user code, except preloaded
modules and a script that it imports.  It has one thread, so it can fork, or only threads that a
fork does not lose (``_engine/launcher.py``).  With
``launcher="spawn"`` a fresh interpreter replaces each fork, and everything else is the same.

When its channel or its parent ends, it kills all workers and all of their descendants, even
in the middle of a job that holds the GIL.

The launcher is the parent of all workers, and adopts their descendants that lose their own
parents.  So it collects those too when they end, and no worker gathers zombies, or has to tell the
children of its jobs from the orphans.

Each worker has a mark, which its descendants inherit, whatever they do: the soft limit of
RLIMIT_LOCKS, which Linux has kept for each process since version 2.4 and has heeded in none.
An adopted process with the mark of a living worker is left alone.  One with the mark of a dead
worker is killed.  One that has taken off its mark (``su`` may) may be any worker's, and is
killed when the next worker ends.

The launcher kills a worker's process group before it collects the worker, because until then
the kernel cannot give the pid to another process.  Where there are no marks, each worker adopts
its orphans itself, and what becomes the launcher's was left by a dead worker.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import pickle
import resource
import select
import signal
import socket
import sys
import time
import traceback

from asyncpool._wire import posix, scripts
from asyncpool._wire.frames import FrameDecoder, FrameKind, header
from asyncpool._wire.messages import SCRIPT, Failure, LauncherConfig, is_final
from asyncpool._worker import process

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import NoReturn
else:
    import _signal  # the C part of signal, see _worker/__init__.py

# Job channel, control channel, page, stdout, stderr.
FDS_PER_WORKER = 5

_MAX_REQUEST = 1 << 20

# The longest wait for a process, in seconds: one in an uninterruptible sleep does not end.
_PATIENCE = 5.0

_RLIMIT_LOCKS = 10

# The marks of one launcher follow on a random number, so that those of a launcher in a job differ.
_MOST_MARKS = 1 << 24

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_PROC = "/proc"


def main(file: int, channel_fd: int) -> NoReturn:
    """Serve the pool at the other end of *channel_fd* until it is gone.

    Args:
        file: It begins with the configuration.  What this process imports, and its stacks if it
            dies of that or takes too long, come after it.
        channel_fd: The channel.
    """
    reaper, status = Reaper(), 0
    worker: tuple[int, ...] = ()
    # Keep the socket to the end: collecting an open one would cause a warning.
    channel = posix.socket_of(channel_fd)
    try:
        LauncherProcess(channel, file, reaper).run()
    except _Forked as forked:
        worker = forked.args
    except (OSError, SystemExit):
        pass  # the pool's process is gone, or this one must go
    except BaseException:
        traceback.print_exc()
        status = 1
    if not worker:
        reaper.end_all()
        os._exit(status)
    # After everything of the launcher is freed, which takes up to 0.9 ms.
    process.work(*worker)


class _Forked(BaseException):
    """Raised in a forked process with what it works with, to leave the launcher's loop and objects."""


class LauncherProcess:
    """The loop of the launcher's process."""

    def __init__(self, channel: socket.socket, file: int, reaper: Reaper) -> None:
        self._channel, self._file, self._reaper = channel, file, reaper
        self._decoder = FrameDecoder(max_payload=_MAX_REQUEST)
        packed = os.pread(file, os.fstat(file).st_size, 0)
        self._config: LauncherConfig = pickle.loads(packed)
        self._wake_out, self._wake_in = os.pipe()
        self._serving = True
        self._parent = os.getppid()

    def run(self) -> None:
        """Import what workers share, answer requests and report ends, until the pool is gone."""
        os.set_blocking(self._wake_in, False)
        signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        # Out of the main loop, and into the clean-up.
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # The service may block signals in the thread that started the pool.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        adopt_orphans()
        # The end of the channel says the same, unless somebody has forked the pool's process:
        # then the fork keeps the channel open.  It is the end of the thread that started this.
        process.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        try:
            self._send(*self._import())
            poll = select.poll()
            poll.register(self._channel, select.POLLIN)
            poll.register(self._wake_out, select.POLLIN)
            while True:
                for fd, _ in poll.poll():
                    if fd == self._wake_out:
                        os.read(self._wake_out, 4096)
                        self._report(self._reaper.reap())
                    elif not self._answer():
                        return
        finally:
            # A SIGTERM may come with the end of the channel, and must not break off
            # the clean-up.
            self._serving = False

    def _on_sigterm(self, *_: object) -> None:
        # A service manager sends SIGTERM to all processes of the service.  The launcher
        # ignores it: the service finishes its jobs first, and then closes the channel.
        if self._serving and os.getppid() != self._parent:
            sys.exit(0)

    def _import(self) -> tuple[FrameKind, bytes]:
        """Import what workers share; return what to tell the pool."""
        config = self._config
        sys.path[:] = config.sys_path
        sys.argv[:] = [""]
        process.load_title()
        process.show("pool-launcher", "launcher")
        faulthandler.enable(self._file)
        # The pool asks where this is, if it takes too long.
        faulthandler.register(posix.STACKS_SIGNAL, self._file)
        preloading = process.Preloading()
        for name in config.preload:
            try:
                self._note(name)
                known = {*sys.modules}
                with preloading.step(name):
                    importlib.import_module(name)
                    if scripts.LAZY is not None:
                        _use_lazy_imports(known)
            except BaseException as error:
                summary = f"{name!r} cannot be preloaded: {error!r}"
                text, final = traceback.format_exc(), is_final(error, fixed=True)
                return FrameKind.FAILED, Failure("preload", summary, text, final).pack()
        if config.namespaces is not None:
            from asyncpool._sandbox.entering import warm_up  # noqa: PLC0415 - few need it

            warm_up()
        if config.script is not None:
            process.install_script(config.script)
            self._note(SCRIPT)
            with preloading.step(SCRIPT):
                failed = process.load_script()
            if failed:  # the next launcher leaves it to the workers
                return FrameKind.FAILED, Failure("script", failed).pack()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # it may be anything by now
                stream.flush()  # else every worker would print what is left in it
        if "logging" in sys.modules:  # workers will need it, and can share it
            importlib.import_module("asyncpool._worker.log_handler")
        self._note("")
        with contextlib.suppress(RuntimeError, OSError):  # there may be no stderr
            faulthandler.enable()
        faulthandler.unregister(posix.STACKS_SIGNAL)
        # In a worker too, until it has a handler.
        signal.signal(posix.STACKS_SIGNAL, signal.SIG_IGN)
        os.close(self._file)
        shared = ""
        plain = config.fork and config.namespaces is None
        if plain and b"w-s " in posix.read("/proc/self/maps"):
            from asyncpool._sandbox.leftovers import shared_memory  # noqa: PLC0415 - few need it

            shared = shared_memory()
        gc.collect()
        gc.freeze()  # else the first collection of each worker copies every page
        lost = preloading.left(whole=True) if config.fork else []
        return FrameKind.HELLO, json.dumps([lost, shared]).encode()

    def _note(self, name: str) -> None:
        """Note what is imported now: the process may die of it."""
        os.write(self._file, f"\0{name}\n".encode())

    def _answer(self) -> bool:
        data, fds, _ = posix.receive_fds(self._channel, 65536, FDS_PER_WORKER)
        for frame in self._decoder.feed(data):
            if frame.kind is FrameKind.SWEEP:
                self._report(self._reaper.sweep())
                self._send(FrameKind.SWEPT, b"")
            else:
                # The kernel ends a read after bytes that came with descriptors, so
                # these descriptors belong to this request.
                self._launch(dict(json.loads(frame.payload)), fds)
                fds = []
        return bool(data)

    def _launch(self, variables: Mapping[str, str], fds: list[int]) -> None:
        """Fork a worker that gets *fds*; *variables* are for a fresh interpreter."""
        try:
            if len(fds) != FDS_PER_WORKER:  # the kernel drops those that find no room
                raise OSError("the launcher may open no more descriptors")  # noqa: TRY301 - as if it may not fork
            # A SIGTERM meant for the new worker must not run the launcher's handler in it;
            # it waits until the worker has let go of that.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
            try:
                with process.forking():
                    pid = self._reaper.fork()
                    if pid == 0:
                        raise _Forked(*self._become_worker(variables, fds))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            # Open the pidfd here: this process is the parent, so the pid cannot be reused yet.
            handles: list[int] = []
            with contextlib.suppress(AttributeError, OSError):
                handles.append(os.pidfd_open(pid))
            payload = json.dumps((pid, bool(handles))).encode()
            self._send(FrameKind.LAUNCHED, payload, handles)
            fds += handles
        except OSError as error:
            self._send(FrameKind.FAILED, Failure("fork", str(error)).pack())
        for fd in fds:
            os.close(fd)

    def _become_worker(self, variables: Mapping[str, str], fds: list[int]) -> list[int]:
        """Leave the launcher's life behind; return what a worker works with."""
        try:
            os.setsid()
            # As in a fresh interpreter.
            _signal.set_wakeup_fd(-1)
            for number in (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGHUP):
                _signal.signal(number, _signal.SIG_DFL)
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
            self._channel.close()
            os.close(self._wake_out)
            os.close(self._wake_in)
            *channels, out, err = fds
            null = os.open(os.devnull, os.O_RDONLY)
            for standard, fd in enumerate((null, out, err)):
                os.dup2(fd, standard)
            for fd in {null, out, err} - {0, 1, 2}:
                os.close(fd)
            if not self._config.fork:
                for fd in channels:
                    os.set_inheritable(fd, True)
                command, starts = self._config.command, {posix.STARTS: str(channels[0])}
                line = posix.command_line(command, "worker", tuple(channels))
                os.execvpe(command[0], line, {**os.environ, **variables, **starts})  # noqa: S606 - no shell is wanted
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            if sys.modules.get("numpy.random") is not None:
                # random does so itself; see docs/inside-a-job.md for others.
                sys.modules["numpy.random"].seed()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        return channels

    def _report(self, ended: Iterable[tuple[int, int, int]]) -> None:
        for end in ended:
            self._send(FrameKind.EXITED, json.dumps(end).encode())

    def _send(self, kind: FrameKind, payload: bytes, fds: Sequence[int] = ()) -> None:
        data = header(kind, len(payload)) + payload
        # They are alone with its first byte in a read of the other side's.
        sent = socket.send_fds(self._channel, [data], fds) if fds else 0
        self._channel.sendall(data[sent:])


def _use_lazy_imports(known: set[str]) -> None:
    """Import what modules beside *known* ones import lazily: workers would, each for itself.

    What cannot be imported is left alone, since nobody may ever use it.
    """
    while more := [it for it in (*sys.modules,) if it not in known]:
        known.update(more)
        for module in map(sys.modules.get, more):
            for name, value in (*getattr(module, "__dict__", {}).items(),):
                if type(value) is scripts.LAZY:
                    with contextlib.suppress(Exception):
                        getattr(module, name)  # which the module then has


class Reaper:
    """The children of this process: workers, and those that it has adopted."""

    def __init__(self) -> None:
        self._workers: dict[int, int] = {}  # the mark of each
        self._adopted: dict[int, int] = {}
        self._first = self._last = int.from_bytes(os.urandom(4), "big") * _MOST_MARKS
        self._marks = _can_mark(self._first)

    def fork(self) -> int:
        """Fork a worker, and return as :func:`os.fork` does.

        Raises:
            OSError: If the process cannot be made.
        """
        self._last += 1
        pid = os.fork()
        if pid:
            self._workers[pid] = self._last
        elif self._marks:
            with contextlib.suppress(OSError, ValueError):  # no launcher any more
                _mark_self(self._last)
        else:
            adopt_orphans()
        return pid

    def reap(self) -> Iterator[tuple[int, int, int]]:
        """Yield pid, exit status and microseconds of CPU of every worker that has ended."""
        ended = False
        try:
            while found := _next_zombie():
                if found in self._workers:
                    _kill((found,), os.killpg)
                pid, status, usage = os.wait4(found, os.WNOHANG)
                if not pid:
                    break
                if not self._workers.pop(pid, 0):
                    self._adopted.pop(pid, 0)
                    continue
                ended = True
                if found != pid:  # it was not known before
                    _kill((pid,), os.killpg)
                cpu = int((usage.ru_utime + usage.ru_stime) * 1e6)
                yield pid, os.waitstatus_to_exitcode(status), cpu
        except ChildProcessError:
            # There are no children.  SIGTERM may have come between the end of one and its removal.
            self._workers.clear()
        _kill(self._left_behind(unmarked=ended))

    def sweep(self) -> Iterator[tuple[int, int, int]]:
        """Kill the processes that dead workers have left behind, and wait for their end.

        Yields:
            Each worker that ends meanwhile, as :meth:`reap` does.
        """
        return self._clear(lambda: self._left_behind(unmarked=True))

    def end_all(self) -> None:
        """Kill all workers, all adopted processes and their descendants, and wait."""
        _kill(self._workers, os.killpg)
        for _ in self._clear(lambda: children() | self._workers.keys()):
            pass

    def _clear(self, left: Callable[[], set[int]]) -> Iterator[tuple[int, int, int]]:
        give_up_at = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up_at:
            yield from self.reap()
            if not (pids := left()):
                return
            _kill(pids)
            time.sleep(0.001)

    def _left_behind(self, *, unmarked: bool) -> set[int]:
        """Return the adopted processes that dead workers have left.

        Args:
            unmarked: Whether to return those too that have no mark of this launcher's.
        """
        adopted = children() - self._workers.keys()
        if not self._marks:
            return adopted
        known = self._adopted
        self._adopted = {pid: known.get(pid) or _mark_of(pid) for pid in adopted}
        living = {*self._workers.values()}
        return {
            pid
            for pid, mark in self._adopted.items()
            if mark not in living and (unmarked or self._first < mark <= self._last)
        }


def _next_zombie() -> int:
    """Return the pid of a child that has ended, and is not collected yet; 0 if none has.

    -1, which is any child to the system, where one cannot look: in macOS before Python 3.13.

    Raises:
        ChildProcessError: If there are no children.
    """
    if not hasattr(os, "waitid"):
        return -1
    found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return 0 if found is None else found.si_pid


def _mark_self(mark: int) -> None:
    _, hard = resource.getrlimit(_RLIMIT_LOCKS)
    resource.setrlimit(_RLIMIT_LOCKS, (mark, hard))


def _mark_of(pid: int) -> int:
    """Return the mark of a process; 0 if it has none, or is gone."""
    # Not prlimit(), which tells nothing of other users' processes.
    _, _, locks = posix.read(f"/proc/{pid}/limits").partition(b"Max file locks")
    soft, *_ = *locks.split(), b""
    return int(soft) if soft.isdigit() else 0


def _can_mark(mark: int) -> bool:
    """Return whether this system keeps marks, and shows them."""
    with contextlib.suppress(Exception):  # a kernel or a sandbox may refuse anything
        before = resource.getrlimit(_RLIMIT_LOCKS)
        try:
            _mark_self(mark)
            return _mark_of(os.getpid()) == mark
        finally:
            resource.setrlimit(_RLIMIT_LOCKS, before)
    return False


def _kill(pids: Iterable[int], send: Callable[[int, int], object] = os.kill) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            send(pid, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own parent.

    Not if the system does not list children: then they could only be waited for, not killed.
    """
    if os.path.exists(f"{_PROC}/{os.getpid()}/stat"):  # noqa: PTH110 - no pathlib here
        process.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """Return the pids of this process's children, zombies included; none if unknown."""
    own = os.getpid()
    listing = f"{_PROC}/{own}/task/{own}/children"
    if os.path.exists(listing):  # noqa: PTH110 - not in gVisor, and without CONFIG_PROC_CHILDREN
        return {int(child) for child in posix.read(listing).split()}
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for pid in filter(str.isdigit, os.listdir(_PROC)):  # noqa: PTH208
            # After the process's name, which may contain anything, come its state and its parent.
            _, _, stat = posix.read(f"{_PROC}/{pid}/stat").rpartition(b") ")
            if stat.split()[1:2] == [b"%d" % own]:
                found.add(int(pid))
    return found
