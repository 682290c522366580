"""The command lines of the processes that are fresh interpreters: launchers and spawned workers.

A plain Python runs ``python -P -c BOOTSTRAP ROOT ROLE FD...``.  A frozen program is no Python: it
runs its own script, whatever its command line says.  What makes the tools that freeze programs do
something else is the command line of the standard library's spawn, ``--multiprocessing-fork
pipe_handle=FD``.  They, or ``multiprocessing.freeze_support()`` in the script, call
``multiprocessing.spawn.spawn_main``, which unpickles from the pipe what to call.
"""

from __future__ import annotations

import os
import sys

# The environment of such a process has it until the process has become what it was started for.
# The value is the descriptor of its channel.  A process that runs a program, and still has it,
# was started for another purpose, and must not start others in turn.
MARK = "ASYNCPOOL_STARTS"

# What such a process answers on its channel instead of a greeting.
REFUSAL = b"refused\n"

_FROZEN = "--multiprocessing-fork"


def greeting() -> bytes:
    """Return the first line on a launcher's channel: whether it can run what this Python runs."""
    threaded = "t" * ("t" in sys.abiflags)
    tag, version = sys.implementation.cache_tag, sys.version.split()[0]
    folder = os.path.realpath(os.path.dirname(getattr(os, "__file__", "")))  # noqa: PTH120 - as the other side
    return f"{tag}{threaded} {version} in {folder!a}\n".encode()


def frozen(executable: str) -> tuple[str, ...]:
    """Return the beginning of the command line of a frozen program."""
    return executable, _FROZEN


def command_line(
    program: tuple[str, ...], role: str, fds: tuple[int, ...]
) -> list[str]:
    """Return the command line of a process in a *role*, which inherits these descriptors.

    If there is one more in it, ``pipe_handle``, the process inherits that too.

    Args:
        program: The beginning of the command line.
        role: ``"launcher"`` or ``"worker"``.
        fds: The descriptors.
    """
    if program[-1] != _FROZEN:
        return [*program, role, *map(str, fds)]
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    # Two pickles, as spawn_main reads them: an empty dictionary, and the object that it is to
    # call, by its name, since not both sides may import it.
    numbers = "".join(f"I{fd}\n" for fd in fds)
    start = f"casyncpool._worker.process\nStart\n(V{role}\n{numbers}tR."
    os.write(writing, b"}." + start.encode())
    os.close(writing)
    return [*program, f"pipe_handle={reading}"]
