"""Call a function when a module is imported."""

from __future__ import annotations

import contextlib
import sys

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


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
