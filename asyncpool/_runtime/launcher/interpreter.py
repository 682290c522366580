"""Start an interpreter with the flags and the asyncpool of this process, and nothing else of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from asyncpool._core.wire.messages import Variables

# The new process needs the asyncpool of this process, even if another one is installed.  So its
# directory comes first while asyncpool is imported, and last before anything else is imported.
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); import asyncpool; "
    "sys.path.append(sys.path.pop(0)); "
    "from asyncpool._worker.bootstrap import main; main()"
)
_ROOT = str(Path(__file__).parents[3])


def start_launcher(
    theirs: socket.socket, env: Variables | None
) -> subprocess.Popen[bytes]:
    """Start the launcher's process.

    Args:
        theirs: Its end of the channel.
        env: The variables of its environment; ``None`` for that of this process.

    Raises:
        OSError: If it cannot be started.
    """
    command = [*_interpreter(), "-c", _BOOTSTRAP, _ROOT, "launcher"]
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [*command, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if _is_passed_on(2) else subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        env=None if env is None else dict(env),
        start_new_session=True,
    )


def worker_command() -> tuple[str, ...]:
    """Return the command line of a worker that starts as a fresh interpreter."""
    return (*_interpreter(), "-c", _BOOTSTRAP, _ROOT, "worker")


def _interpreter() -> list[str]:
    # The flags of this interpreter, as multiprocessing passes them on.  No directory comes in
    # front of the path, since any file in it could pose as a module.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
    return [sys.executable, *flags, *([] if "-P" in flags else ["-P"])]


def _is_passed_on(fd: int) -> bool:
    # If stderr was closed, anything that the service has opened since may have its number.
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False
