"""What pools let their owner see of where the time of jobs goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncpool._core.base.names import function_name
from asyncpool._core.base.validation import NUMBER, check_type
from asyncpool._runtime.base.arguments import check_int, check_seconds
from asyncpool._runtime.pool.lifecycle import SupervisorRunner

if TYPE_CHECKING:  # few pools are profiled
    from asyncpool.profile import Profile


class Profiled:
    """Something whose workers can be sampled: a pool."""

    __slots__ = ()

    _life: SupervisorRunner

    async def profile(
        self,
        seconds: float,
        *,
        slot: int | None = None,
        function: Callable[..., Any] | str | None = None,
        rate: float = 100.0,
    ) -> Profile:
        """Sample for some time what the workers do, and return where the time of jobs went.

        A thread in each worker looks *rate* times a second at the stack of the running job.  It
        lives only as long as the profile is being taken, and needs no rights.  Workers that
        become ready meanwhile join in.  A worker that ends meanwhile costs its last samples,
        and the profile says so (``ProfiledWorker.complete``).

        Args:
            seconds: For how long, 3600 at the most.
            slot: Sample only the worker in this slot, and its replacement if that is there too.
            function: Count only jobs of this function: the function, its name as in
                ``stats()``, or the end of the name from a dot on.
            rate: How many samples a second, 1 to 1000.

        Raises:
            ProfileInProgressError: If a profile of this pool is being taken already.
            NoWorkerError: If no worker is ready in *slot*.  The error names the slots with one.
            ValueError: If an argument is out of range.
            TypeError: If an argument is of the wrong type.
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If the pool was started in another event loop.

        Cancellation:
            Ends the samplers.

        Concurrency:
            One profile at a time.
        """
        from asyncpool._core.profile.profile_messages import (  # noqa: PLC0415 - few take one
            MAX_RATE,
            MAX_SECONDS,
            ProfileRequest,
        )

        check_seconds("seconds", seconds)
        check_type("rate", rate, NUMBER)
        if not seconds <= MAX_SECONDS:
            raise ValueError(f"seconds must be at most {MAX_SECONDS}, not {seconds}")
        if not 1 <= rate <= MAX_RATE:
            raise ValueError(f"rate must be from 1 to {MAX_RATE}, not {rate}")
        if slot is not None:
            check_int("slot", slot, at_least=0)
        request = ProfileRequest(float(seconds), float(rate), _name_of(function))
        return await self._life.open().profiles.take(request, slot)


def _name_of(function: Callable[..., Any] | str | None) -> str:
    if function is None:
        return ""
    if isinstance(function, str):
        if not function:
            raise ValueError("function must not be empty")
        return function
    if not callable(function):
        raise TypeError(f"function must be a function or its name, not {function!r}")
    return function_name(function)
