"""Import what the code of a worker imports when it is needed, where that could be out of reach."""

from __future__ import annotations

import contextlib
import importlib
import sys

# What is installed may be out of a sandbox's reach.  The modules of this package are not, and idna
# is asked for by each connection.
_NEEDED = (
    "asyncio",
    "cloudpickle",
    "ctypes",
    "encodings.idna",
    "json",
    "logging",
    "resource",
    "select",
    "threading",
    "typing",
)


def warm_up() -> None:
    """Import these modules, which forked workers then share."""
    for name in set(_NEEDED) - {*sys.modules}:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
