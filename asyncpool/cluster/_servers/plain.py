"""Targets for servers that are written with asyncio's streams or protocols."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from asyncpool._wire import log_records as say
from asyncpool._wire.records import Later

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import ssl as ssl_module
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from asyncpool._cluster.connections import Connection
    from asyncpool._cluster.worker import Worker
    from asyncpool._core import checks

    Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]
    Factory = Callable[[], asyncio.BaseProtocol]
    Ssl = Callable[[], ssl_module.SSLContext]
    Target = Callable[[Worker], Coroutine[Any, Any, None]]
else:  # the master checks targets, and workers have them without
    checks = Later("asyncpool._core.checks")


def streams(handler: Handler | str, *, ssl: Ssl | str | None = None) -> Target:
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
    return _target(handler, ssl, handles=True)


def protocol(factory: Factory | str, *, ssl: Ssl | str | None = None) -> Target:
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
    return _target(factory, ssl, handles=False)


def _target(function: Any, ssl: Any, *, handles: bool) -> Target:
    if ssl is not None:
        checks.function("ssl", ssl, "a function that makes the context, or its name")
    return partial(_serve, function, ssl, handles)


async def _serve(function: Any, ssl: Any, handles: bool, worker: Worker) -> None:  # noqa: FBT001 - as above
    """Serve with a function that handles streams, or else makes protocols."""
    function = _resolve(function)

    def handle() -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), function)

    context = None if ssl is None else _resolve(ssl)()
    worker.ready()
    await connect(worker, handle if handles else function, context)


def _resolve(function: Any) -> Any:
    from asyncpool._cluster.worker import find_object  # noqa: PLC0415 - the pool's process need not have it

    return find_object(function) if isinstance(function, str) else function


# Connections, with a transport and a protocol of asyncio's for each.


async def connect(
    worker: Worker,
    factory: Callable[[], asyncio.BaseProtocol],
    ssl: ssl_module.SSLContext | None = None,
    handshake_timeout: float | None = None,
) -> None:
    """Give each connection a protocol, until the worker drains.

    Args:
        worker: Whose connections they are.
        factory: What makes a protocol.
        ssl: What encrypts them, if anything.
        handshake_timeout: Seconds that a client has for its handshake, if they are
            encrypted; asyncio's own by default, which is a minute.
    """
    loop = asyncio.get_running_loop()
    # The loop refuses a time for a handshake where there is none.
    timeout = None if ssl is None else handshake_timeout
    tasks: set[asyncio.Task[None]] = set()
    async for connection in worker.connections():
        task = loop.create_task(
            _connect(connection, factory, ssl, timeout), name="asyncpool connection"
        )
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    # A client whose connection came may still be in its handshake.
    if tasks:
        await asyncio.wait(tasks)


async def _connect(
    connection: Connection,
    factory: Callable[[], asyncio.BaseProtocol],
    ssl: ssl_module.SSLContext | None,
    handshake_timeout: float | None,
) -> None:
    loop = asyncio.get_running_loop()
    try:
        await loop.connect_accepted_socket(
            factory,
            connection.detach(),
            ssl=ssl,
            ssl_handshake_timeout=handshake_timeout,
        )
    except OSError as error:
        # The client is gone again, or speaks no TLS, or another one, or takes too long.
        say.CONNECTION_FAILED.log(logging.getLogger("asyncpool"), {}, why=error)
        connection.socket.close()
    except BaseException:
        connection.socket.close()
        raise
