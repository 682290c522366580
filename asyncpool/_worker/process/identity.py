"""Have multiprocessing in a worker work as in a child of the service.

That is: the name, the parent and the start method that the pool has sent, and the service's
resource tracker.

Importing ``multiprocessing`` costs a worker 4 ms and 1.2 MB, so this waits until a job does.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from asyncpool._worker.process.import_watch import ImportWatch

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from asyncpool._core.wire.messages import Identity

_TRACKER = "multiprocessing.resource_tracker"

# With it come the names that are changed, and nobody has looked at them yet.
_CONTEXT = "multiprocessing.context"


def assume(identity: Identity, borrow_tracker: Callable[[], int | None]) -> None:
    """Make this process a child of the service, for ``multiprocessing`` too.

    Args:
        identity: What the pool has sent.
        borrow_tracker: Returns the descriptor of the service's resource tracker; ``None`` if it
            lends none.
    """
    sys.argv[:] = identity.argv
    ImportWatch(_CONTEXT, partial(_become, identity))
    ImportWatch(_TRACKER, partial(_share_tracker, borrow_tracker))


def _share_tracker(borrow: Callable[[], int | None]) -> None:
    """Have what this worker shares be unlinked at the end of the service, if nobody does before.

    A tracker of its own would die with it, or unlink what others still use.  Few jobs need one,
    and it is a process: so it is asked for when somebody looks for its descriptor.
    """
    module: Any = sys.modules[_TRACKER]
    worker = os.getpid()

    class Tracker(module.ResourceTracker):  # type: ignore[misc]
        @property
        def _fd(self) -> int | None:
            known: dict[str, Any] = self.__dict__
            if "lent" not in known and os.getpid() == worker:
                known["lent"] = borrow()
                if known["lent"] is not None:
                    known["_fd"], known["_pid"] = known["lent"], None
            return known["_fd"]  # type: ignore[no-any-return]

        @_fd.setter
        def _fd(self, fd: int | None) -> None:
            self.__dict__["_fd"] = fd

    module._resource_tracker.__class__ = Tracker  # noqa: SLF001


def _become(identity: Identity) -> None:
    context: Any = sys.modules[_CONTEXT]
    process = context.process
    this = process.current_process()
    this.name, this.authkey = identity.name, identity.authkey
    this._identity, this._parent_pid = (identity.number,), identity.parent[0]  # noqa: SLF001
    pid, name = identity.parent
    process._parent_process = process._ParentProcess(name, pid, _sentinel(pid))  # noqa: SLF001
    if identity.start_method is not None:
        context._default_context.set_start_method(identity.start_method, force=True)  # noqa: SLF001


def _sentinel(pid: int) -> int:
    """Return a descriptor that is ready to be read when process *pid* has ended."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        # A worker ends with the pool's process: who can ask has a parent.
        return os.pipe()[0]
