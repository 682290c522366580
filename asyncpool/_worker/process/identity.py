"""Have multiprocessing in a worker work as in a child of the service.

That is: the name, the parent and the start method that the pool has sent, and the service's
resource tracker.

Importing ``multiprocessing`` costs a worker 4 ms and 1.2 MB, so this waits until a job does.
"""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
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
    ImportWatch(_TRACKER, partial(_share_tracker, borrow_tracker, os.getpid()))


def _share_tracker(borrow: Callable[[], int | None], worker: int) -> None:
    """Have what this worker shares be unlinked at the end of the service, if nobody does before.

    A tracker of its own would die with it, or unlink what others still use.  Few jobs need one,
    and it is a process: so it is asked for when somebody looks for its descriptor.
    """
    module: Any = sys.modules[_TRACKER]

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


class ImportWatch:
    """An entry of ``sys.meta_path`` that sees when a module is imported.

    Args:
        name: The module.
        loaded: Called once, when the module is imported: at once, if it already is.
    """

    def __init__(self, name: str, loaded: Callable[[], None]) -> None:
        self._name = name
        self._loaded = loaded
        if name in sys.modules:
            loaded()
        else:
            sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Stop watching."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, name: str, *details: Any) -> ModuleSpec | None:
        """Find the module as the others do, and be told when it is there."""
        if name != self._name:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, *details)
                if spec is not None and spec.loader is not None:
                    spec.loader = _Watched(spec.loader, self._arrive)  # type: ignore[assignment]
                    return spec
        return None

    def _arrive(self) -> None:
        self.end()
        self._loaded()


class _Watched:
    """A loader that reports when it has loaded its module, and then removes itself."""

    def __init__(self, loader: Loader, loaded: Callable[[], None]) -> None:
        self._loader = loader
        self._loaded = loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._loaded()
