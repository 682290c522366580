"""What the kernel is to allow a worker."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpool._core.wire.messages import KernelLimit


def apply_bounds(
    nice: int,
    cpus: tuple[int, ...] | None,
    rlimits: Iterable[tuple[str, KernelLimit]],
) -> None:
    """Bind this process; see :class:`asyncpool.WorkerLimits`.

    Raises:
        OSError, ValueError: If the kernel does not allow that.
    """
    if nice:
        os.nice(nice)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    for name, limit in rlimits:
        import resource  # noqa: PLC0415 - few workers need it

        kind = getattr(resource, name)
        both = (limit, resource.getrlimit(kind)[1]) if isinstance(limit, int) else limit
        try:
            resource.setrlimit(kind, both)
        except (OSError, ValueError) as error:
            raise type(error)(f"{name} cannot be set to {both}: {error}") from error
