"""Say why a module cannot be imported that is there, and out of a sandbox's reach.

The kernel lets this process see that a file exists, but not read it.  Without this finder such an
import would fail in one of two ways that both mislead: there is no such module, or the file is not
permitted.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder, all_suffixes

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class ReachableModules:
    """A finder before all others; it finds what they find, or says why nobody can."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return what is to be imported as *name*; ``None`` if nothing is known of it.

        Raises:
            ModuleNotFoundError: If it is there, and out of reach.
        """
        if path is None and name in sys.builtin_module_names:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            if spec.has_location and spec.origin and not _is_readable(spec.origin):
                raise _out_of_reach(name, spec.origin)
            return spec
        where = _where(name, sys.path if path is None else path)
        if where is not None:
            raise _out_of_reach(name, where)
        return None


def _is_readable(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return False
    except OSError:
        return True  # not a file, such as a member of an archive: its loader knows
    return True


def _where(name: str, path: Sequence[str]) -> str | None:
    """Return the file of a module that its folder's listing would show, if it may be listed."""
    last = name.rpartition(".")[2]
    for folder in path:
        for suffix in ("/__init__.py", *all_suffixes()):
            file = f"{folder}/{last}{suffix}"
            if os.path.exists(file) and not _is_readable(file):  # noqa: PTH110
                return file
    return None


def _out_of_reach(name: str, where: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"the module {name!r} is in {where}, which the sandbox of this worker does not let it "
        f"read: add {name!r} to Pool(preload=...), or its folder to Sandbox(read=...)",
        name=name,
        path=where,
    )
