"""The first code of a process that is a fresh interpreter: a spawned worker or a launcher.

It is started as ``python -P -c BOOTSTRAP ROOT ROLE FD...``.  *ROOT* is the folder in which
the service has found this package, because the new interpreter may not find it, or may find
another one.  *ROOT* is at the front of the path while the package is imported, and then at
its end, so that other modules in that folder shadow nothing.
"""

from __future__ import annotations

import faulthandler
import os
import sys

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the role that the command line names."""
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
    from asyncpool._worker.process import titles  # noqa: PLC0415

    titles.load()

    work(*fds)
