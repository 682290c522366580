"""Show where all tasks of a worker that serves wait."""

from __future__ import annotations

import asyncio
from itertools import islice

from asyncpool._core.wire.stacks import COROUTINE

# The most tasks that are shown, the most calls of each, and the most characters in all.
_MOST = 100
_DEEPEST = 20
_LONGEST = 16_384


def task_stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Return where the tasks of *loop* wait; another thread calls this."""
    lines = [COROUTINE]
    for task in islice(asyncio.all_tasks(loop), _MOST):
        lines.append(f"  task {task.get_name()!r}:")
        lines += [
            f'    File "{frame.f_code.co_filename}", line {frame.f_lineno} in '
            f"{frame.f_code.co_name}"
            for frame in task.get_stack(limit=_DEEPEST)[::-1]
        ]
    text = "\n".join(lines)
    return f"\n{text[:_LONGEST]}\n"
