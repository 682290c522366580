"""The shared pools of ``asyncpool serve``, which its workers find by their names."""

from __future__ import annotations

import json
import os
from typing import Any

from asyncpool._core.base.validation import TEXT, check_type
from asyncpool.sharedpool._client import SharedPool
from asyncpool.sharedpool._connect import connect

# Where the paths of their sockets are, by name, as JSON.
VARIABLE = "ASYNCPOOL_SHARED_POOLS"


def shared_pool(name: str, **options: Any) -> SharedPool:
    """Return the pool *name* of ``asyncpool serve --pool NAME=MODULE:FUNCTION``, for ``async with``.

    Args:
        name: Its name.
        **options: Those of :func:`connect`.

    Raises:
        LookupError: If there is no pool of that name, or this is no worker of such a server.
        TypeError: If *name* is no str.
    """
    check_type("name", name, TEXT)
    try:
        found = json.loads(os.environ.get(VARIABLE, "{}"))
    except ValueError:
        found = {}
    if name not in found:
        there = ", ".join(map(repr, found)) or "none"
        raise LookupError(
            f"there is no shared pool {name!r} (there are: {there}); a server has one by "
            f"'asyncpool serve --pool {name}=MODULE:FUNCTION'"
        )
    return connect(f"unix:{found[name]}", **options)
