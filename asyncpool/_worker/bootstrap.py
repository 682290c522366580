"""The first code of a process that is a fresh interpreter: a spawned worker or a launcher.

``_system/interpreter.py`` has its command line.  *ROOT* is the folder in which
the service has found this package, because the new interpreter may not find it, or may find
another one.  *ROOT* is at the front of the path while the package is imported, and then at
its end, so that other modules in that folder shadow nothing.
"""

from __future__ import annotations

import faulthandler
import os
import sys

from asyncpool._system.interpreter import MARK, greeting

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the role that the command line names."""
    role, *numbers = sys.argv[2:]
    _begin(role, [int(number) for number in numbers])


class Start:
    """What a frozen program unpickles: for ``spawn_main`` the process that it is to be.

    Args:
        role: As in :func:`main`.
        fds: The descriptors.
    """

    def __init__(self, role: str, *fds: int) -> None:
        self._role, self._fds = role, list(fds)

    def _bootstrap(self, parent_sentinel: int) -> NoReturn:
        os.close(parent_sentinel)
        if self._role == "launcher":
            os.write(self._fds[0], greeting())
        _begin(self._role, self._fds)


def _begin(role: str, fds: list[int]) -> NoReturn:
    os.environ.pop(MARK, None)
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
