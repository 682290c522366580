"""The target that runs an ASGI application with uvicorn."""

from __future__ import annotations

from asyncpool._core.kinds import check_function

TYPE_CHECKING = False  # see _core/records.py
if TYPE_CHECKING:
    import asyncio
    from typing import Any

    import uvicorn

    from asyncpool._worker.member import Worker

__all__ = ["asgi"]

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


# How long requests may clean up when their time is over, in seconds.
_CLEAN_UP = 0.2


def asgi(app: Any, **options: Any) -> _Asgi:
    """Serve an ASGI application with uvicorn, which the extra ``cluster`` installs.

    A worker is ready when the lifespan of its application has begun.  While it drains,
    requests finish, and WebSockets are told that the service restarts (1012).  Keep-alive
    connections at rest go to another worker, without their clients noticing; where that
    cannot be (TLS, or the whole cluster ends), the next response says ``Connection:
    close``, and what stays at rest is closed.

    Args:
        app: The application, a factory of it, or where to import it from:
            ``package.module:app``.
        **options: Those of ``uvicorn.Config`` that do not concern sockets, processes and
            the loop.  Other than there, ``log_config`` is ``None`` by default, so that
            records go where those of workers go, and ``access_log`` is off.

    Raises:
        TypeError: If *app* is neither callable nor a name; for an option that is the
            cluster's.
        ValueError: If *app* is a name of nothing.
    """
    check_function("app", app, "an application")
    foreign = sorted(_NOT_OURS & options.keys())
    if foreign:
        raise TypeError(f"these options are not for workers: {', '.join(foreign)}")
    return _Asgi(app, options)


class _Asgi:
    """Such a target; it is pickled.

    Args:
        app: The application, or where to find it.
        options: Those of uvicorn.
    """

    def __init__(self, app: Any, options: dict[str, Any]) -> None:
        self._app = app
        self._options = options

    async def __call__(self, worker: Worker) -> None:
        """Serve, in a worker.

        Raises:
            RuntimeError: If the application refuses to start.
        """
        import asyncio  # noqa: PLC0415 - the pool's process need not have the rest

        import uvicorn  # noqa: PLC0415

        from asyncpool._worker.serve import find_object  # noqa: PLC0415
        from asyncpool.cluster._asgi_drain import Drain  # noqa: PLC0415
        from asyncpool.cluster._transports import connect  # noqa: PLC0415

        app = find_object(self._app) if isinstance(self._app, str) else self._app
        defaults: dict[str, Any] = {"log_config": None, "access_log": False}
        config = uvicorn.Config(app, **defaults | self._options, loop="none")
        config.load()
        most = _most_requests(config, worker)
        server = uvicorn.Server(config)
        server.lifespan = lifespan = config.lifespan_class(config)
        await lifespan.startup()
        if lifespan.should_exit:
            raise RuntimeError("the application's lifespan has refused to start")
        loop, state = asyncio.get_running_loop(), server.server_state

        kind: Any = config.http_protocol_class

        def make() -> asyncio.Protocol:
            return kind(  # type: ignore[no-any-return]
                config=config,
                server_state=state,
                app_state=lifespan.state,
                _loop=loop,
            )

        await server.on_tick(0)
        ticking = loop.create_task(_tick(server, worker, most))
        try:
            worker.ready()
            connecting = loop.create_task(connect(worker, make, config.ssl))
            await worker.draining()
            ticking.cancel()
            await Drain(worker, config, state).run(connecting)
            await connecting
        finally:
            ticking.cancel()
            await _cancel(state.tasks)
            await lifespan.shutdown()


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

    from asyncpool._core.wear import WorkerLimits  # noqa: PLC0415

    most, config.limit_max_requests = config.limit_max_requests, None
    if most is None:
        return float("inf")
    jitter: int = getattr(config, "limit_max_requests_jitter", 0)
    if jitter:
        return most + random.randint(0, jitter)  # noqa: S311 - no secret
    return WorkerLimits(max_jobs=most).wear(worker.id, worker.generation).jobs


async def _tick(server: uvicorn.Server, worker: Worker, most: float) -> None:
    """Keep the date in the headers, and count requests, as uvicorn's main loop does."""
    import asyncio  # noqa: PLC0415 - as above

    while True:
        await asyncio.sleep(1)
        await server.on_tick(0)
        if server.server_state.total_requests >= most:
            worker.replace("it has served as many requests as it may")
