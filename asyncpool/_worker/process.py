"""What each process of a pool does with itself, and the life of a worker.

A process begins here if it is a fresh interpreter (``_wire/posix.py`` has its command line).  A
worker sets itself up, runs jobs, and ends with the job channel.  To the code of its jobs it shows
the service's ``__main__``, and a child process of the service.  It, and the launcher, show a name
in ``ps``, set an environment and limits, and find out which threads came with their imports, and
what a fork would make of them.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import faulthandler
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections import Counter
from functools import partial
from importlib.machinery import ModuleSpec
from types import CoroutineType, ModuleType

from asyncpool._wire import scripts
from asyncpool._wire.messages import BEFORE_IMPORTS, SCRIPT, Thread
from asyncpool._wire.posix import STARTS, greeting, read, socket_of
from asyncpool._wire.text import printable
from asyncpool._worker.api import become_worker
from asyncpool._worker.channels import Control
from asyncpool._worker.runner import JobRunner, load_hook
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Iterable, Mapping
    from importlib.abc import Loader
    from typing import Any, NoReturn

    from asyncpool._wire.messages import Identity, WorkerConfig

_PR_SET_NAME = 15
_LONGEST_NAME = 15  # bytes

# Seconds between looks whether a thread has ended; each is twice the last.
_FIRST_LOOK = 0.001
_LAST_LOOK = 1.0

# Seconds for what a library does in the copy of a process, right after the fork.
_COPY_GRACE = 5.0

# Threads that the copy of a process can do without: jemalloc has handlers for forks, and then
# returns memory in the threads that use it; polars deletes temporary files in its one, and begins
# its pool of threads when it is first needed.
_HARMLESS = frozenset({"jemalloc_bg_thd", "polars-ooc-clea"})

# What keeps libraries from starting threads at their import: Arrow's jemalloc, that of libraries in
# Rust, and ONNX Runtime, whose telemetry also keeps files open.  In a sandbox that a fresh
# interpreter enters, any thread is one too many.
_QUIET = {
    "ORT_DISABLE_TELEMETRY": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "_RJEM_MALLOC_CONF": "background_thread:false",
}


def main() -> NoReturn:
    """Run the role that the command line names, in a fresh interpreter.

    ``argv`` is ``-c ROOT ROLE FD...``.  *ROOT* is the folder in which the service has found this
    package, because the new interpreter may not find it, or may find another one.  It is at the
    front of the path while the package is imported, and then at its end, so that other modules in
    that folder shadow nothing.
    """
    role, *numbers = sys.argv[2:]
    Start(role, *map(int, numbers)).run()


class Start:
    """What a process begins as; a frozen program unpickles it for ``spawn_main``.

    Args:
        role: As in :func:`main`.
        fds: The descriptors.
    """

    def __init__(self, role: str, *fds: int) -> None:
        self._role, self._fds = role, fds

    def _bootstrap(self, parent_sentinel: int) -> NoReturn:
        os.close(parent_sentinel)
        if self._role == "launcher":
            os.write(self._fds[-1], greeting())
        self.run()

    def run(self) -> NoReturn:
        """Be that process."""
        os.environ.pop(STARTS, None)
        for fd in self._fds:
            os.set_inheritable(fd, False)
        if self._role == "launcher":
            from asyncpool._worker.launcher import main as serve  # noqa: PLC0415

            serve(*self._fds)
        sys.argv[:] = [""]
        faulthandler.enable()
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        load_title()
        work(*self._fds)


def work(job_fd: int, control_fd: int, page_fd: int) -> NoReturn:
    """Be a worker until the job channel ends, then leave the process.

    Args:
        job_fd: The job channel.
        control_fd: The control channel.
        page_fd: The worker page, on which the worker notes which job it has begun, the
            heartbeats of its jobs, and its stacks.  It is shared memory: a note costs no
            system call, and outlives the worker.
    """
    control = Control(socket_of(job_fd), socket_of(control_fd), page_fd)
    runner: JobRunner | None = None
    status = 1
    try:
        config = control.receive_config()
        runner = control.runner = JobRunner(config, control)
        become_worker(runner)
        _adapt(runner)
        _initialize(runner)
        if config.main is not None:
            module = config.main[0]
            __import__(module)  # this imports asyncio
            status = sys.modules[module].serve(runner)
        else:
            runner.serve()
            status = 0
    except BaseException:
        # The pool logs an announced error itself, together with the end.
        if not control.announced:
            traceback.print_exc()
    _leave(status, runner)


def _adapt(runner: JobRunner) -> None:
    """Make of this process what code in it expects of a worker."""
    config, control = runner.config, runner.control
    identity = control.identity
    os.environ.update(identity.environment)  # before any import
    if "TZ" in dict(identity.environment):
        time.tzset()  # the launcher has read the other one
    named = "PYTHONBREAKPOINT" in os.environ  # a debugger that needs no terminal
    if sys.breakpointhook is sys.__breakpointhook__ and not named:
        sys.breakpointhook = _breakpoint
    sys.argv[:] = identity.argv
    ImportWatch(_CONTEXT, partial(_become, identity))
    lender = control if config.sandbox is None and not config.codec else None
    ImportWatch(_TRACKER, partial(_share_tracker, lender, os.getpid()))
    slot = identity.number - 1
    pool = identity.name.removesuffix(f"-worker-{slot}")
    show(f"pool-worker-{slot}", f"worker {slot} of {pool}")

    def forward_logs() -> None:
        from asyncpool._worker.log_handler import RecordHandler  # noqa: PLC0415 - with logging

        RecordHandler(runner)

    import_watch = ImportWatch("logging", forward_logs)

    def after_fork_in_child() -> None:
        # A job forked.  The copy must not answer in the worker's place, and must
        # not keep the channels open after the worker's death.
        control.close()
        import_watch.end()

    os.register_at_fork(after_in_child=after_fork_in_child)


def _breakpoint(*_: Any, **__: Any) -> NoReturn:
    """Refuse ``breakpoint()``."""
    raise RuntimeError(
        "breakpoint() in a worker, which has no terminal: call the function without a pool, or "
        "name a debugger in PYTHONBREAKPOINT that needs none"
    )


def _initialize(runner: JobRunner) -> None:
    """Do what comes before the first job, and tell the pool that this worker is ready.

    Raises:
        BaseException: What ends the worker; the pool was told.
    """
    config, control = runner.config, runner.control
    sys.path[:] = config.sys_path
    install_script(config.script)
    if config.sandbox is None:
        control.start()
    stage, fixed = (
        "limits",
        True,
    )  # fixed: whether this stage does the same at each start
    try:
        _apply_bounds(config)
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

            enter(runner, preloading)
            control.start()  # its thread is in the sandbox too
        if config.around is not None:
            stage = f"import of the hook {config.around[0]}"
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


def _apply_bounds(config: WorkerConfig) -> None:
    """Set the limits of this process; see :class:`asyncpool.WorkerLimits`.

    Raises:
        OSError, ValueError: If the kernel does not allow a limit.
    """
    if config.nice:
        os.nice(config.nice)
    if config.cpus is not None:
        os.sched_setaffinity(0, config.cpus)
    for name, limit in config.rlimits:
        import resource  # noqa: PLC0415 - few workers need it

        kind = getattr(resource, name)
        both = (limit, resource.getrlimit(kind)[1]) if isinstance(limit, int) else limit
        try:
            resource.setrlimit(kind, both)
        except (OSError, ValueError) as error:
            raise type(error)(f"{name} cannot be set to {both}: {error}") from error


def _leave(status: int, runner: JobRunner | None) -> NoReturn:
    """End the event loop, and then this process, with *status*.

    It does not wait for threads that calls have left behind: otherwise a replaced worker
    would live as long as they do.  It names them on stderr if somebody may miss them.
    """
    # sys.exit() would unwind the stack, and in a forked worker its frames are the launcher's.
    ends: list[Any] = [] if runner is None else [runner.close]
    for end in (*ends, _tell_of_threads, atexit._run_exitfuncs):  # noqa: SLF001 - no public way
        with contextlib.suppress(BaseException):
            end()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(status)


def _tell_of_threads() -> None:
    threading: Any = sys.modules.get("threading")
    if threading is None:
        return
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


# ``__main__`` of a worker is the service's script, imported when it is first needed.  Many services
# never send anything of their script, which may be an installed command.  So the worker imports the
# script only when some code asks ``__main__`` for an attribute.  Usually that is pickle, for the
# function of the first job or of the initializer.

_NAME = "__mp_main__"  # as with multiprocessing, whose children may import it in turn

_before: list[ModuleType] = []


def install_script(script: tuple[str, str, tuple[str, ...]] | None) -> None:
    """Give this process its ``__main__``.

    Args:
        script: The name of the module, if it has one, its file and its arguments.  With
            ``None`` there is nothing to import: ``__main__`` is empty, and stays.
    """
    main = sys.modules["__main__"]
    if isinstance(main, _Script) and script is not None:
        return  # by the launcher, which has imported it
    _before.append(main)  # whose code may still run
    if script is None:
        sys.modules["__main__"] = ModuleType("__main__")
    else:
        module, path, argv = script
        sys.modules["__main__"] = sys.modules[_NAME] = _Script(module, path)
        sys.argv[:] = argv


def load_script() -> str:
    """Import the script; return why that has failed, if it has.

    Jobs that need the script then fail with this reason.
    """
    try:
        scripts.space(imported=True)
    except ImportError as error:
        return str(error)
    return ""


class _Import:
    """How far the import is."""

    lock = _thread.RLock()
    begun = False
    failure: BaseException | None = None


class _Script(ModuleType):
    """The script; its dictionary is that of its functions."""

    # No attributes but those, since any other name may be one of the script's.

    def __init__(self, module: str, path: str) -> None:
        super().__init__(_NAME)
        spec = ModuleSpec(module, None, origin=path) if module else None
        package = "" if spec is None else spec.parent
        vars(self).update(__file__=path, __package__=package, __spec__=spec)

    def __getattr__(self, name: str) -> Any:
        # Whoever looks for what only some modules have does not mean this one.
        if not (name.startswith("__") or scripts.importing):
            self.__load__()
            if name in vars(self):
                return vars(self)[name]
        raise AttributeError(
            f"the script {self.__file__}, imported in a worker, has no {name!r}"
        )

    def __load__(self) -> None:
        """Import it, if nobody has.

        Raises:
            ImportError: If it cannot be imported.
        """
        with _Import.lock:
            if not _Import.begun:
                _Import.begun = True
                _run_script(self)
            if (failure := _Import.failure) is not None:
                what = f"{type(failure).__name__}: {failure}"
                raise ImportError(
                    f"importing the script {self.__file__} in a worker failed: {what}; put what "
                    "starts things under `if __name__ == '__main__':`",
                    name="__main__",
                    path=self.__file__,
                ) from failure


def _run_script(script: _Script) -> None:
    path, before = script.__file__ or "", vars(script).copy()
    scripts.importing = path
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - see _worker/__init__.py
            code = compile(file.read(), path, "exec", dont_inherit=True)
            exec(code, vars(script))  # noqa: S102
    except BaseException as error:
        vars(script).clear()  # nobody is to work with a half of it
        vars(script).update(before)
        if isinstance(error, JobCancelled):  # the job's matter, and not the script's
            _Import.begun = False
            raise
        _Import.failure = error
    finally:
        scripts.importing = ""


# For ``multiprocessing`` the worker is a child of the service: it has the name, the parent and the
# start method that the pool has sent, and the service's resource tracker.  To import it costs a
# worker 4 ms and 1.2 MB, so this waits until a job does.

_TRACKER = "multiprocessing.resource_tracker"

# With it come the names that are changed, and nobody has looked at them yet.
_CONTEXT = "multiprocessing.context"


def _share_tracker(lender: Control | None, worker: int) -> None:
    """Have what this worker shares be unlinked at the end of the service, if nobody does before.

    A tracker of its own would die with it, or unlink what others still use.  Few jobs need one,
    and it is a process: so it is asked for when somebody looks for its descriptor.

    Args:
        lender: Asks the pool for it, if the pool lends it.
        worker: The pid of this worker.
    """
    module: Any = sys.modules[_TRACKER]

    class Tracker(module.ResourceTracker):  # type: ignore[misc]
        @property
        def _fd(self) -> int | None:
            known: dict[str, Any] = self.__dict__
            if "lent" not in known and os.getpid() == worker:
                known["lent"] = lender and lender.borrow_tracker()
                if known["lent"] is not None:
                    known["_fd"], known["_pid"] = known["lent"], None
            return known["_fd"]  # type: ignore[no-any-return]

        @_fd.setter
        def _fd(self, fd: int | None) -> None:
            self.__dict__["_fd"] = fd

    module._resource_tracker.__class__ = Tracker  # noqa: SLF001


def _become(identity: Identity) -> None:
    context: Any = sys.modules[_CONTEXT]
    process = context.process
    this = process.current_process()
    this.name, this.authkey = identity.name, identity.authkey
    this._identity, this._parent_pid = (identity.number,), identity.parent[0]  # noqa: SLF001
    pid, name = identity.parent
    try:
        ended = os.pidfd_open(pid)
    except (AttributeError, OSError):
        # A worker ends with the pool's process: who can ask has a parent.
        ended = os.pipe()[0]
    process._parent_process = process._ParentProcess(name, pid, ended)  # noqa: SLF001
    if identity.start_method is not None:
        context._default_context.set_start_method(identity.start_method, force=True)  # noqa: SLF001


class ImportWatch:
    """An entry of ``sys.meta_path`` that sees when a module is imported.

    It stands for the module's loader until that has loaded the module.

    Args:
        name: The module.
        loaded: Called once, when the module is imported: at once, if it already is.
    """

    _loader: Loader

    def __init__(self, name: str, loaded: Callable[[], None]) -> None:
        self._name = name
        self._loaded = loaded
        if name in sys.modules:
            loaded()
        else:
            sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Stop watching."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, name: str, *details: Any) -> ModuleSpec | None:
        """Find the module as the others do, and be told when it is there."""
        if name != self._name:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, *details)
                if spec is not None and spec.loader is not None:
                    self._loader, spec.loader = spec.loader, self  # type: ignore[assignment]
                    return spec
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as its loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module, and be its loader no more."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self.end()
        self._loaded()


def prctl(option: int, value: int | bytes) -> None:
    """Ask the kernel of Linux for something; without it a precaution is missing, no more."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(Exception):
        import _ctypes  # noqa: PLC0415 - not where there is no prctl

        # Not ctypes itself, which imports more, see _worker/__init__.py.
        program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type] # this one
        function = _ctypes.dlsym(program, "prctl")
        _ctypes.call_cdeclfunction(function, (option, value, 0, 0, 0))


# Linux keeps a short name for each process, which costs a system call.  A whole command line can
# only be changed by setproctitle, an extra, which imports logging: 2 MB for each launcher.
def load_title() -> None:
    """Import ``setproctitle`` if it is installed; workers that are forked later have it too."""
    with contextlib.suppress(Exception):  # it may be anything that has this name
        __import__("setproctitle")


def show(name: str, title: str) -> None:
    """Have this process called *name*, and *title* where there is room for a command line."""
    module = sys.modules.get("setproctitle")
    if module is not None:
        with contextlib.suppress(Exception):
            module.setproctitle(f"asyncpool: {printable(title)}")
    # After that, since it sets the name too.
    prctl(_PR_SET_NAME, name.encode()[:_LONGEST_NAME])


class Preloading:
    """Knows which threads came with which import; those that are there already with none.

    What follows from that is in ``_engine/launcher.py``.
    """

    def __init__(self) -> None:
        self._threads: dict[int, Thread] = {}
        self._origin, self._seconds = BEFORE_IMPORTS, 0.0
        self._look()

    @contextlib.contextmanager
    def step(self, origin: str) -> Generator[None]:
        """Import *origin* in this context."""
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        began = time.monotonic()
        yield
        self._origin, self._seconds = origin, time.monotonic() - began
        self._look()

    def left(self, *, whole: bool = False) -> list[Thread]:
        """Return the threads of this process that a fork does not end, as a trial fork shows.

        Args:
            whole: Leave out the threads that the copy does not need, or starts again.
        """
        if not (before := self._look()):
            return []
        copy, wait = _trial_fork(), _FIRST_LOOK
        while True:
            after = self._look()
            left = _lost(before, after, copy) if whole else after
            # The kernel does not let go at once of a thread that somebody has joined.  But one
            # that sleeps has not ended.
            if wait > _LAST_LOOK or all(map(_sleeps, left)):
                return list(left.values())
            time.sleep(wait)
            wait *= 2

    def _look(self) -> dict[int, Thread]:
        """Return the threads that there are; the new ones came with the last import."""
        return {
            number: self._threads.setdefault(
                number, Thread(name, native, self._origin, self._seconds)
            )
            for number, (name, native) in _threads().items()
        }


def _lost(
    before: Mapping[int, Thread], after: Container[int], copy: Iterable[str]
) -> dict[int, Thread]:
    """Return the threads that a copy of this process would need and does not have.

    Args:
        before: The threads before a trial fork, by number.
        after: The numbers of the threads after it.
        copy: The names of the threads in the copy.
    """
    digits = "0123456789"  # many libraries number their threads
    again, lost = Counter(name.rstrip(digits) for name in copy), {}
    for number, thread in before.items():
        if number in after and thread.name not in _HARMLESS:
            kind = thread.name.rstrip(digits)
            if not again[kind]:
                lost[number] = thread
            again[kind] -= again[kind] > 0
    return lost


def _trial_fork() -> list[str]:
    """Return the names of the threads that the copy of this process has right after a fork."""
    out, into = os.pipe()
    with forking():
        pid = os.fork()
    if pid == 0:
        try:
            names = [name for name, _ in _threads().values()]
            os.write(into, "\0".join(names).encode())
        finally:
            os._exit(0)
    os.close(into)
    if not select.select([out], [], [], _COPY_GRACE)[0]:
        os.kill(pid, signal.SIGKILL)  # it hangs in what its libraries do there
    told = os.read(out, 65536).decode(errors="replace")
    os.close(out)
    os.waitpid(pid, 0)
    return told.split("\0")


@contextlib.contextmanager
def forking() -> Generator[None]:
    """Fork in this context, also beside threads.

    From Python 3.12 on each such fork is warned of, and the warning may be an error.
    """
    if not _threads():
        yield
        return
    import warnings  # noqa: PLC0415 - few get here

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _threads() -> dict[int, tuple[str, bool]]:
    """Return the other threads of this process, each with its name and whether it is native.

    Python knows only the threads of ``threading``; only Linux lists all of them.
    """
    found: dict[int, tuple[str, bool]] = {}
    with contextlib.suppress(OSError):  # no Linux
        for task in os.listdir(f"/proc/{os.getpid()}/task"):  # noqa: PTH208 - see _worker/__init__.py
            name = _read(int(task), "comm").strip()
            found[int(task)] = name, True
    # Most have no name but that of their process, or that which it had.
    program = os.path.basename(sys.executable)[:15]  # noqa: PTH119
    unnamed = {found.pop(os.getpid(), None), (program, True)}
    for number in [number for number in found if found[number] in unnamed]:
        found[number] = "native", True
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                found[thread.native_id or id(thread)] = thread.name, False
    return found


def _sleeps(number: int) -> bool:
    return _read(number, "stat").rpartition(")")[2].split()[:1] in (["S"], ["T"])


def _read(number: int, what: str) -> str:
    """Return what Linux tells of a thread; nothing if it has just ended."""
    return read(f"/proc/{os.getpid()}/task/{number}/{what}").decode(errors="replace")
