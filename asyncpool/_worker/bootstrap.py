"""Where a process begins that is a fresh interpreter: a spawned worker, a launcher.

Started as ``python -P -c BOOTSTRAP ROOT ROLE FD...``: *ROOT* is where this package
was found, since the interpreter may not find it by itself, or finds another one.  It is
in front of the path for the package alone, and then at its end, since what lies beside
the package must not shadow anything.
"""

from __future__ import annotations

import faulthandler
import os
import sys

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Be what the command line says."""
    role, *numbers = sys.argv[2:]
    fds = [int(number) for number in numbers]
    for fd in fds:
        os.set_inheritable(fd, False)
    if role == "launcher":
        from asyncpool._worker.launcher.launcher_process import main as serve  # noqa: PLC0415

        serve(*fds)
    sys.argv[:] = [""]
    faulthandler.enable()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    from asyncpool._worker.loop import work  # noqa: PLC0415

    work(*fds)
