"""System calls that exist and are refused, as sandboxes do; the pool does without them.

A filter of system calls (seccomp, gVisor) answers with ``EPERM`` or ``ENOSYS``, so whether
there is such a call shows only when it is made.
"""

from __future__ import annotations

import errno
import logging

_LOGGER = logging.getLogger("asyncpool")

_REFUSED = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})

_told: set[str] = set()


def is_refusal(error: OSError) -> bool:
    """Tell whether *error* says that a call may not be made here, whatever it is for."""
    return error.errno in _REFUSED


def tell_once(call: str, error: OSError, instead: str) -> None:
    """Log that *call* is refused, and what the pool does instead; once in a process."""
    if call in _told:
        return
    _told.add(call)
    _LOGGER.warning(
        "%s is refused here (%s): %s; allow it in the sandbox's filter of system calls "
        "('asyncpool doctor' tells what else is missing)",
        call,
        error,
        instead,
    )
