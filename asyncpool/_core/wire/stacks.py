"""Read the stacks that a worker has written down.

``faulthandler`` writes them in C, thread by thread, the main thread last and the
innermost call of each first.  If the job waits in an event loop, where it does follows
behind that.  What belongs to the worker itself tells its user nothing.
"""

from __future__ import annotations

# What the stack of a coroutine begins with.
COROUTINE = "Coroutine of the job (most recent call first):"

_OURS = "/asyncpool/_worker/"

# What jobs call themselves.
_CALLED = "/asyncpool/_worker/job/heartbeats.py"


def tidy(text: str) -> str:
    """Return the stacks in *text*, the job's first, without the worker's own."""
    threads: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  ") and lines:
            lines.append(line)
        elif line:
            lines = [line]
            # A worker may be asked in two ways, and write down all of them twice.
            thread = "" if line == COROUTINE else line.partition("0x")[2] or line
            threads.pop(thread, None)
            threads[thread] = lines
    if not threads:
        return ""
    coroutine = threads.pop("", [])
    *others, main = threads.values() or [[]]
    kept = [line for thread in others if not _is_ours(thread[-1]) for line in thread]
    return "\n".join([*coroutine, *_outside(main), *kept])


def _outside(thread: list[str]) -> list[str]:
    """Return what a thread did in calls from our code, which are the innermost."""
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
