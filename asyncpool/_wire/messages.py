"""What the payloads of control frames mean, and what both sides know of functions, stacks and starts.

``faulthandler`` writes stacks in C, thread by thread.  The main thread is last, and the
innermost call of each thread is first.  If the job waits in an event loop, the stack of
its coroutine follows.  The worker's own calls tell the user nothing, so they are left
out.

The pool does not trust what a worker sends.  So these messages are JSON or fixed
structures, and texts are cut to a bound.  Only configurations are pickled, by the pool,
for its own workers and launchers.
"""

from __future__ import annotations

import json
import marshal
import struct

from asyncpool._wire.records import Record
from asyncpool.errors import ProtocolError

TYPE_CHECKING = False  # see _wire/records.py

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any

    from asyncpool._sandbox.plan import SandboxPlan

# How the stack of a coroutine begins.
COROUTINE = "Coroutine of the job (most recent call first):"

# How the stack of a worker's main thread ends: with its outermost call.  Of more than 100 calls,
# faulthandler writes the inner ones and this.
_OUTERMOST = b'\n  File "<string>", line 1 in <module>\n'
_MORE = b"\n  ...\n"

_OURS = "asyncpool/_worker/", "asyncpool/_cluster/", "asyncpool/_sandbox/"

# The functions that jobs call.  Frames of this file do not end the user's part of a stack.
PUBLIC_API = "asyncpool/_worker/api.py"


def tidy(text: str) -> str:
    """Return the stacks in *text* without the worker's own calls, the job's stack first."""
    threads: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  ") and lines:
            lines.append(line)
        elif line:
            lines = [line]
            # The pool may ask a worker in two ways, and the worker then writes all of
            # them twice.
            thread = "" if line == COROUTINE else line.partition("0x")[2] or line
            threads.pop(thread, None)
            threads[thread] = lines
    coroutine = threads.pop("", [])
    *others, main = threads.values() or [[]]
    kept = [line for thread in others if not is_ours(thread[-1]) for line in thread]
    return "\n".join([*coroutine, *main[:1], *users_lines(main[1:]), *kept])


def are_whole(written: bytes, before: bytes) -> bool:
    """Tell whether a worker has written its stacks to their end, and will write no more.

    A worker on a busy machine may stop in the middle for longer than anybody waits between
    two looks.  So it does not suffice that nothing has come since the last one.

    Args:
        written: What the worker has written.
        before: What it had written at the last look.
    """
    if written.endswith(_OUTERMOST):
        return True
    # Another thread may have as many calls.  Then the main thread's follow soon.
    return written.endswith(_MORE) and written == before


def users_lines(lines: Iterable[str]) -> list[str]:
    """Return the calls of the main thread that are inside of our calls: the innermost ones."""
    shown: list[str] = []
    seen_ours = False
    for line in lines:
        if not is_ours(line):
            shown.append(line)
        elif PUBLIC_API not in line:
            seen_ours = True
            if shown:
                return shown
    # Whatever is left has called us, unless the stack was cut off before our own calls.
    cut_off = bool(shown) and shown[-1].strip() == "..."
    return shown if cut_off or not seen_ours else []


def is_ours(line: str) -> bool:
    """Tell whether a line of a stack is a call of the worker's own."""
    return any(folder in line for folder in _OURS)


# How many functions each worker remembers.
MOST_REMEMBERED = 256


class FunctionCache(dict[int, "Any"]):
    """The functions that a worker remembers; the pool follows the same rule, and so knows them."""

    def add(self, number: int, function: object = None) -> None:
        """Remember one more function, and forget the oldest if there are too many."""
        if len(self) >= MOST_REMEMBERED:
            del self[next(iter(self))]
        self[number] = function


def note_on_misplaced(names: Iterable[str], text: str, options: Collection[str]) -> str:
    """Say where an option belongs that was passed to a function that does not take it.

    Args:
        names: The keyword arguments of the call.
        text: The text of the ``TypeError`` that Python has raised for the call.
        options: The names of the options of jobs.

    Returns:
        A sentence, or an empty text if none of *names* is the reason.
    """
    for name in names:
        refusals = (
            f"unexpected keyword argument '{name}'",
            f"'{name}' is an invalid keyword argument",
            "takes no keyword arguments",
        )
        if name in options and any(it in text for it in refusals):
            return (
                f"The function was given {name}=...: as an option of the job it goes into "
                f"Pool.options({name}=...).submit(...)."
            )
    return ""


# A soft limit of the kernel, or a pair: the soft and the hard limit.
KernelLimit = int | tuple[int, int]

# Environment variables, each with its value.
Variables = tuple[tuple[str, str], ...]

MAX_TEXT = 16_384

# The most bytes of the reason that a worker gives for its end.
MAX_REASON = 1000

# The most bytes of an initializer with its arguments, of the broadcasts that a new
# worker runs, and of a whole configuration.
MAX_INITIALIZER = 1 << 26
MAX_BROADCASTS = 1 << 26
MAX_CONFIG = MAX_INITIALIZER + MAX_BROADCASTS + (1 << 20)

# The most bytes of the hook around jobs.
MAX_HOOK = 1 << 19

# What a ``FENCE`` frame carries: until when the job may run.
MOMENT = struct.Struct("!d")


class Failure(Record):
    """Something went wrong in a worker outside any job.

    Attributes:
        stage: Where.
        summary: What.
        text: The traceback.
        final: Whether another worker would fail there in the same way.
    """

    stage: str
    summary: str
    text: str = ""
    final: bool = False

    def pack(self) -> bytes:
        """Return the payload of a ``FAILED`` frame."""
        summary, text = self.summary[:MAX_TEXT], self.text[-MAX_TEXT:]
        return json.dumps((self.stage, summary, text, self.final)).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> Failure:
        """Read the payload of a ``FAILED`` frame.

        Raises:
            ProtocolError: If it is no such payload.
        """
        try:
            *texts, final = json.loads(payload)
            stage, summary, text = (str(it)[:MAX_TEXT] for it in texts)
        except (ValueError, TypeError, RecursionError) as error:
            raise ProtocolError("a report of a failure cannot be read") from error
        return cls(stage, summary, text, final is True)


# The classes of errors that a second try would meet again.
_PERMANENT = (FileNotFoundError, NotADirectoryError, PermissionError)


def is_final(error: BaseException, *, fixed: bool) -> bool:
    """Return whether a start that *error* ends would end so again.

    Args:
        error: What was raised.
        fixed: Whether that was at a step which does the same each time: an import, a check, a limit.
            What an initializer does may depend on anything.
    """
    reason: BaseException | None = error
    seen: set[int] = set()
    while reason is not None and id(reason) not in seen:
        seen.add(id(reason))  # `raise error from error` makes a ring
        if isinstance(reason, MemoryError):
            return False
        # Such as that of ctypes: there is no such library.
        bare = type(reason) is OSError and reason.errno is None
        if isinstance(reason, OSError) and not (bare or isinstance(reason, _PERMANENT)):
            return False  # a connection, a limit of the machine, a time that was over
        reason = reason.__cause__ or reason.__context__
    return fixed or isinstance(error, ImportError | NameError | SyntaxError)


# Where threads come from that are none of a module's: what runs before any import, and the script.
BEFORE_IMPORTS = ""
SCRIPT = "__main__"


class Thread(Record):
    """A thread beside the main one.

    ``LauncherHandle._share()`` in ``_engine/launcher.py`` decides what follows from it.

    Attributes:
        name: Its name.
        native: Whether :mod:`threading` knows nothing of it.
        origin: The module with whose import it came; see :data:`BEFORE_IMPORTS`.
        seconds: How long that import took.
    """

    name: str
    native: bool
    origin: str = BEFORE_IMPORTS
    seconds: float = 0.0


def threads_outside(threads: Iterable[Thread]) -> str:
    """Return why a worker with these threads cannot enter a sandbox."""
    who = {BEFORE_IMPORTS: "older than any import", SCRIPT: "of the script"}
    names = [f"{it.name} ({who.get(it.origin, f'of {it.origin}')})" for it in threads]
    return (
        f"preload left threads behind, which would be outside of the sandbox: "
        f"{', '.join(names)}; start them in the initializer, or name another preload"
    )


class WorkerConfig(Record):
    """What a worker needs to begin.

    Attributes:
        sys_path: Where the service finds modules.
        initializer: The pickled ``(initializer, initargs)``, or ``None``.
        max_payload: The most bytes that a frame may carry.
        nice: What is added to the worker's niceness.
        cpus: The CPUs that the worker may run on; ``None`` for all.
        rlimits: The kernel's limits for the worker, by name.
        levels: The levels of loggers, by name.
        disabled: The level up to which loggers are silent.
        loop: The kind of event loop that coroutines run in.
        broadcasts: The broadcasts that the worker runs after the initializer: the
            name and the pickled call of each.
        concurrency: How many jobs the worker runs at once.
        main: What a worker that serves does instead of jobs: the module whose
            ``serve()`` it calls, and the pickled data for it.
        preload: Modules to import before the initializer is called.  Most are there
            already, since the launcher has imported them.
        script: What is ``__main__`` in the worker: the name of the module, if it
            has one, its file, and its arguments.
        script_first: Whether the worker imports that at once, and not only when it
            needs it.
        around: The hook around each job, if there is one: its name, and the pickled hook,
            or nothing if the worker imports it by that name.
        codec: Which codec its calls and outcomes have, and which functions it may call, as
            ``_wire/schemas.py`` describes that; empty for pickle.
        sandbox: How it shuts itself in, if it does.
        options: The names of the options of jobs, which a caller may take for arguments of
            the function.
        memory: How many bytes of memory are too many before the first job, and the text of
            that limit.

    It comes pickled in a ``CONFIG`` frame.
    """

    sys_path: tuple[str, ...]
    initializer: bytes | None
    max_payload: int
    nice: int = 0
    cpus: tuple[int, ...] | None = None
    rlimits: tuple[tuple[str, KernelLimit], ...] = ()
    levels: tuple[tuple[str, int], ...] = ()
    disabled: int = 0
    loop: str = "asyncio"
    broadcasts: tuple[tuple[str, bytes], ...] = ()
    concurrency: int = 1
    main: tuple[str, bytes] | None = None
    preload: tuple[str, ...] = ()
    script: tuple[str, str, tuple[str, ...]] | None = None
    script_first: bool = False
    around: tuple[str, bytes] | None = None
    codec: bytes = b""
    sandbox: SandboxPlan | None = None
    options: tuple[str, ...] = ()
    memory: tuple[int, str] | None = None


class Identity(Record):
    """The identity of a worker, for code in it that asks.

    Attributes:
        name: The name that ``multiprocessing.current_process()`` has there.
        number: Which of the pool's workers it is, from 1 on.
        parent: The pid and the name of the service's process.
        authkey: The key by which processes of :mod:`multiprocessing` recognise each
            other.
        start_method: The start method that was set in the service, if it is a standard one.
        argv: The command line of the service.
        folder: The private folder of a worker in a sandbox.
        cgroup: The folder of its cgroup, if it has one.
        rank: The number by which jobs know the worker; see ``_core/lifecycle.py``.
        environment: The variables that the worker alone has.

    It comes pickled in an ``IDENTITY`` frame.
    """

    name: str
    number: int
    parent: tuple[int, str]
    authkey: bytes
    start_method: str | None
    argv: tuple[str, ...]
    folder: str = ""
    cgroup: str = ""
    rank: int = 0
    environment: Variables = ()


class LauncherConfig(Record):
    """What the launcher's process needs to begin.

    Attributes:
        sys_path: Where the service finds modules.
        fork: Whether the launcher forks workers from itself, or starts them as
            fresh interpreters.
        preload: Modules to import before the first fork.
        command: The command line of a worker that is a fresh interpreter, without
            the numbers of its descriptors.
        script: What the launcher imports as ``__main__`` before the first fork, if
            anything; see :class:`WorkerConfig`.
        namespaces: The namespaces that each worker makes, if workers are in a sandbox;
            there they cannot import later what they need.
        env: The whole environment of the process; ``None`` for that of the service.
        folder: The path of its working folder, and the device and the number of the folder.

    The launcher's file begins with it, pickled.
    """

    sys_path: tuple[str, ...]
    fork: bool
    preload: tuple[str, ...]
    command: tuple[str, ...]
    script: tuple[str, str, tuple[str, ...]] | None = None
    namespaces: int | None = None
    env: tuple[tuple[str, str], ...] | None = None
    folder: tuple[str, tuple[int, int] | None] = ("", None)


def pack_numbers(numbers: Collection[int]) -> bytes:
    """Return the payload of a frame that carries a list, such as sequence numbers or sizes."""
    return struct.pack(f"!{len(numbers)}Q", *numbers)


def unpack_numbers(payload: bytes) -> tuple[int, ...]:
    """Read the payload of a frame that carries a list.

    Raises:
        ProtocolError: If it is no such payload.
    """
    if len(payload) % 8:
        raise ProtocolError("a list of numbers cannot be read")
    return struct.unpack(f"!{len(payload) // 8}Q", payload)


# The context of jobs.
#
# The pool sends it ahead of jobs, and it holds for all of them until the next such frame.  It has the
# time limits that a job can ask for, the last heartbeat details of its attempt before, the
# context variables of its submitter, its trace context, and the exceptions after which its worker
# retires.  It is a state of the channel, not a part of the job.  Most jobs have equal contexts, and
# then cost only one comparison.  An empty payload is the plain context, with which a worker begins.

# The most bytes of the details of a heartbeat, whose record on the page has 32 KB.
MAX_DETAILS = 32_728

# The most bytes of the variables.
MAX_VARIABLES = 1 << 16

# The most bytes of the trace context.  W3C allows 8192 bytes of baggage, and some 600 besides.
MAX_TRACE = 1 << 14

# The most bytes of each part, in their order.
PARTS = {
    "details": MAX_DETAILS,
    "variables": MAX_VARIABLES,
    "trace": MAX_TRACE,
    # The names of classes.
    "retire_on": 1 << 14,
}

# The time limits, and what marshal adds, have 38 bytes.
MAX_CONTEXT = sum(PARTS.values()) + 64


def end_of(began: float, seconds: float | None, deadline: float | None) -> float | None:
    """Return when *seconds* from *began* are over, or the *deadline* if that is earlier."""
    if seconds is None:
        return deadline
    end = began + seconds
    return end if deadline is None else min(end, deadline)


class JobContext(Record):
    """What a job can ask for about itself.

    Attributes:
        timeout: Seconds that an attempt may take.
        deadline: When the job must be done, on the clock of the pool's loop.  That
            is ``time.monotonic()``, which all processes of a machine share.
        details: The pickled details of the last heartbeat of the attempt before, or
            nothing.
        variables: The packed context variables, or nothing.
        trace: The pickled headers of the span that stands for the attempt, or nothing.
        retire_on: The names of the classes of exceptions after which its worker runs no other
            job, one in each line, or nothing.
    """

    timeout: float | None = None
    deadline: float | None = None
    details: bytes = b""
    variables: bytes = b""
    trace: bytes = b""
    retire_on: bytes = b""

    def pack(self) -> bytes:
        """Return the payload of a ``CONTEXT`` frame.

        Raises:
            ValueError: If a part is too large.
        """
        if self == PLAIN:
            return b""
        limits, parts = [it and float(it) for it in self[:2]], self[2:]
        for (name, most), part in zip(PARTS.items(), parts, strict=True):
            if len(part) > most:
                text = f"{name} have {len(part)} bytes, and {most} is the most"
                raise ValueError(text)
        # Later versions write what several variables refer to in another way: equal contexts would
        # have different bytes.
        return marshal.dumps((*limits, *parts), 2)

    @classmethod
    def unpack(cls, payload: bytes) -> JobContext:
        """Read the payload of a ``CONTEXT`` frame; it must come from the pool."""
        # The pool is trusted.
        return cls(*marshal.loads(payload)) if payload else PLAIN  # noqa: S302

    def end(self, began: float) -> float | None:
        """Return until when an attempt may run that began at *began*."""
        return end_of(began, self.timeout, self.deadline)


PLAIN = JobContext()


def with_parts(context: bytes, **parts: Any) -> bytes:
    """Return a packed context with other *parts*, which :data:`PARTS` names.

    Raises:
        ValueError: If one is too large.
    """
    return JobContext.unpack(context)._replace(**parts).pack()
