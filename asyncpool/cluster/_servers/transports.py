"""Connections of a worker, with a transport and a protocol of asyncio's for each."""

from __future__ import annotations

import asyncio
import logging
import ssl as ssl_module

from asyncpool._wire import log_records as say

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncpool._cluster.connections import Connection
    from asyncpool._cluster.worker import Worker


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
