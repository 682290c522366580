"""Open what a pool was asked to have beside it, before anything happens in it."""

from __future__ import annotations

from asyncpool._runtime.pool.lifecycle import SupervisorRunner


def open_control_and_trace(
    life: SupervisorRunner,
    *,
    name: str,
    concurrency: int,
    control: str | None,
    trace: str | None,
    max_traced: int | None,
) -> None:
    """Open the control socket and the trace of a pool.

    Args:
        life: The pool's life.  Not the pool itself: who drops it would not be noticed then.
        name: The pool's name.
        concurrency: How many jobs each worker runs at once.
        control: The name or path of the control socket; ``""`` for the pool's name, ``None``
            for no socket.
        trace: The file of the trace, or ``None``.
        max_traced: How many jobs a second it shows; ``None`` for all.

    Raises:
        OSError: If the file cannot be written, or the socket cannot be made at its path.
    """
    opened = None
    if control is not None:
        from asyncpool._observe.control.pool_control import open_pool_control  # noqa: PLC0415 - few have one

        opened = open_pool_control(life, name, control or None, concurrency)
    if trace is None:
        return
    from asyncpool._observe.trace import Trace  # noqa: PLC0415 - few have one

    try:
        Trace(
            trace,
            name=name,
            concurrency=concurrency,
            hub=life.hub,
            stats=lambda: life.running().stats(),
            most=max_traced,
        )
    except BaseException:
        if opened is not None:
            opened.socket.shut()
        raise
