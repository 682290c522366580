"""Give this worker the name and the parent that the pool has sent, also for multiprocessing.

Importing ``multiprocessing`` costs a worker 4 ms and 1.2 MB, so this waits until a job does.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from asyncpool._worker.process.import_watch import ImportWatch

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Any

    from asyncpool._core.wire.messages import Identity

# With it come the names that are changed, and nobody has looked at them yet.
_CONTEXT = "multiprocessing.context"


def assume(identity: Identity) -> None:
    """Make this process a child of the service, for ``multiprocessing`` too."""
    sys.argv[:] = identity.argv
    ImportWatch(_CONTEXT, partial(_become, identity))


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
