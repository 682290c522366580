"""Whether the kernel here can enforce a sandbox, for tests that need one."""

from __future__ import annotations

import pytest

from asyncpool import Pool, Sandbox
from asyncpool.errors import UnsupportedPlatformError


def _refusal() -> str:
    try:
        Pool(name="tried", sandbox=Sandbox())
    except UnsupportedPlatformError as error:
        return str(error)
    return ""


needs_sandbox = pytest.mark.skipif(bool(_refusal()), reason=_refusal())
