"""Targets for servers that are written with asyncio's streams or protocols."""

from __future__ import annotations

from asyncpool._wire.records import Later

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import asyncio
    import ssl as ssl_module
    from collections.abc import Awaitable, Callable
    from typing import Any

    from asyncpool._cluster.worker import Worker
    from asyncpool._core import checks

    Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]
    Factory = Callable[[], asyncio.BaseProtocol]
    Ssl = Callable[[], ssl_module.SSLContext]
else:  # the master checks targets, and workers have them without
    checks = Later("asyncpool._core.checks")


def streams(handler: Handler | str, *, ssl: Ssl | str | None = None) -> _Plain:
    """Serve with a stream handler, as ``asyncio.start_server()`` takes it.

    While the worker drains, handlers go on, until its time is over: then they are
    cancelled.

    Args:
        handler: ``async def handler(reader, writer)``, or where to import it from.
        ssl: A function that makes the TLS context, in the worker, or where to import it
            from: a context itself cannot travel.

    Raises:
        TypeError: If one of them is neither a function nor a name.
        ValueError: If one is a name of nothing.
    """
    checks.function("handler", handler)
    return _Plain(handler, ssl, handles=True)


def protocol(factory: Factory | str, *, ssl: Ssl | str | None = None) -> _Plain:
    """Serve with a protocol, as ``loop.create_server()`` takes it.

    While the worker drains, transports stay open, until its time is over.

    Args:
        factory: Returns a protocol for each connection, or where to import it from.
        ssl: As for :func:`streams`.

    Raises:
        TypeError: If one of them is neither a function nor a name.
        ValueError: If one is a name of nothing.
    """
    checks.function("factory", factory)
    return _Plain(factory, ssl, handles=False)


class _Plain:
    """Such a target; it is pickled.

    Args:
        function: The user's.
        ssl: What makes the TLS context.
        handles: Whether the function handles streams, or else makes protocols.
    """

    def __init__(self, function: Any, ssl: Any, *, handles: bool) -> None:
        if ssl is not None:
            checks.function(
                "ssl", ssl, "a function that makes the context, or its name"
            )
        self._function = function
        self._ssl = ssl
        self._handles = handles

    async def __call__(self, worker: Worker) -> None:
        """Serve, in a worker."""
        import asyncio  # noqa: PLC0415 - see _dataclass.py

        from asyncpool.cluster._servers.transports import connect  # noqa: PLC0415

        function = _resolve(self._function)

        def handle() -> asyncio.BaseProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(), function)

        context = None if self._ssl is None else _resolve(self._ssl)()
        worker.ready()
        await connect(worker, handle if self._handles else function, context)


def _resolve(function: Any) -> Any:
    from asyncpool._cluster.serve import find_object  # noqa: PLC0415 - asyncio

    return find_object(function) if isinstance(function, str) else function
