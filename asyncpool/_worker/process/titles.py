"""What ``ps`` and ``top`` call the processes of a pool.

Linux keeps a short name for each process, which costs a system call.  A whole command line can only
be changed by ``setproctitle``, an extra, which imports ``logging``: 2 MB for each launcher.
"""

from __future__ import annotations

import contextlib
import sys

from asyncpool._core.base.text import printable
from asyncpool._worker.process.os_setup import prctl

_PR_SET_NAME = 15
_MOST = 15  # bytes of a name


def load() -> None:
    """Import ``setproctitle`` if it is installed; workers that are forked later have it too."""
    with contextlib.suppress(Exception):  # it may be anything that has this name
        __import__("setproctitle")


def show(name: str, title: str) -> None:
    """Have this process called *name*, and *title* where there is room for a command line."""
    module = sys.modules.get("setproctitle")
    if module is not None:
        with contextlib.suppress(Exception):
            module.setproctitle(f"asyncpool: {printable(title)}")
    # After that, since it sets the name too.
    prctl(_PR_SET_NAME, name.encode()[:_MOST])
