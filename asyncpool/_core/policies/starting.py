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

from asyncpool._core.base.records import Record

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    before: Mapping[int, Thread], after: Iterable[int], copy: Iterable[str]
) -> dict[int, Thread]:
    """Return the threads that a copy of this process would need and does not have.

    Args:
        before: The threads before a trial fork, by number.
        after: The numbers of the threads after it.
        copy: The names of the threads in the copy.
    """
    kept, again, lost = set(after), Counter(map(_kind, copy)), {}
    for number, thread in before.items():
        if number not in kept or thread.name in HARMLESS:
            continue
        if again[_kind(thread.name)]:
            again[_kind(thread.name)] -= 1
        else:
            lost[number] = thread
    return lost


def _kind(name: str) -> str:
    return name.rstrip("0123456789")  # many libraries number their threads


def share(lost: Sequence[Thread], *, sandboxed: bool) -> Sharing:
    """Return what workers share with a launcher in which a fork would lose these threads."""
    if not lost:
        return Sharing()
    names = ", ".join(dict.fromkeys(thread.name for thread in lost))
    origins = {it.origin: it.seconds for it in lost}
    if sandboxed:
        needed = [it for it in lost if it.origin != BEFORE_IMPORTS and not it.native]
        modules = _listed(filter(None, origins))
        if needed or not modules:
            return Sharing(outside(needed) if needed else "")
        return Sharing(
            text=f"workers in the sandbox have {modules} without its threads ({names}): a job "
            "that needs those waits for ever, so give jobs a timeout"
        )
    cure = "have them started again after a fork (os.register_at_fork), or by the initializer"
    if BEFORE_IMPORTS in origins:
        return Sharing(
            left=tuple(origins),
            text=f"each worker is an interpreter of its own and shares no import, since threads "
            f"that are older than any import ({names}) would be missing in a fork: they come "
            f"from a sitecustomize, a .pth file or what runs the program; {cure}",
        )
    return Sharing(
        left=tuple(origins),
        text=f"each worker imports {_listed(origins)} itself, since threads that come with it "
        f"({names}) would be missing in a fork: each start takes some "
        f"{sum(origins.values()):.2g} s longer, and workers share none of that memory; {cure}",
    )


def _listed(origins: Iterable[str]) -> str:
    return ", ".join("the script" if it == SCRIPT else it for it in origins)


def outside(threads: Iterable[Thread]) -> str:
    """Return why a worker with these threads cannot enter a sandbox."""
    cures = ["start them in the initializer", "name another preload"]
    who = {BEFORE_IMPORTS: "older than any import", SCRIPT: "of the script"}
    names: list[str] = []
    for thread in threads:
        names.append(f"{thread.name} ({who.get(thread.origin, f'of {thread.origin}')})")
        if thread.native and len(cures) == 2:  # noqa: PLR2004 - the two above
            cures.append('have launcher="forkserver", where a worker goes without them')
    return (
        f"preload left threads behind, which would be outside of the sandbox: "
        f"{', '.join(names)}; {', or '.join(cures)}"
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
    while reason is not None:
        if isinstance(reason, MemoryError):
            return False
        if isinstance(reason, OSError) and not isinstance(reason, _FINDINGS):
            return False  # a connection, a limit of the machine, a time that was over
        reason = reason.__cause__ or reason.__context__
    return fixed or isinstance(error, ImportError | NameError | SyntaxError)
