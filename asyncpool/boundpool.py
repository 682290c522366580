"""A pool with options for the jobs that are submitted through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

from asyncpool._api.caller import Caller
from asyncpool._core.policies.job_options import JobOptions, Options
from asyncpool._runtime.options.job_options import changed
from asyncpool._runtime.pool.engine import Engine

__all__ = ["BoundPool"]


@dataclass(frozen=True, slots=True)
class BoundPool(Caller):
    """A pool together with options for its jobs; :meth:`Pool.options` makes it."""

    _pool: Caller
    _options: JobOptions

    def options(self, **changes: Unpack[Options]) -> BoundPool:
        """Return another bound pool, with *changes* to the options of this one."""
        return BoundPool(self._pool, changed(self._options, changes))

    def _running_supervisor(self) -> Engine:
        return self._pool._running_supervisor()  # noqa: SLF001

    async def _broadcast(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: JobOptions,
    ) -> dict[int, Any]:
        return await self._pool._broadcast(fn, args, kwargs, options)  # noqa: SLF001
