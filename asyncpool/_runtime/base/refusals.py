"""System calls that exist but are refused, as in sandboxes; the pool does without them.

A filter of system calls (seccomp, gVisor) answers with ``EPERM`` or ``ENOSYS``.  So the pool
learns only from the call itself whether it is allowed.
"""

from __future__ import annotations

import errno
import logging

from asyncpool._core.logs import pool_messages as say

_LOGGER = logging.getLogger("asyncpool")

_REFUSED = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})

_told: set[str] = set()


def is_refusal(error: OSError) -> bool:
    """Return whether *error* says that the system call itself is not allowed here."""
    return error.errno in _REFUSED


def tell_once(call: str, error: OSError, instead: str) -> None:
    """Log that *call* is refused, and what the pool does instead; once for each call."""
    if call in _told:
        return
    _told.add(call)
    say.CALL_REFUSED.log(_LOGGER, {"call": call}, why=error, instead=instead)
