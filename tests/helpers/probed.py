"""A module that notes at its import which environment there is."""

from __future__ import annotations

import os
import sys
import time

from asyncpool import current_job

AT_IMPORT = os.environ.get("PROBED")


def seen() -> tuple[int, str | None, str | None]:
    """Return this worker's slot, and the variable at the import and now."""
    return current_job().slot, AT_IMPORT, os.environ.get("PROBED")


def flags() -> bool:
    return bool(sys.flags.dont_write_bytecode)


def hour() -> int:
    return time.localtime(0).tm_hour
