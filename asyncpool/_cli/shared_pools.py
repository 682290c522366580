"""Pools that commands share with other processes: where they come from, and where they are found."""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from asyncpool._cli.parameters import CommandError
from asyncpool._wire.text import is_name

if TYPE_CHECKING:
    from asyncpool.pool import Pool


def named_pools(words: tuple[str, ...]) -> dict[str, str]:
    """Return what makes each pool, by its name, from words such as ``jobs=module:make_pool``.

    Raises:
        CommandError: If a word is no such one, or a name comes twice.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, target = word.partition("=")
        if not equals or not is_name(name):
            raise CommandError(
                f"--pool: {word!r} is not NAME=MODULE:FUNCTION, such as jobs=app:make_pool"
            )
        if name in found:
            raise CommandError(f"--pool: there are two pools {name!r}")
        found[name] = target
    return found


def make_pool(target: str, name: str) -> Pool:
    """Return the pool that ``module:function`` makes, which is not started.

    Commands find it by *name* and this process, unless it says how by itself.

    Raises:
        CommandError: If there is no such function, or it makes something else.
    """
    from asyncpool.pool import Pool  # noqa: PLC0415 - most servers share none

    module, colon, attribute = target.partition(":")
    if not (module and colon and attribute):
        raise CommandError(f"--pool: {target!r} is not MODULE:FUNCTION")
    try:
        function = pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise CommandError(f"--pool: {target} cannot be loaded: {error}") from error
    if not callable(function):
        raise CommandError(f"--pool: {target} is no function")
    pool = function()
    if not isinstance(pool, Pool):
        raise CommandError(f"--pool: {target} has returned {pool!r}, which is no Pool")
    if pool._control is None:  # noqa: SLF001 - the command's
        pool._control = f"{name}-{os.getpid()}"  # noqa: SLF001
    return pool


@asynccontextmanager
async def shared_by_name(targets: Mapping[str, str]) -> AsyncGenerator[list[Pool]]:
    """Share pools with the processes that this one starts meanwhile, and yield them.

    Each of them has a control socket, so that it can be rolled by itself.
    """
    pools: list[Pool] = []
    if not targets:
        yield pools
        return
    from asyncpool.sharedpool import PoolServer  # noqa: PLC0415 - as above
    from asyncpool.sharedpool._remote_pool import VARIABLE  # noqa: PLC0415

    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncpool-"))
        paths = {name: str(Path(folder, f"{name}.sock")) for name in targets}
        for name, target in targets.items():
            pool = await stack.enter_async_context(make_pool(target, name))
            await stack.enter_async_context(PoolServer(pool, paths[name]))
            pool.name = name  # whose figures they are, as others know it
            pools.append(pool)
        os.environ[VARIABLE] = json.dumps(paths)
        stack.callback(os.environ.pop, VARIABLE)
        yield pools
