"""Decide what workers share with their launcher, and which failed starts are worth another try.

A fork copies the memory of the launcher, but only the thread that forks.  So what has threads
there is one of three things:

* *Whole after a fork.*  Its library ends the threads before each fork (OpenBLAS, Datadog's
  tracer) or starts them again in the copy (OpenTelemetry's exporters, debugpy).  A trial fork
  shows that.  Or the copy can do without them: allocators only tidy up in theirs.  Workers
  share it.
* *Not whole.*  A pool of threads, or an exporter that knows nothing of forks.  In a copy, a job
  that needs it would wait for ever.  So the launcher leaves that module to the workers, which
  import it after the fork; and if the threads are older than all imports, each worker is an
  interpreter of its own, in which they start as in any program.
* *Not whole, in a sandbox.*  There a worker cannot import it: the sandbox holds for one thread
  only.  So a worker has the module without its native threads.  A thread of Python's is code of
  the module that would be missing there, so that is refused.
"""

from __future__ import annotations

from collections import Counter

from asyncpool._wire.records import Record

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

# Where threads come from that are none of a module's: what runs before any import, and the script.
BEFORE_IMPORTS = ""
SCRIPT = "__main__"

# Threads that the copy of a process can do without: jemalloc has handlers for forks, and then
# returns memory in the threads that use it; polars deletes temporary files in its one, and begins
# its pool of threads when it is first needed.
HARMLESS = frozenset({"jemalloc_bg_thd", "polars-ooc-clea"})

# What keeps libraries from starting threads at their import: Arrow's jemalloc, that of libraries in
# Rust, and ONNX Runtime, whose telemetry also keeps files open.  In a sandbox that a fresh
# interpreter enters, any thread is one too many.
QUIET = {
    "ORT_DISABLE_TELEMETRY": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "_RJEM_MALLOC_CONF": "background_thread:false",
}


class Thread(Record):
    """A thread beside the main one.

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


class Sharing(Record):
    """What workers share with their launcher.

    Attributes:
        refused: Why there can be no worker; empty if there can be.
        left: The modules that workers import themselves, with :data:`SCRIPT` for the script.  With
            :data:`BEFORE_IMPORTS` they are not forked, and share nothing.
        text: What this costs, for the log; empty if it costs nothing.
    """

    refused: str = ""
    left: tuple[str, ...] = ()
    text: str = ""


def lost_at_fork(
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
        if number in after and thread.name not in HARMLESS:
            kind = thread.name.rstrip(digits)
            if not again[kind]:
                lost[number] = thread
            again[kind] -= again[kind] > 0
    return lost


def share(lost: Sequence[Thread], *, sandboxed: bool) -> Sharing:
    """Return what workers share with a launcher in which a fork would lose these threads."""
    names = ", ".join(dict.fromkeys(thread.name for thread in lost))
    origins = {it.origin: it.seconds for it in lost}
    named = ("the script" if it == SCRIPT else it for it in origins if it)
    modules = ", ".join(named)
    needed = [it for it in lost if it.origin != BEFORE_IMPORTS and not it.native]
    if sandboxed and needed:
        return Sharing(outside(needed))
    if sandboxed:
        text = (
            f"workers in the sandbox have {modules} without its threads ({names}): a job that "
            "needs those waits for ever, so give jobs a timeout"
        )
        return Sharing(text=text if modules else "")
    if BEFORE_IMPORTS in origins:
        text = (
            f"each worker is an interpreter of its own and shares no import, since threads that "
            f"are older than any import ({names}) would be missing in a fork: they come from a "
            "sitecustomize, a .pth file or what runs the program"
        )
    else:
        text = (
            f"each worker imports {modules} itself, since threads that come with it ({names}) "
            f"would be missing in a fork: each start takes some {sum(origins.values()):.2g} s "
            "longer, and workers share none of that memory"
        )
    cure = "have them started again after a fork (os.register_at_fork), or by the initializer"
    return Sharing(left=tuple(origins), text=f"{text}; {cure}")


def outside(threads: Iterable[Thread]) -> str:
    """Return why a worker with these threads cannot enter a sandbox."""
    who = {BEFORE_IMPORTS: "older than any import", SCRIPT: "of the script"}
    names = [f"{it.name} ({who.get(it.origin, f'of {it.origin}')})" for it in threads]
    return (
        f"preload left threads behind, which would be outside of the sandbox: "
        f"{', '.join(names)}; start them in the initializer, or name another preload"
    )


# The classes of errors that say what is the case, and not that something lacks at the moment.
_FINDINGS = (FileNotFoundError, NotADirectoryError, PermissionError)


def cannot_succeed(error: BaseException, *, fixed: bool) -> bool:
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
        if isinstance(reason, OSError) and not (bare or isinstance(reason, _FINDINGS)):
            return False  # a connection, a limit of the machine, a time that was over
        reason = reason.__cause__ or reason.__context__
    return fixed or isinstance(error, ImportError | NameError | SyntaxError)
