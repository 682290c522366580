"""Whether the kernel here can enforce a sandbox, for tests that need one."""

from __future__ import annotations

import os

import pytest

from asyncpool import Pool, Sandbox
from asyncpool.errors import UnsupportedPlatformError


def _refusal() -> str:
    try:
        Pool(name="tried", sandbox=Sandbox())
    except UnsupportedPlatformError as error:
        return str(error)
    return ""


# Whether all of a sandbox can be had here.
SANDBOXED = not _refusal()

# Where it cannot, the example that runs in this process does without the rest.
os.environ.setdefault("THUMBNAILS_STRICT", str(SANDBOXED))

needs_sandbox = pytest.mark.skipif(bool(_refusal()), reason=_refusal())
