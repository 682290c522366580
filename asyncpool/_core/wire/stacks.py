"""Read the stacks that a worker has written.

``faulthandler`` writes them in C, thread by thread.  The main thread is last, and the
innermost call of each thread is first.  If the job waits in an event loop, the stack of
its coroutine follows.  The worker's own calls tell the user nothing, so they are left
out.
"""

from __future__ import annotations

# How the stack of a coroutine begins.
COROUTINE = "Coroutine of the job (most recent call first):"

# How the main thread of a worker ends: with its outermost call.  Of more than 100 calls,
# faulthandler writes the inner ones and this.
_OUTERMOST = b'\n  File "<string>", line 1 in <module>\n'
_MORE = b"\n  ...\n"

_OURS = "asyncpool/_worker/"

# How the stacks name jobs.
_CALLED = "asyncpool/_worker/api.py"


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
    if not threads:
        return ""
    coroutine = threads.pop("", [])
    *others, main = threads.values() or [[]]
    kept = [line for thread in others if not _is_ours(thread[-1]) for line in thread]
    return "\n".join([*coroutine, *_outside(main), *kept])


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


def _outside(thread: list[str]) -> list[str]:
    """Return the calls of a thread that are inside of our calls: the innermost ones."""
    shown = thread[:1]
    for line in thread[1:]:
        if not _is_ours(line):
            shown.append(line)
        elif _CALLED in line:
            continue
        elif len(shown) > 1:
            break
    return shown


def _is_ours(line: str) -> bool:
    return _OURS in line
