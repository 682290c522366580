"""The target that runs an ASGI application with uvicorn."""

from __future__ import annotations

from asyncpool._core.base.validation import check_function
from asyncpool._runtime.base.arguments import check_int, check_seconds

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

    import uvicorn

    from asyncpool._core.figures.request_figures import RequestFigures
    from asyncpool._worker.cluster.worker import Worker

# What the cluster decides, and what makes sense for one process only.
_NOT_OURS = {
    "app",
    "backlog",
    "fd",
    "host",
    "loop",
    "port",
    "reload",
    "reload_delay",
    "reload_dirs",
    "reload_excludes",
    "reload_includes",
    "timeout_graceful_shutdown",
    "timeout_worker_healthcheck",
    "uds",
    "workers",
}


# The request's head, its line included: what h11, nginx and Apache allow, or more.
_MOST_HEAD = 64 * 1024

# Seconds for a head, and for the first byte of a connection.
_HEADER_TIMEOUT = 30.0

# How long requests may clean up when their time is over, in seconds.
_CLEAN_UP = 0.2


def asgi(
    app: Any,
    *,
    header_timeout: float = _HEADER_TIMEOUT,
    header_size: int = _MOST_HEAD,
    **options: Any,
) -> _Asgi:
    """Serve an ASGI application with uvicorn, which the extra ``cluster`` installs.

    A worker is ready when the lifespan of its application has begun.  While it drains,
    requests finish, and WebSockets are told that the service restarts (1012).  Keep-alive
    connections at rest go to another worker, without their clients noticing; where that
    cannot be (TLS, or the whole cluster ends), the next response says ``Connection:
    close``, and what stays at rest is closed.

    Args:
        app: The application, a factory of it, or where to import it from:
            ``package.module:app``.
        header_timeout: Seconds that a client has for the head of a request, from its
            first byte, and for that from the beginning of the connection; then it is
            closed, with 408 if a part of a head has come.  With TLS it has as many for
            the handshake before.
        header_size: The most bytes of a head; more are answered by 431.
        **options: Those of ``uvicorn.Config`` that do not concern sockets, processes and
            the loop.  Other than there, ``log_config`` is ``None`` by default, so that
            records go where those of workers go, ``access_log`` is off, an ``env_file``
            is read before the application is imported, and proxy headers are believed
            from ``forwarded_allow_ips`` only, or else from nobody.

    Raises:
        TypeError: If *app* is neither callable nor a name; for an option that is the
            cluster's, or of the wrong type.
        ValueError: If *app* is a name of nothing, or an option is out of range.

    What a worker finds not to be an ASGI application is a failed start.
    """
    return _target(
        app, options, header_timeout=header_timeout, header_size=header_size, threads=0
    )


def wsgi(
    app: Any,
    *,
    threads: int = 10,
    header_timeout: float = _HEADER_TIMEOUT,
    header_size: int = _MOST_HEAD,
    **options: Any,
) -> _Asgi:
    """Serve a WSGI application, in threads, with a2wsgi, which the extra ``wsgi`` installs.

    Args:
        app: The application, a factory of it, or where to import it from.
        threads: How many requests a worker runs at once; others wait.
        header_timeout: As of :func:`asgi`.
        header_size: Likewise.
        **options: Likewise.

    Raises:
        TypeError: As of :func:`asgi`.
        ValueError: Likewise; if there is to be no thread.
    """
    check_int("threads", threads, at_least=1)
    return _target(
        app,
        options,
        header_timeout=header_timeout,
        header_size=header_size,
        threads=threads,
    )


def _target(
    app: Any,
    options: dict[str, Any],
    *,
    header_timeout: float,
    header_size: int,
    threads: int,
) -> _Asgi:
    check_function("app", app, "an application")
    check_seconds("header_timeout", header_timeout)
    check_int("header_size", header_size, at_least=1)
    foreign = sorted(_NOT_OURS & options.keys())
    if foreign:
        raise TypeError(f"these options are not for workers: {', '.join(foreign)}")
    return _Asgi(
        app,
        options,
        header_timeout=header_timeout,
        header_size=header_size,
        threads=threads,
    )


class _Asgi:
    """Such a target; it is pickled.

    Args:
        app: The application, or where to find it.
        options: Those of uvicorn.
        header_timeout: Seconds for the head of a request.
        header_size: The most bytes of one.
        threads: How many run WSGI requests; 0 for an ASGI application.
    """

    def __init__(
        self,
        app: Any,
        options: dict[str, Any],
        *,
        header_timeout: float,
        header_size: int,
        threads: int,
    ) -> None:
        self._app = app
        self._options = options
        self._header_timeout = header_timeout
        self._header_size = header_size
        self._threads = threads

    async def __call__(self, worker: Worker) -> None:
        """Serve, in a worker.

        Raises:
            RuntimeError: If the application refuses to start.
        """
        import asyncio  # noqa: PLC0415 - the pool's process need not have the rest

        import uvicorn  # noqa: PLC0415

        from asyncpool._core.figures.request_figures import RequestFigures  # noqa: PLC0415
        from asyncpool.cluster._servers.asgi_bounds import close_late  # noqa: PLC0415
        from asyncpool.cluster._servers.asgi_drain import Drain  # noqa: PLC0415
        from asyncpool.cluster._servers.asgi_figures import Reports  # noqa: PLC0415
        from asyncpool.cluster._servers.lifespan import begin_lifespan  # noqa: PLC0415
        from asyncpool.cluster._servers.transports import connect  # noqa: PLC0415

        config = self._config()
        config.load()
        most = _most_requests(config, worker)
        server = uvicorn.Server(config)
        server.lifespan = lifespan = config.lifespan_class(config)
        await begin_lifespan(lifespan, config)
        loop, state = asyncio.get_running_loop(), server.server_state
        figures = RequestFigures()
        kind = self._protocol_class(config, figures)

        def make() -> asyncio.Protocol:
            return kind(  # type: ignore[no-any-return]
                config=config,
                server_state=state,
                app_state=lifespan.state,
                _loop=loop,
            )

        await server.on_tick(0)
        ticking = loop.create_task(
            _tick(server, worker, most, close_late), name="asyncpool server tick"
        )
        reports = Reports(worker, state, figures)
        try:
            worker.ready()
            connecting = loop.create_task(
                connect(worker, make, config.ssl, self._header_timeout),
                name="asyncpool connections",
            )
            await worker.wait_draining()
            ticking.cancel()
            await Drain(worker, config, state).run(connecting)
            await connecting
        finally:
            ticking.cancel()
            reports.end()
            await _cancel(state.tasks)
            await lifespan.shutdown()

    def _protocol_class(self, config: uvicorn.Config, figures: RequestFigures) -> Any:
        """Return the protocol of uvicorn with its bounds, and have it count."""
        from asyncpool.cluster._servers.asgi_bounds import bounded  # noqa: PLC0415
        from asyncpool.cluster._servers.asgi_figures import count_in  # noqa: PLC0415

        count_in(config, figures)
        return bounded(
            config.http_protocol_class,
            most=self._header_size,
            within=self._header_timeout,
            figures=figures,
        )

    def _config(self) -> uvicorn.Config:
        """Find the application, and configure uvicorn for it."""
        import os  # noqa: PLC0415 - as above

        import uvicorn  # noqa: PLC0415

        from asyncpool._worker.cluster.serve import find_object  # noqa: PLC0415
        from asyncpool.cluster._servers.application import (  # noqa: PLC0415
            asgi_application,
            asgi_version,
            load_environment,
            wsgi_application,
        )

        options = dict(self._options)
        if (env_file := options.pop("env_file", None)) is not None:
            load_environment(env_file)
        app, name = self._app, "the application"
        if isinstance(app, str):
            name = app
            app = find_object(app)
        factory = options.pop("factory", False)
        if self._threads:
            app = wsgi_application(app, name, factory=factory)
            app = _in_threads(app, self._threads)
            options["lifespan"] = "off"
        elif options.get("interface") != "wsgi":  # uvicorn's own way, which goes away
            app = asgi_application(app, name, factory=factory)
            if options.get("interface", "auto") == "auto":
                options["interface"] = asgi_version(app)
        trusted = options.get("forwarded_allow_ips")
        defaults: dict[str, Any] = {
            "log_config": None,
            "access_log": False,
            "proxy_headers": bool(trusted or os.environ.get("FORWARDED_ALLOW_IPS")),
            "h11_max_incomplete_event_size": self._header_size,
        }
        return uvicorn.Config(app, **defaults | options, loop="none")


def _in_threads(app: Any, threads: int) -> Any:
    try:
        from a2wsgi import WSGIMiddleware  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "WSGI needs a2wsgi: pip install 'asyncpool-supervised[wsgi]'"
        ) from error
    from asyncpool.cluster._servers.application import with_usual_keys  # noqa: PLC0415

    return WSGIMiddleware(with_usual_keys(app, threads), workers=threads)


async def _cancel(requests: set[asyncio.Task[None]]) -> None:
    """End what could not end in time; the application is still whole."""
    import asyncio  # noqa: PLC0415 - as above

    for request in requests:
        request.cancel()
    if requests:
        await asyncio.wait(requests, timeout=_CLEAN_UP)


def _most_requests(config: uvicorn.Config, worker: Worker) -> float:
    """Take the limit of requests out of *config*, since uvicorn would end because of it.

    Returns:
        It, or a little less, as of :class:`asyncpool.WorkerLimits`: each worker has
        another one, so that not all are replaced together.
    """
    import random  # noqa: PLC0415 - as above

    from asyncpool._core.policies.worker_limits import WorkerLimits  # noqa: PLC0415

    most, config.limit_max_requests = config.limit_max_requests, None
    if most is None:
        return float("inf")
    jitter: int = getattr(config, "limit_max_requests_jitter", 0)
    if jitter:
        return most + random.randint(0, jitter)  # noqa: S311 - no secret
    return WorkerLimits(max_jobs=most).recycle_limits(worker.id, worker.generation).jobs


async def _tick(
    server: uvicorn.Server,
    worker: Worker,
    most: float,
    close_late: Callable[[set[Any]], object],
) -> None:
    """Keep the date in the headers, and count requests, as uvicorn's main loop does.

    And close the connections that have had their time for a head.
    """
    import asyncio  # noqa: PLC0415 - as above

    while True:
        await asyncio.sleep(1)
        await server.on_tick(0)
        close_late(server.server_state.connections)
        if server.server_state.total_requests >= most:
            worker.request_replacement(
                "it has served as many requests as it may (limit_max_requests)"
            )
