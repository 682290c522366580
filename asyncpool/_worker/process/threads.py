"""Start a thread of this process."""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable


def start_thread(run: Callable[[], object]) -> None:
    """Start a thread that calls *run*, and return as soon as it runs.

    A thread that has no number yet would be the first in the list of threads.  Of such a
    list, ``faulthandler`` writes no stack at all since Python 3.15, not even that of the
    thread that crashed.  ``threading.Thread`` waits, too; to import it takes a while.

    Raises:
        RuntimeError: If no thread can be started.
    """
    running = allocate_lock()
    running.acquire()

    def begin() -> None:
        running.release()
        run()

    start_new_thread(begin, ())
    running.acquire()
