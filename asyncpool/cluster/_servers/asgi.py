"""The target that runs an ASGI application with uvicorn."""

from __future__ import annotations

import inspect
import logging

from asyncpool._dataclass import dataclass, replace
from asyncpool._wire import log_records as say
from asyncpool._wire.records import Later

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from typing import Any

    import uvicorn

    from asyncpool._cluster.worker import Worker
    from asyncpool._core import checks
    from asyncpool.cluster._servers.wsgi import Threads
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

# How many arguments each kind is called with.
_ASGI3, _WSGI, _ASGI2, _FACTORY = 3, 2, 1, 0

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

    def configure(self) -> tuple[uvicorn.Config, Threads | None]:
        """Find the application, and configure uvicorn for it, and the threads that it needs."""
        import os  # noqa: PLC0415 - as above

        import uvicorn  # noqa: PLC0415

        from asyncpool._cluster.worker import find_object  # noqa: PLC0415
        from asyncpool.cluster._servers.wsgi import Threads  # noqa: PLC0415

        options = dict(self.options)
        if (env_file := options.pop("env_file", None)) is not None:
            load_environment(env_file)
        app, name = self.app, "the application"
        if isinstance(app, str):
            app, name = find_object(app), app
        factory, threads = options.pop("factory", False), None
        if self.threads:
            app = application(app, name, "WSGI", factory=factory)
            app = threads = Threads(app, self.threads)
            options |= {"lifespan": "off", "interface": "asgi3"}
        else:
            app = application(app, name, "ASGI", factory=factory)
            if options.get("interface", "auto") == "auto":
                options["interface"] = asgi_version(app)
        trusted = options.get("forwarded_allow_ips")
        defaults: dict[str, Any] = {
            "log_config": None,
            "access_log": False,
            "proxy_headers": bool(trusted or os.environ.get("FORWARDED_ALLOW_IPS")),
            "h11_max_incomplete_event_size": self.header_size,
        }
        return uvicorn.Config(app, **defaults | options, loop="none"), threads


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


def application(found: Any, name: str, kind: str, *, factory: bool) -> Any:
    """Return an application.

    Args:
        found: It, or what makes it.
        name: What it is called in errors.
        kind: Its interface: "ASGI" or "WSGI".
        factory: Whether it is certain to be what makes it.

    Raises:
        TypeError: If it is none; the text says what it looks like, and the way out.
    """
    found = _made(found, name, factory=factory)
    is_asgi = _takes(found, _ASGI3) or (kind == "ASGI" and _takes(found, _ASGI2))
    is_wsgi = _takes(found, _WSGI)
    if is_asgi if kind == "ASGI" else is_wsgi:
        return found
    if is_wsgi:
        raise TypeError(
            f"{name} is a WSGI application, not ASGI: serve it with --interface wsgi, in a "
            "program with asyncpool.cluster.wsgi()"
        )
    if is_asgi:
        raise TypeError(
            f"{name} is an ASGI application, not WSGI: serve it with --interface asgi"
        )
    taken = "scope, receive, send" if kind == "ASGI" else "environ, start_response"
    raise TypeError(
        f"{name} is no {kind} application: {_kind(found)} cannot be called with ({taken})"
    )


def asgi_version(app: Any) -> str:
    """Return how an ASGI application is to be called, as an ``interface`` of uvicorn's.

    uvicorn takes whatever is not written with ``async def`` for ASGI 2, which is called
    with the scope alone, and so a plain function that returns a coroutine, or a partial.
    """
    return "asgi3" if _takes(app, _ASGI3) else "auto"


def load_environment(path: str) -> None:
    """Set the variables of a file, but for those that are set already.

    Raises:
        ModuleNotFoundError: If python-dotenv is missing.
        FileNotFoundError: If there is no such file.
    """
    # Its own answer to a missing file is silence.
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
        try:
            from dotenv import load_dotenv  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "an env_file needs python-dotenv: "
                "pip install 'asyncpool-supervised[cluster]'"
            ) from error
        load_dotenv(stream=file)


def _made(found: Any, name: str, *, factory: bool) -> Any:
    if not callable(found):
        raise TypeError(f"{name} is no application: {_kind(found)} cannot be called")
    if not factory and not _is_factory(found):
        return found
    if not factory:
        say.LOOKS_LIKE_FACTORY.log(logging.getLogger("asyncpool"), {"function": name})
    made = found()
    if not callable(made):
        raise TypeError(
            f"{name} has made no application: {_kind(made)} cannot be called"
        )
    return made


def _is_factory(found: Any) -> bool:
    taken = [count for count in (_ASGI3, _WSGI, _ASGI2) if _takes(found, count)]
    return not taken and _takes(found, _FACTORY)


def _takes(found: Any, count: int) -> bool:
    """Tell whether something can be called with so many arguments, as far as is known."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # of some that are made in C
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _kind(found: Any) -> str:
    cls = type(found)
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
