"""What workers can be told to serve: applications, and asyncio's streams and protocols."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from asyncpool._dataclass import dataclass, replace
from asyncpool._wire import log_records as say
from asyncpool._wire.records import Later

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import ssl as ssl_module
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from asyncpool._cluster.worker import Connection, Worker
    from asyncpool._core import checks

    Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]
    Factory = Callable[[], asyncio.BaseProtocol]
    Ssl = Callable[[], ssl_module.SSLContext]
    Serve = Callable[[Worker], Coroutine[Any, Any, None]]
else:  # the master checks targets, and workers have them without
    checks = Later("asyncpool._core.checks")

# A line of the access log, if no other format is asked for.
ACCESS_FORMAT = '%(client)s "%(method)s %(path)s" %(status)d %(bytes)d %(ms).1f ms "%(agent)s" %(request_id)s'

# What a format may have.
_ACCESS_FIELDS: dict[str, object] = {
    **dict.fromkeys(("client", "method", "path", "protocol"), ""),
    **dict.fromkeys(("agent", "referer", "request_id"), ""),
    **dict.fromkeys(("status", "bytes", "ms"), 0),
}

# What the cluster decides, and what makes sense for one process only.
_NOT_OURS = (
    "app backlog fd host loop port reload reload_delay reload_dirs reload_excludes "
    "reload_includes timeout_graceful_shutdown timeout_worker_healthcheck uds workers"
)

# The request's head, its line included: what h11, nginx and Apache allow, or more.
_MOST_HEAD = 64 * 1024

# How many WSGI requests a worker runs at once.
_THREADS = 10

# Seconds for a head, and for the first byte of a connection.
_HEADER_TIMEOUT = 30.0

# Seconds without progress until a request is given up: as long as nginx waits for a response.
_REQUEST_TIMEOUT = 60.0


def asgi(
    app: Any,
    *,
    request_timeout: float | None = _REQUEST_TIMEOUT,
    header_timeout: float = _HEADER_TIMEOUT,
    header_size: int = _MOST_HEAD,
    body_size: int | None = None,
    access_log: bool | str = False,
    **options: Any,
) -> Target:
    """Serve an ASGI application with uvicorn, which the extra ``cluster`` installs.

    A worker is ready when the lifespan of its application has begun.  While it drains,
    requests finish, and WebSockets are told that the service restarts (1012).  Keep-alive
    connections at rest go to another worker, without their clients noticing; where that
    cannot be (TLS, or the whole cluster ends), the next response says ``Connection:
    close``, and what stays at rest is closed.

    Args:
        app: The application, a factory of it, or where to import it from:
            ``package.module:app``.
        request_timeout: Seconds until a request is given up that has had no response, and no
            further piece of its body, for so long.  Its client gets 503, or 408 if the body
            stopped coming, and the application is cancelled.  A worker in which it goes on
            nevertheless is replaced.  A response that has begun may take any time, unless the
            client has left, or reads nothing, for so long.  WebSockets have no such limit.
            ``None`` is for any time.
        header_timeout: Seconds that a client has for the head of a request, from its
            first byte, and for that from the beginning of the connection; then it is
            closed, with 408 if a part of a head has come.  With TLS it has as many for
            the handshake before.
        header_size: The most bytes of a head; more are answered by 431.
        body_size: The most bytes of a request's body; more are answered by 413, or cut a
            response that has begun.  ``None`` is for any number.
        access_log: Log each request when it is answered, at level INFO in the logger ``access``:
            with a format of one's own, or a usual one for ``True``.  A format and the record's
            attributes have ``client``, ``method``, ``path`` (with its query), ``protocol``,
            ``status``, ``bytes`` (of the body), ``ms``, ``agent``, ``referer`` and ``request_id``
            (``X-Request-ID`` of the response, or else of the request).
        **options: Those of ``uvicorn.Config`` that do not concern sockets, processes and
            the loop.  Other than there, ``log_config`` is ``None`` by default, so that
            records go where those of workers go, an ``env_file`` is read
            before the application is imported, and proxy headers are believed
            from ``forwarded_allow_ips`` only, or else from nobody.  With it they are
            believed on Unix sockets, too.

    Raises:
        TypeError: If *app* is neither callable nor a name; for an option that is the
            cluster's, or of the wrong type.
        ValueError: If *app* is a name of nothing, or an option is out of range.

    What a worker finds not to be an ASGI application is a failed start.
    """
    return _checked(Target(threads=0, **locals()))  # by the signature's names


def wsgi(
    app: Any,
    *,
    threads: int = _THREADS,
    request_timeout: float | None = _REQUEST_TIMEOUT,
    header_timeout: float = _HEADER_TIMEOUT,
    header_size: int = _MOST_HEAD,
    body_size: int | None = None,
    access_log: bool | str = False,
    **options: Any,
) -> Target:
    """Serve a WSGI application, in threads behind uvicorn, which the extra ``cluster`` installs.

    Args:
        app: The application, a factory of it, or where to import it from.
        threads: How many requests a worker runs at once; others wait.
        request_timeout: As of :func:`asgi`; the time includes the wait for a thread.  Nothing
            can end a thread, so a worker in which one goes on is replaced, and has its time to
            drain.
        header_timeout: As of :func:`asgi`.
        header_size: Likewise.
        body_size: Likewise.
        access_log: Likewise.
        **options: Likewise.

    Raises:
        TypeError: As of :func:`asgi`.
        ValueError: Likewise; if there is to be no thread.
    """
    checks.at_least(1)("threads", threads)
    return _checked(Target(**locals()))  # as above


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Such a target; it is pickled.

    Attributes:
        app: The application, or where to find it.
        threads: How many run WSGI requests; 0 for an ASGI application.
        options: Those of uvicorn.
        request_timeout: Seconds without progress until a request is given up.
        header_timeout: Seconds for the head of a request.
        header_size: The most bytes of one.
        body_size: The most bytes of a body.
        access_log: Whether requests are logged, or how.
    """

    app: Any
    threads: int
    options: dict[str, Any]
    request_timeout: float | None
    header_timeout: float
    header_size: int
    body_size: int | None
    access_log: bool | str

    @property
    def access_format(self) -> str:
        """The format of the access log; empty if there is none."""
        return ACCESS_FORMAT if self.access_log is True else self.access_log or ""

    async def __call__(self, worker: Worker) -> None:
        """Serve, in a worker.

        Raises:
            RuntimeError: If the application refuses to start.
        """
        from asyncpool.cluster._servers.uvicorn_parts import Server  # noqa: PLC0415 - the pool's process need not have it

        await Server(worker, self).serve()


def _checked(target: Target) -> Target:
    """Check what *target* was given."""
    checks.function("app", target.app, "an application, or its name")
    checks.PERIOD_OR_NONE("request_timeout", target.request_timeout)
    checks.PERIOD("header_timeout", target.header_timeout)
    checks.at_least(1)("header_size", target.header_size)
    checks.at_least(0).or_none()("body_size", target.body_size)
    foreign = sorted({*_NOT_OURS.split()} & target.options.keys())
    if foreign:
        raise TypeError(f"these options are not for workers: {', '.join(foreign)}")
    _check_proxies(target.options.get("forwarded_allow_ips"))
    _check_format(target.access_format)
    if target.options.get("interface") == "wsgi":  # uvicorn's own way, which goes away
        return replace(target, threads=target.threads or _THREADS)
    return target


def _check_format(text: Any) -> None:
    if not isinstance(text, str):
        raise TypeError(f"access_log is True, False or a format, not {text!r}")
    names = ", ".join(sorted(_ACCESS_FIELDS))
    try:
        str(text % _ACCESS_FIELDS)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"access_log: {text!r} is no format: {error!r}; it may have %(name)s of {names}"
        ) from None


def _check_proxies(proxies: Any) -> None:
    """Check the addresses of proxies, since uvicorn takes whatever makes no sense for a name."""
    if not proxies or proxies in ("*", ["*"]):
        return
    import ipaddress  # noqa: PLC0415 - workers unpickle targets without

    for proxy in proxies.split(",") if isinstance(proxies, str) else proxies:
        try:
            ipaddress.ip_network(proxy.strip())
        except ValueError as error:
            raise ValueError(f"forwarded_allow_ips: {error}") from None


# Servers that are written with asyncio.


def streams(handler: Handler | str, *, ssl: Ssl | str | None = None) -> Serve:
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


def protocol(factory: Factory | str, *, ssl: Ssl | str | None = None) -> Serve:
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


def _target(function: Any, ssl: Any, *, handles: bool) -> Serve:
    if ssl is not None:
        checks.function("ssl", ssl, "a function that makes the context, or its name")
    return partial(_serve, function, ssl, handles)


async def _serve(function: Any, ssl: Any, handles: bool, worker: Worker) -> None:  # noqa: FBT001 - of a partial
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

    async def give(connection: Connection) -> None:
        try:
            await loop.connect_accepted_socket(
                factory, connection.detach(), ssl=ssl, ssl_handshake_timeout=timeout
            )
        except OSError as error:
            # The client is gone again, or speaks no TLS, or another one, or takes too long.
            say.CONNECTION_FAILED.log(logging.getLogger("asyncpool"), {}, why=error)
            connection.socket.close()
        except BaseException:
            connection.socket.close()
            raise

    tasks: set[asyncio.Task[None]] = set()
    async for connection in worker.connections():
        task = loop.create_task(give(connection), name="asyncpool connection")
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    # A client whose connection came may still be in its handshake.
    if tasks:
        await asyncio.wait(tasks)
