"""The names of signals, and the two that a worker handles while it runs a job.

The two are real-time signals where the system has them, because jobs hardly ever use these.
"""

from __future__ import annotations

import signal

_FIRST = getattr(signal, "SIGRTMIN", None)

# Its handler raises JobCancelled in the main thread, if that still runs the cancelled job.
INTERRUPT = int(signal.SIGUSR1 if _FIRST is None else _FIRST + 11)

# Its handler writes the stacks of all threads to the worker page.
STACKS = int(signal.SIGUSR2 if _FIRST is None else _FIRST + 12)


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, which has a number and no name
        return f"signal {number}"
