"""The ``__main__`` of a worker: the service's script, imported when it is first needed.

Many services never send anything of their script, which may be an installed command.  So the
worker imports the script only when some code asks ``__main__`` for an attribute.  Usually that
is pickle, for the function of the first job or of the initializer.
"""

from __future__ import annotations

import _thread
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from asyncpool._core.main import main_module
from asyncpool._core.main.by_value_loading import space
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Any, NoReturn

_NAME = "__mp_main__"  # as with multiprocessing, whose children may import it in turn

_before: list[ModuleType] = []


def install(script: tuple[str, str, tuple[str, ...]] | None) -> None:
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


def load() -> str:
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
        if not (name.startswith("__") or main_module.importing()):
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
            if _Import.failure is not None:
                _refuse(self, _Import.failure)


def _run(script: _Script) -> None:
    path, before = script.__file__ or "", vars(script).copy()
    try:
        with main_module.Importing(path), open(path, "rb") as file:  # noqa: PTH123 - see _worker/__init__.py
            code = compile(file.read(), path, "exec", dont_inherit=True)
            exec(code, vars(script))  # noqa: S102
    except BaseException as error:
        vars(script).clear()  # nobody is to work with a half of it
        vars(script).update(before)
        if isinstance(error, JobCancelled):  # the job's matter, and not the script's
            _Import.begun = False
            raise
        _Import.failure = error


def _refuse(script: _Script, failure: BaseException) -> NoReturn:
    what = f"{type(failure).__name__}: {failure}"
    raise ImportError(
        f"importing the script {script.__file__} in a worker failed: {what}; put what "
        "starts things under `if __name__ == '__main__':`",
        name="__main__",
        path=script.__file__,
    ) from failure
