"""The namespaces of a worker in a sandbox."""

from __future__ import annotations

import contextlib
import os

from asyncpool._core.sandbox.plan import NEW_NETWORK, NEW_USER
from asyncpool._system.confinement import forbid_capabilities, new_namespaces
from asyncpool._worker.process.preloading import warm_up


def enter_namespaces(namespaces: int) -> bool:
    """Make the namespaces of a worker; return whether the kernel allows them."""
    warm_up()
    if os.geteuid() == 0:
        forbid_capabilities()
    return bool(namespaces) and _separate(namespaces)


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
