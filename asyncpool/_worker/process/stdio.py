"""Arrange descriptors and signals of a process that has just been forked."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal  # the C part of signal, see _worker/__init__.py


def take_stdio(out: int, err: int) -> None:
    """Make *out* and *err* descriptors 1 and 2, and read nothing from 0."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in {null, out, err} - {0, 1, 2}:
        os.close(fd)


def reset_signals() -> None:
    """Give a forked process the signal handling of a fresh interpreter."""
    _signal.set_wakeup_fd(-1)
    for number in (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
