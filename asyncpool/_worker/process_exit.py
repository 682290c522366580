"""How the process of a worker ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

from asyncpool._worker.job.coroutines import Coroutines

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import NoReturn


def leave(status: int, coroutines: Coroutines) -> NoReturn:
    """End the event loop, and then this process, with *status*.

    It does not wait for threads that calls have left behind: otherwise a replaced worker
    would live as long as they do.  It names them on stderr if somebody may miss them.
    """
    # sys.exit() would unwind the stack, and in a forked worker its frames are the launcher's.
    with contextlib.suppress(BaseException):
        coroutines.close()
    with contextlib.suppress(BaseException):
        _tell_of_threads()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # noqa: SLF001 - there is no public way
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(status)


def _tell_of_threads() -> None:
    if "threading" not in sys.modules:
        return
    import threading  # noqa: PLC0415 - see _worker/__init__.py

    # Threads of a ThreadPoolExecutor are no daemons, but usually wait for no work.
    pools = sys.modules.get("concurrent.futures.thread")
    waiting = getattr(pools, "_threads_queues", ())
    names = sorted(
        thread.name
        for thread in threading.enumerate()
        if not (thread.daemon or thread is threading.main_thread() or thread in waiting)
    )
    if names:
        sys.stderr.write(
            "asyncpool: this worker ends, and with it the threads that its calls have"
            f" left running: {', '.join(names)}; a call should join the threads that it starts\n"
        )
