"""The two signals that a pool sends to its workers while they are at work.

Real-time ones where there are any, which nobody else is likely to use.
"""

from __future__ import annotations

import signal

_FIRST = getattr(signal, "SIGRTMIN", None)

# Raises JobCancelled in the main thread, if that still runs the job that is meant.
INTERRUPT = int(signal.SIGUSR1 if _FIRST is None else _FIRST + 11)

# Writes down the stacks of all threads.
STACKS = int(signal.SIGUSR2 if _FIRST is None else _FIRST + 12)
