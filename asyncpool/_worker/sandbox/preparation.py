"""What a worker can do towards its sandbox before it has its plan, and so in a spare process.

It takes half of the time, and nobody waits for it there.
"""

from __future__ import annotations

import contextlib
import os

from asyncpool._core.sandbox.plan import NEW_NETWORK, NEW_USER
from asyncpool._system.confinement import (
    forbid_capabilities,
    landlock_version,
    new_namespaces,
)
from asyncpool._worker.process.preloading import threads_left
from asyncpool._worker.process.warm_up import warm_up
from asyncpool._worker.sandbox.descriptors import open_descriptors, unknown_descriptors


class _Entered:
    """What this process has done."""

    pid = 0
    separate = False


def rehearse(namespaces: int) -> None:
    """Do in a spare process what need not wait; see ``_worker/launcher/rehearsal.py``."""
    threads_left()
    unknown_descriptors(open_descriptors(), ())  # what they find counts later
    landlock_version()
    enter_namespaces(namespaces)


def enter_namespaces(namespaces: int) -> bool:
    """Make the namespaces of a worker, once; return whether the kernel allows them."""
    if _Entered.pid != os.getpid():  # and not only the process that it was forked from
        _Entered.pid = os.getpid()
        warm_up()
        if os.geteuid() == 0:
            forbid_capabilities()
        _Entered.separate = bool(namespaces) and _separate(namespaces)
    return _Entered.separate


def _separate(flags: int) -> bool:
    user, group = os.getuid(), os.getgid()
    try:
        new_namespaces(flags & (NEW_USER | NEW_NETWORK))
    except OSError:  # they come on top of the rest
        return False
    if flags & NEW_USER:
        # The same numbers inside as outside.
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                file.write(text)
    return True
