"""The faces of a pool: its own, and that of a client which shares it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from asyncpool import Pool
from tests.helpers.shared_pools import pool_and_client

__all__ = ["Faced", "faced"]

# Opens a pool with these workers and options: what its callers have, and the pool itself.
Faced: TypeAlias = Callable[..., AbstractAsyncContextManager[tuple[Any, Pool]]]


@pytest.fixture(params=["local", "shared"])
def faced(request: pytest.FixtureRequest, tmp_path: Path) -> Faced:
    """Run a test with each face, as both promise what it is about."""
    return functools.partial(_open, request.param, tmp_path)


@contextlib.asynccontextmanager
async def _open(
    face: str, folder: Path, workers: int = 1, **options: Any
) -> AsyncGenerator[tuple[Any, Pool]]:
    if face == "local":
        async with Pool(workers, **options) as pool:
            yield pool, pool
    else:
        async with pool_and_client(folder, workers, **options) as (pool, client):
            yield client, pool
