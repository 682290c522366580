"""What a worker shows to the code of its jobs: the service's ``__main__``, and a child process of it.

``__main__`` is the service's script, imported when it is first needed.  Many services never send
anything of their script, which may be an installed command.  So the worker imports the script only
when some code asks ``__main__`` for an attribute.  Usually that is pickle, for the function of the
first job or of the initializer.

For ``multiprocessing`` the worker has the name, the parent and the start method that the pool has
sent, and the service's resource tracker.  To import it costs a worker 4 ms and 1.2 MB, so this
waits until a job does.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

from asyncpool._wire import scripts
from asyncpool._wire.messages import Identity
from asyncpool._wire.scripts import space
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import Loader
    from typing import Any

_NAME = "__mp_main__"  # as with multiprocessing, whose children may import it in turn

_before: list[ModuleType] = []


def install_script(script: tuple[str, str, tuple[str, ...]] | None) -> None:
    """Give this process its ``__main__``.

    Args:
        script: The name of the module, if it has one, its file and its arguments.  With
            ``None`` there is nothing to import: ``__main__`` is empty, and stays.
    """
    main = sys.modules["__main__"]
    if isinstance(main, _Script) and script is not None:
        return  # by the launcher, which has imported it
    _before.append(main)  # whose code may still run
    if script is None:
        sys.modules["__main__"] = ModuleType("__main__")
    else:
        module, path, argv = script
        sys.modules["__main__"] = sys.modules[_NAME] = _Script(module, path)
        sys.argv[:] = argv


def load_script() -> str:
    """Import the script; return why that has failed, if it has.

    Jobs that need the script then fail with this reason.
    """
    try:
        space(imported=True)
    except ImportError as error:
        return str(error)
    return ""


class _Import:
    """How far the import is."""

    lock = _thread.RLock()
    begun = False
    failure: BaseException | None = None


class _Script(ModuleType):
    """The script; its dictionary is that of its functions."""

    # No attributes but those, since any other name may be one of the script's.

    def __init__(self, module: str, path: str) -> None:
        super().__init__(_NAME)
        spec = ModuleSpec(module, None, origin=path) if module else None
        package = "" if spec is None else spec.parent
        vars(self).update(__file__=path, __package__=package, __spec__=spec)

    def __getattr__(self, name: str) -> Any:
        # Whoever looks for what only some modules have does not mean this one.
        if not (name.startswith("__") or scripts.importing):
            self.__load__()
            if name in vars(self):
                return vars(self)[name]
        raise AttributeError(
            f"the script {self.__file__}, imported in a worker, has no {name!r}"
        )

    def __load__(self) -> None:
        """Import it, if nobody has.

        Raises:
            ImportError: If it cannot be imported.
        """
        with _Import.lock:
            if not _Import.begun:
                _Import.begun = True
                _run(self)
            if (failure := _Import.failure) is not None:
                what = f"{type(failure).__name__}: {failure}"
                raise ImportError(
                    f"importing the script {self.__file__} in a worker failed: {what}; put what "
                    "starts things under `if __name__ == '__main__':`",
                    name="__main__",
                    path=self.__file__,
                ) from failure


def _run(script: _Script) -> None:
    path, before = script.__file__ or "", vars(script).copy()
    scripts.importing = path
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - see _worker/__init__.py
            code = compile(file.read(), path, "exec", dont_inherit=True)
            exec(code, vars(script))  # noqa: S102
    except BaseException as error:
        vars(script).clear()  # nobody is to work with a half of it
        vars(script).update(before)
        if isinstance(error, JobCancelled):  # the job's matter, and not the script's
            _Import.begun = False
            raise
        _Import.failure = error
    finally:
        scripts.importing = ""


_TRACKER = "multiprocessing.resource_tracker"

# With it come the names that are changed, and nobody has looked at them yet.
_CONTEXT = "multiprocessing.context"


def adopt(identity: Identity, borrow_tracker: Callable[[], int | None]) -> None:
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
    try:
        ended = os.pidfd_open(pid)
    except (AttributeError, OSError):
        # A worker ends with the pool's process: who can ask has a parent.
        ended = os.pipe()[0]
    process._parent_process = process._ParentProcess(name, pid, ended)  # noqa: SLF001
    if identity.start_method is not None:
        context._default_context.set_start_method(identity.start_method, force=True)  # noqa: SLF001


class ImportWatch:
    """An entry of ``sys.meta_path`` that sees when a module is imported.

    It stands for the module's loader until that has loaded the module.

    Args:
        name: The module.
        loaded: Called once, when the module is imported: at once, if it already is.
    """

    _loader: Loader

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
                    self._loader, spec.loader = spec.loader, self  # type: ignore[assignment]
                    return spec
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as its loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module, and be its loader no more."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self.end()
        self._loaded()
