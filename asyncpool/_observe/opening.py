"""Open what a pool was asked to have beside it, before anything happens in it."""

from __future__ import annotations

from typing import NamedTuple

from asyncpool._engine.lifecycle import SupervisorRunner
from asyncpool._observe.control.local_orders import LocalOrders


class Beside(NamedTuple):
    """What a pool has beside it.

    Attributes:
        name: The pool's name.
        concurrency: How many jobs each worker runs at once.
        control: The name or path of the control socket; ``""`` for the pool's name, ``None``
            for no socket.
        trace: The file of the trace, or ``None``.
        max_traced: How many jobs a second it shows; ``None`` for all.
    """

    name: str
    concurrency: int
    control: str | None
    trace: str | None
    max_traced: int | None


async def open_beside(life: SupervisorRunner, beside: Beside) -> None:
    """Open the control socket and the trace of a pool.

    Args:
        life: The pool's life.  Not the pool itself: who drops it would not be noticed then.
        beside: What it has beside it.

    Raises:
        OSError: If the file cannot be written, or the socket cannot be made at its path.

    Cancellation:
        Opens neither.
    """
    orders, hub, opened = LocalOrders(life), life.hub, None
    if beside.control is not None:
        from asyncpool._observe.control.pool_control import open_pool_control  # noqa: PLC0415 - few have one

        opened = await open_pool_control(
            orders, hub, beside.name, beside.control or None, beside.concurrency
        )
    if beside.trace is None or hub.ended:  # the pool may be closed meanwhile
        return
    from asyncpool._observe.trace import Trace  # noqa: PLC0415 - few have one

    try:
        Trace(
            beside.trace,
            name=beside.name,
            concurrency=beside.concurrency,
            hub=hub,
            stats=orders.latest,
            most=beside.max_traced,
        )
    except BaseException:
        if opened is not None:
            opened.socket.shut()
        raise
