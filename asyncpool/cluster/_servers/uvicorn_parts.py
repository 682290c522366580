"""Serve with uvicorn: its protocols with bounds, requests that are watched, and a drain that loses none.

This is the only module that uses what uvicorn does not promise; ``tests/worker/test_uvicorn.py`` names it.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import socket
import sys
import termios
import threading
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from operator import attrgetter
from pathlib import Path
from time import monotonic
from traceback import clear_frames, walk_stack
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware, _TrustedHosts

from asyncpool._cluster.worker import find_object, queued
from asyncpool._core.figures import RequestFigures, class_of
from asyncpool._core.options import WorkerLimits
from asyncpool._wire import log_records as say
from asyncpool._wire.pickling import describe
from asyncpool._wire.text import ACCESS_LOGGER, printable
from asyncpool._worker.stacks import line_of, waiting_frames
from asyncpool.cluster._servers.targets import connect
from asyncpool.cluster._servers.wsgi import CALL, Threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from uvicorn.server import ServerState

    from asyncpool._cluster.worker import Worker
    from asyncpool.cluster._servers.targets import Target
    from asyncpool.cluster._servers.wsgi import Call

    _Protocol = Any
else:
    _Protocol = object

# How long requests may clean up when their time is over, in seconds.
_CLEAN_UP = 0.2


# The application, and how uvicorn is told to serve it.

# How many arguments each kind is called with.
_ASGI3, _WSGI, _ASGI2, _FACTORY = 3, 2, 1, 0


def configure(target: Target) -> tuple[uvicorn.Config, Threads | None]:
    """Find the application, and configure uvicorn for it, and the threads that it needs."""
    options = dict(target.options)
    if (env_file := options.pop("env_file", None)) is not None:
        load_environment(env_file)
    app, name = target.app, "the application"
    if isinstance(app, str):
        app, name = find_object(app), app
    factory, threads = options.pop("factory", False), None
    if target.threads:
        app = application(app, name, "WSGI", factory=factory)
        app = threads = Threads(app, target.threads)
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
        "h11_max_incomplete_event_size": target.header_size,
    }
    return uvicorn.Config(app, **defaults | options, loop="none"), threads


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
    with Path(path).open(encoding="utf-8") as file:
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


class _WithFiles(_TrustedHosts):
    """Trusted proxies, and whoever has no address: it got through the file of a Unix socket."""

    def __contains__(self, host: str | None) -> bool:
        return host is None or super().__contains__(host)


def _behind_files(app: Any, config: uvicorn.Config) -> Any:
    """Return an application that believes proxy headers on Unix sockets, too.

    A client of a TCP socket has no address if it has left already, so the server's decides.
    """
    trusting = ProxyHeadersMiddleware(app.app)
    trusting.trusted_hosts = _WithFiles(config.forwarded_allow_ips)

    async def call(scope: Any, receive: Any, send: Any) -> None:
        server = scope.get("server")
        by_file = server is None or server[1] is None
        await (trusting if by_file else app)(scope, receive, send)

    return call


def _most_requests(config: uvicorn.Config, worker: Worker) -> float:
    """Take the limit of requests out of *config*, since uvicorn would end because of it.

    Returns:
        It, or a little less, as of :class:`asyncpool.WorkerLimits`: each worker has
        another one, so that not all are replaced together.
    """
    most, config.limit_max_requests = config.limit_max_requests, None
    if most is None:
        return float("inf")
    jitter: int = getattr(config, "limit_max_requests_jitter", 0)
    if jitter:
        return most + random.randint(0, jitter)  # noqa: S311 - no secret
    return WorkerLimits(max_jobs=most).recycle_limits(worker.id, worker.generation).jobs


# The lifespan of an ASGI application, which uvicorn runs: how it begins, and why it does not.

# Characters of a reason; a line of a traceback is shorter, a line of an application may not be.
_LONGEST = 500


async def _begin_lifespan(lifespan: Any, config: uvicorn.Config) -> None:
    """Begin a lifespan of uvicorn's, and return when the application is ready.

    Raises:
        RuntimeError: If it refuses; the text has the reason that it gave, which uvicorn
            tells the log alone.
    """
    # What uvicorn says of its type is unknown where a2wsgi is not installed.
    app: Any = config.loaded_app
    logger = logging.getLogger("uvicorn.error")
    message = ""  # what the application said of its failure; of Starlette it is a whole traceback
    raised: BaseException | None = None

    async def witness(scope: Any, receive: Any, send: Any) -> None:
        async def listen(event: Any) -> None:
            nonlocal message
            if event["type"] == "lifespan.startup.failed":
                message = str(event.get("message", "")).strip()
            await send(event)

        nonlocal raised
        try:
            await app(scope, receive, listen)
        except BaseException as error:
            raised = error
            raise

    # The master tells of a start that has failed; uvicorn would tell of it twice more, with its own
    # frames.
    config.loaded_app, lifespan.logger = witness, _WithoutErrors(logger)
    try:
        await lifespan.startup()
    finally:  # no request goes through the witness
        config.loaded_app, lifespan.logger = app, logger
    text = message or ("" if raised is None else describe(raised)).strip()
    reason = text.splitlines()[-1].strip()[:_LONGEST] if text else ""
    if lifespan.should_exit:
        if raised is None and "\n" in message:
            logger.error(message)  # the reason below is its last line alone
        text = "the application's lifespan has refused to start"
        raise RuntimeError(f"{text}: {reason}" if reason else text) from raised
    # An application that has not even taken the message that it begins knows of no lifespan.
    if raised is not None and lifespan.receive_queue.empty():
        text = "the application goes on without a lifespan, which has raised in its beginning: %s"
        logger.warning(text, reason)


class _WithoutErrors(logging.LoggerAdapter[logging.Logger]):
    """A logger without the errors."""

    def error(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Do not log the record."""


# Bounds for what clients may send before there is a request, and behind it.
#
# uvicorn's protocol for httptools takes heads of any size, and h11 those that are complete when
# it sees them, which may be hundreds of kilobytes.  Both of its protocols wait for the rest of
# a head as long as the client likes: one client could fill the memory, and a few hundred that
# say nothing could take all connections.  The trailers of a chunked body are headers as well.

_TOO_LARGE = "431 Request Header Fields Too Large"
_TOO_LARGE_STATUS = 431
_BODY_TOO_LARGE = "413 Content Too Large"
_TOO_SLOW = "408 Request Timeout"

# Of each line of a head, besides name and value: ": " and the line's end.
_PER_HEADER = 4

# What the WebSocket libraries take: others let a handshake with more hang.
_LONGEST_LINE, _MOST_LINES = 8192, 128

# How many requests of one connection may wait for the one before them, and how many bytes are read
# at a time, which might be full of them.  A request that waits takes some 5 KB.
_MOST_WAITING = 16
_PIECE = 4096

# Bytes behind a request, or of the body of one that waits, from which on no more are read.
_MOST_UNREAD = 65_536


def bounded(protocol_class: Any, **limits: Any) -> Any:
    """Return a protocol of uvicorn with bounds; one that is not known as it is.

    Args:
        protocol_class: The class of the protocol.
        **limits: Attributes of :class:`_Bounds`.
    """
    if hasattr(protocol_class, "on_headers_complete"):
        bounds: Any = _HttptoolsBounds
    elif hasattr(protocol_class, "handle_events"):
        bounds = _H11Bounds
    else:
        return protocol_class
    return type(protocol_class.__name__, (bounds, protocol_class), limits)


def close_late(protocols: Iterable[Any]) -> None:
    """Close the connections whose clients have had their time for a head."""
    now = monotonic()
    for protocol in list(protocols):
        until = getattr(protocol, "head_until", None)
        if until is not None and now >= until:
            # A client that has sent nothing gets no answer, nor does a handshake that got nowhere.
            in_head = isinstance(protocol, _Bounds) and protocol.in_head()
            _refuse(protocol, _TOO_SLOW if in_head else "")


class _Bounds(_Protocol):  # type: ignore[misc]
    """What is the same for both protocols of uvicorn, before which it stands.

    Attributes:
        most: The most bytes of a request's head.  For h11 that is an option of uvicorn, too, which
            bounds a head that is not complete.
        most_body: The most bytes of a request's body.
        within: Seconds for a head, from its first byte or, for the first one, from the
            beginning of the connection.
        figures: Counts what is refused.
        threaded: Whether the application runs in threads.
    """

    most: int
    most_body = float("inf")
    within: float
    figures: RequestFigures
    threaded: bool
    head_until: float | None = None
    body_at = 0.0  # when the last piece of a body came
    body_bytes = 0  # of the body that comes
    half_closed = False
    unsent, unsent_since = 0, 0.0  # what its client has not taken of responses
    flow: Any
    request: Any = None  # the last one whose application was called
    drain: Drain | None = None  # once the worker drains

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        # uvicorn resumes it at each response, and when the application looks for a body.
        self._flow_on: Any = self.flow.resume_reading
        self.flow.resume_reading = self._resume_reading
        self.expect_head()

    def eof_received(self) -> bool | None:
        """Answer a client that sends no more, where its application would not hear of its end.

        It may have left, or wait for the rest.  For a thread this makes no difference: it hears of it
        when it sends something.  A coroutine waits for the news, so its connection is closed.
        """
        cycle, request = self.cycle, self.request
        if self.half_closed:  # uvloop says so again when it reads on
            return True
        wanted = cycle is not None and not (cycle.response_complete or cycle.more_body)
        if wanted and request is not None and not request.cycle.response_complete:
            # Who leaves the queue is gone, as far as one can know.
            call = request.scope.get(CALL)
            wanted = call is not None and call.runs
        if not (self.threaded and wanted) or self.scheme == "https":
            return super().eof_received()  # type: ignore[no-any-return]
        self.half_closed = True
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.flow.read_paused and not self.transport.is_closing():
            self.read_on()
            self.flow.resume_reading()  # it was refused while too much was unread
        if self.half_closed and self.cycle.response_complete:
            self.transport.close()
        if self.drain is not None and not self.transport.is_closing():
            self.drain.move(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.request is not None:
            self.request.leave()

    def handle_websocket_upgrade(self, *event: Any) -> None:
        """Give a handshake the rest of a head's time to get to the application."""
        [it] = event or [self]
        target = it.target if event else it.url
        lines = [len(target), *(len(name) + len(value) for name, value in it.headers)]
        if len(lines) > _MOST_LINES or max(lines) + _PER_HEADER > _LONGEST_LINE:
            _refuse(self, _TOO_LARGE)
            return
        super().handle_websocket_upgrade(*event)
        protocol: Any = self.transport.get_protocol()
        if protocol is not self:
            protocol.head_until = monotonic() + self.within

    def read_on(self) -> None:
        """Read what had to wait, if there is something."""

    def begins_large_body(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Refuse a request that announces more than a body may have, and tell whether it was."""
        self.body_bytes = 0
        if self.most_body == float("inf"):
            return False
        sizes = (value for name, value in headers if name == b"content-length")
        size = next(sizes, b"0")
        large = size.isdigit() and int(size) > self.most_body
        if large:
            _refuse(self, _BODY_TOO_LARGE)
        return large

    def is_too_much(self, body: Sequence[int]) -> bool:
        """Refuse a body that has become too large with its next piece, and tell whether it was."""
        self.body_bytes += len(body)
        large = self.body_bytes > self.most_body
        if large and not self.transport.is_closing():
            _refuse(self, "" if self.cycle.response_started else _BODY_TOO_LARGE)
        return large

    def is_at_rest(self) -> bool:
        """Tell whether nothing of a request was read that is not answered."""
        if self.cycle is not None and self.timeout_keep_alive_task is None:
            return False
        return not self.is_reading()

    def is_answered(self) -> bool:
        """Tell whether no response is wanted: what comes is the rest of a request, or the next."""
        return self.cycle is not None and self.cycle.response_complete

    def _resume_reading(self) -> None:
        if self.flow.read_paused and not self.is_full():
            self._flow_on()

    def expect_head(self) -> None:
        """Have the time for a head begin, if it has not."""
        if self.head_until is None:
            self.head_until = monotonic() + self.within


class _HttptoolsBounds(_Bounds):
    """Knows how much of a head, or of trailers, has come, and since when."""

    headers: Any
    parser: Any
    _in_head = _in_message = _has_begun = False
    _bytes = 0  # in a row, without anything of a body among them
    _piece = 0  # bytes of the piece that is being read
    _declined = b""  # a head without the offer of another protocol that it had
    _declined_at = 0  # where it ended in the piece
    _unread = memoryview(b"")  # what waits, since many requests do

    def in_head(self) -> bool:
        return self._in_head

    def is_reading(self) -> bool:
        return self._in_message or bool(self._unread)

    def is_full(self) -> bool:
        waits = self.pipeline and len(self.cycle.body) > _MOST_UNREAD
        return bool(self._unread or waits)

    def data_received(self, data: bytes) -> None:
        if self._unread:  # TLS and uvloop may bring more while nothing is to be read
            self._unread = memoryview(bytes(self._unread) + data)
            return
        if len(data) <= _PIECE and not self.pipeline:  # the usual case takes few steps
            data = data[self._feed(data) :]
        if data:
            self._unread = memoryview(data)
            self.read_on()

    def read_on(self) -> None:
        """Read what has come, piece by piece, until many requests wait."""
        rest = self._unread
        self._unread = memoryview(b"")
        # A WebSocket is none of the connections any more, and has nothing more to read yet.
        while rest and self in self.connections:
            if len(self.pipeline) >= _MOST_WAITING:
                self._unread, self.head_until = rest, None
                self.flow.pause_reading()
                return
            rest = rest[self._feed(rest[:_PIECE]) :]

    def _feed(self, piece: bytes | memoryview) -> int:
        """Have the parser read a piece, and return how much of it was read."""
        length = len(piece)
        if self.transport.is_closing():
            return length
        cycle, in_message = self.cycle, self._in_message
        if in_message and self.is_answered():
            self.expect_head()
        self._has_begun, self._piece = False, length
        super().data_received(piece)
        if self._declined:
            # That parser has left out the body, so another one reads the request from its beginning.
            head, self._declined = self._declined, b""
            length = self._declined_at
            self.parser = type(self.parser)(self)
            with suppress(AttributeError):  # as uvicorn does
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._feed(head)
            return length
        # No head has come with it, not even a part of one, and no response is wanted: empty lines.
        if self._in_head or (
            self.cycle is cycle and not in_message and self.is_answered()
        ):
            self.expect_head()
        # Of a piece in which it has begun it is not known how much is the head's.
        if self._in_message and not self._has_begun and not self.transport.is_closing():
            self._bytes += length
            if self._bytes > self.most:
                said = not self._in_head and self.cycle.response_started
                _refuse(self, "" if said else _TOO_LARGE)
        return length

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_message = self._has_begun = True
        self._bytes = 0

    def on_body(self, body: bytes) -> None:
        if self.is_too_much(body):
            return
        super().on_body(body)
        self.body_at = monotonic()
        self._has_begun, self._bytes = True, 0

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._declined:
            return
        # It may have been the rest of a request that was answered early.
        self.head_until = None
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._in_head, self.head_until = False, None
        # A head is no larger than the only piece that it came in: to add up takes 0.3 us for each header.
        in_one = self._has_begun and self._piece <= self.most
        if not in_one and _size(self.url, self.headers) > self.most:
            _refuse(self, _TOO_LARGE)
            raise ValueError(_TOO_LARGE)  # the parser stops, see send_400_response
        if self.begins_large_body(self.headers):
            raise ValueError(_BODY_TOO_LARGE)
        if self.parser.should_upgrade() and not self._should_upgrade():
            self._decline()
            return
        super().on_headers_complete()
        if not self.parser.should_upgrade():
            # Trailers come as headers do.  A proxy checks and sets headers, and lets trailers pass, so
            # no application may take one for the other.
            self.headers = []

    def _decline(self) -> None:
        """Have the request read as if nothing but HTTP/1.1 was offered.

        The parser takes whatever comes behind an offer for the other protocol, also where it is refused:
        a body would be lost, or be read as the next request.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            raise ValueError("no proxy")
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        lines += [b"%b: %b" % it for it in self.headers if it[0] != b"upgrade"]
        self._declined = b"\r\n".join([*lines, b"", b""])

    def _unsupported_upgrade_warning(self) -> None:
        # Here the parser has stopped, and says where.
        error = sys.exception()
        assert error is not None
        self._declined_at = error.args[0]

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)


# The states of h11 in which a request has been read, and the next one waits.
_READ = {"DONE", "MIGHT_SWITCH_PROTOCOL"}


class _H11Bounds(_Bounds):
    """Knows since when a head is coming, and how large it was."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._unbounded_event = self.conn.next_event
        self.conn.next_event = self._next_event
        super().connection_made(transport)

    def is_full(self) -> bool:
        done = str(self.conn.their_state) in _READ
        return done and len(self.conn.trailing_data[0]) > _MOST_UNREAD

    def in_head(self) -> bool:
        return self._is_idle() and bool(self.conn.trailing_data[0])

    def is_reading(self) -> bool:
        states = {str(state) for state in self.conn.states.values()}
        return states != {"IDLE"} or bool(self.conn.trailing_data[0])

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # as above
            return
        if self._is_idle() or self.is_answered():
            self.expect_head()
        else:
            self.body_at = monotonic()
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.head_until = None

    def _next_event(self) -> Any:
        """Return what h11 finds, unless it is a head that is too large, or such a part."""
        import h11  # noqa: PLC0415 - with httptools nobody needs it

        in_head = self._is_idle()
        try:
            event = self._unbounded_event()
        except h11.RemoteProtocolError as error:
            # Of a body there is no answer to give: one may have begun.
            if not in_head or error.error_status_hint != _TOO_LARGE_STATUS:
                raise
        else:
            if isinstance(event, h11.Data):
                return h11.NEED_DATA if self.is_too_much(event.data) else event
            if not isinstance(event, h11.Request):
                return event
            if _size(event.target, event.headers) <= self.most:
                large = self.begins_large_body(event.headers)
                return h11.NEED_DATA if large else event
        self.logger.warning("a head of more than %d bytes is refused", self.most)
        _refuse(self, _TOO_LARGE)
        return h11.NEED_DATA

    def _is_idle(self) -> bool:
        """Tell whether h11 waits for a request, or for the rest of its head."""
        return str(self.conn.their_state) == "IDLE"


def _size(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Return how large a head is, but for its method, its version, and idle blanks."""
    return len(target) + sum(len(n) + len(v) + _PER_HEADER for n, v in headers)


def _refuse(protocol: Any, status: str) -> None:
    """Close a connection, after an answer if there is a *status*."""
    protocol.head_until = None
    if status:
        protocol.figures.refused += 1
        answer = (
            f"HTTP/1.1 {status}\r\nconnection: close\r\n"
            f"content-type: text/plain\r\ncontent-length: {len(status)}\r\n\r\n{status}"
        )
        protocol.transport.write(answer.encode())
    protocol.transport.close()


# The open requests: what is counted of them, who has left, and which take too long.
#
# A request that does nothing takes uvicorn some 60 us, and whatever is done here comes on top of
# that.  So nothing is made for a request but one object, and its coroutine; the rest is looked up
# once a second.

# Seconds between two looks at the requests, and at the event loop.
_INTERVAL = 1.0

# Seconds for which no thread becomes free until the worker counts as busy, and until that is told if
# no request waits for one.
_HELD, _LONG = 2.0, 10.0

_REQUEST_TIMEOUT, _SERVER_ERROR, _UNAVAILABLE = 408, 500, 503

# The status of a response that has been counted.
_OVER = -1

# How many pieces may be sent to a client that has left until that is an error.  An application
# that waits for the news meanwhile is cancelled where it waits, so that its generators end too, and
# not in send(), where they would be left to the garbage collector.
_UNHEARD = 2

# After so many pieces of a response the loop has a turn, though the application never waits: behind TLS
# it is the loop that hears of a client that has left, and other clients want theirs.
_PIECES_A_TURN = 16

# Characters of a text in the access log, and of a stack among open requests.
_MOST_SHOWN = 2000
_LONGEST_STACK = 4000

# Calls of a stack that tell the user nothing.
_NOT_THEIRS = (
    f"{Path(__file__).parents[2]}/",
    *(f"{Path(str(it.__file__)).parent}/" for it in (uvicorn, asyncio)),
    str(threading.__file__),
)
_DEEPEST = 20


class ClientLeftError(ConnectionResetError):
    """The client of a stream has left.  Who goes on sending gets it, as of ASGI 2.4."""


class Server:
    """The server of one worker, and its open requests.

    Args:
        worker: The worker.
        target: The application, and how it is served.
    """

    def __init__(self, worker: Worker, target: Target) -> None:
        self._worker = worker
        self._timeout, self._within = target.request_timeout, target.header_timeout
        self._access_format = target.access_format
        config, self._threads = configure(target)
        config.load()
        if config.proxy_headers:
            config.loaded_app = _behind_files(config.loaded_app, config)
        self._most = _most_requests(config, worker)
        self._limit = config.limit_concurrency
        self._config = config
        self._server = uvicorn.Server(config)
        self._state = self._server.server_state
        self.figures = figures = RequestFigures()
        self._protocol_class = bounded(
            config.http_protocol_class,
            most=target.header_size,
            most_body=float("inf") if target.body_size is None else target.body_size,
            within=self._within,
            figures=figures,
            threaded=self._threads is not None,
        )
        self.open: set[_Request] = set()
        self._busy_since = 0.0
        self._busy_said = False
        self._logger = logging.getLogger("asyncpool")
        self._told = figures.pack_requests()

    async def serve(self) -> None:
        """Serve until the worker drains, and drain.

        Raises:
            RuntimeError: If the application refuses to start.
        """
        worker, config, state = self._worker, self._config, self._state
        loop = asyncio.get_running_loop()
        self._server.lifespan = lifespan = config.lifespan_class(config)
        await _begin_lifespan(lifespan, config)
        await self._server.on_tick(0)
        app: Any = config.loaded_app
        access = self._access_format, worker._link.log  # noqa: SLF001 - no user calls it
        config.loaded_app = counted(app, self.figures, self.open, *access)
        if self._limit is not None:
            self._count_refusals(config.http_protocol_class)
        looking = loop.create_task(self._run(), name="asyncpool server requests")
        worker._link.open_requests = lambda: sorted(  # noqa: SLF001 - no user calls it
            self.open.copy(), key=attrgetter("began")
        )

        def make() -> asyncio.Protocol:
            return self._protocol_class(  # type: ignore[no-any-return]
                config=config, server_state=state, app_state=lifespan.state, _loop=loop
            )

        try:
            worker.ready()
            connecting = loop.create_task(
                connect(worker, make, config.ssl, self._within),
                name="asyncpool connections",
            )
            await worker.wait_draining()
            known = issubclass(self._protocol_class, _Bounds)
            drain = Drain(worker, state, moves=known and config.ssl is None)
            if known:
                self._protocol_class.drain = drain
            await drain.run(connecting)
            await connecting
        finally:
            self._leave_threads()
            looking.cancel()
            # Report for the last time, with what is open as cut off.
            self._count_open()
            self.figures.end()
            self._tell()
            for task in state.tasks:  # the application is still whole
                task.cancel()
            if state.tasks:
                await asyncio.wait(state.tasks, timeout=_CLEAN_UP)
            await lifespan.shutdown()

    def _leave_threads(self) -> None:
        """Answer 503 in place of threads, and of those that wait for one, or cut a response off."""
        for request in self.open:
            if CALL in request.scope and request.answer is None:
                request.refuse_soon(0 if request.status else _UNAVAILABLE)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _INTERVAL
            await asyncio.sleep(_INTERVAL)
            if not self._worker.is_draining:
                # As uvicorn's main loop does, for the date in the headers.
                await self._server.on_tick(0)
                close_late(self._state.connections)
                if self._state.total_requests >= self._most:
                    self._worker.request_replacement(
                        "it has served as many requests as it may (limit_max_requests)"
                    )
            if self._timeout is not None:
                self._look(self._timeout)
            self._tell_busy(self._why_busy())
            self._count_open()
            self._tell()
            # It goes with the next report, as an idle worker has nothing else to tell.
            self.figures.lag.note(loop.time() - due)

    def _tell(self) -> None:
        """Report what is new."""
        requests = self.figures.pack_requests()
        if requests != self._told:
            self._told = requests
            report = requests + self.figures.lag.pack()
            self._worker._link.report(report)  # noqa: SLF001 - no user calls it

    def _count_open(self) -> None:
        # uvicorn has a task for each, so nothing has to be counted when one begins and ends.
        figures = self.figures
        figures.open = max(0, len(self._state.tasks) - figures.open_websockets)

    # A worker that can take no request.

    def _count_refusals(self, protocol_class: Any) -> None:
        """Count the requests that uvicorn refuses for its ``limit_concurrency``.

        They never get to the application, but to one of uvicorn's own.
        """
        module: Any = sys.modules[protocol_class.__module__]
        refuse = module.service_unavailable

        async def count(scope: Any, receive: Any, send: Any) -> None:
            self.figures.refused += 1
            # At once, or the next connection may come here as well.
            if not self.figures.busy:
                self._tell_busy(self._why_busy())
                self._tell()
            await refuse(scope, receive, send)

        module.service_unavailable = count

    def _why_busy(self) -> str:
        """Return why the worker can take no request now; nothing if it can."""
        threads = self._threads
        if threads is not None and threads.held_for(monotonic()) > _HELD:
            count = threads.count
            return (
                f"its {count} threads are in requests, and none becomes free (threads)"
            )
        connections, tasks = len(self._state.connections), len(self._state.tasks)
        if self._limit is not None and max(connections, tasks) >= self._limit:
            return f"it has {connections} connections (limit_concurrency)"
        return ""

    def _tell_busy(self, why: str) -> None:
        now, was_busy = monotonic(), self.figures.busy
        if bool(why) is not bool(was_busy):
            self.figures.busy = int(bool(why))
            self._worker._link.accept(wanted=not why)  # noqa: SLF001 - as above
        if not why:
            if self._busy_said:
                extra = {"seconds": round(now - self._busy_since, 1)}
                say.WORKER_FREE.log(self._logger, extra)
            self._busy_said = False
            return
        self._busy_since = self._busy_since if was_busy else now
        # Requests that take some seconds, in a worker with one thread, are nothing to be told of.
        matters = self._threads is None or self._threads.waits_for(now) > _HELD
        if not self._busy_said and (matters or now - self._busy_since > _LONG):
            self._busy_said = True
            say.WORKER_BUSY.log(self._logger, {}, why=why)

    # Requests that take too long.

    def _look(self, timeout: float) -> None:
        now, lost, threads = monotonic(), 0, self._threads
        starved = threads is not None and threads.waits_for(now) > timeout
        for request in list(self.open):
            if request.answer is not None:
                # Nothing ends a thread, and its code may ignore that it was cancelled.
                lost += 1
            elif request.cycle is not None:
                self._judge(request, now, timeout)
        # Behind the count: what is given up here ends in the next iteration of the loop, or is counted later.
        self._cut_who_read_nothing(timeout, now)
        stuck = threads.stuck(now, timeout) if threads else []
        if lost:
            self._worker.request_replacement(
                f"{lost} of its requests go on, which were given up after {timeout:g} s (request_timeout)"
            )
        # One that still sends has its time; but not if others get no thread because of the rest.
        elif threads and stuck and (starved or len(stuck) == threads.count):
            self._tell_stuck(stuck, timeout)
            self._worker.request_replacement(
                f"{len(stuck)} of its {threads.count} threads are in requests that have "
                f"done nothing for {timeout:g} s (request_timeout)"
            )

    def _cut_who_read_nothing(self, timeout: float, now: float) -> None:
        """Cut connections whose clients have taken nothing of a response, complete or not."""
        for it in list(self._state.connections):
            if not isinstance(it, _Bounds):
                continue
            held = it.transport.get_write_buffer_size()
            # With the megabytes that the kernel holds for it.
            unsent = held and held + queued(it.transport.get_extra_info("socket"))
            if unsent != it.unsent:
                it.unsent, it.unsent_since = unsent, now
            elif unsent and now - it.unsent_since > timeout:
                request: _Request | None = it.request
                if request is not None and request.answer is None:
                    why = f"has read nothing of its response for {timeout:g} s"
                    self._give_up(request, why, 0)
                it.transport.abort()

    def _tell_stuck(self, stuck: list[Call], timeout: float) -> None:
        for request in self.open:
            if request.scope.get(CALL) in stuck and not request.told:
                request.told = True
                why = f"has sent nothing more for {timeout:g} s"
                self._log(request, why, 0, "left until its worker has drained")

    def _judge(self, request: _Request, now: float, timeout: float) -> None:
        """Give a request up if nothing has happened for too long."""
        cycle = request.cycle
        protocol = cycle.transport.get_protocol()
        # A thread is held until the application has ended, also behind the response.
        if (
            cycle.disconnected
            or getattr(protocol, "half_closed", False)
            or (cycle.response_complete and CALL in request.scope)
        ):
            request.left_at = request.left_at or now
            if now - request.left_at > timeout:
                self._give_up(request, f"goes on for nobody for {timeout:g} s", 0)
        elif not cycle.response_started:
            since = max(request.began, getattr(protocol, "body_at", 0.0))
            if now - since <= timeout:
                return
            if cycle.more_body and not cycle.body and not cycle.flow.read_paused:
                why = f"has sent nothing more of its body for {timeout:g} s"
                self._give_up(request, why, _REQUEST_TIMEOUT)
            else:
                call: Call | None = request.scope.get(CALL)
                waits = call is not None and not call.runs
                what = "found no free thread for" if waits else "no response after"
                self._give_up(request, f"has {what} {timeout:g} s", _UNAVAILABLE)

    def _give_up(self, request: _Request, why: str, status: int) -> None:
        """End a request as far as it can be ended, and answer its client if there is a *status*."""
        self.figures.timed_out += 1
        done = f"answered {status}" if status else "cut off"
        self._log(request, why, status, done)
        request.refuse_soon(status)

    def _log(self, request: _Request, why: str, status: int, done: str) -> None:
        """Log where a request is that takes too long."""
        extra = {
            "method": request.scope["method"],
            "path": request.scope["path"],
            "seconds": round(monotonic() - request.began, 1),
            "status": status or None,
        }
        say.REQUEST_TIMED_OUT.log(
            self._logger,
            extra,
            stack=request.stack(),
            who=request.who,
            why=why,
            done=done,
        )


def counted(
    app: Any, figures: RequestFigures, requests: set[_Request], *access: Any
) -> Any:
    """Return an application that counts what *app* answers, and keeps its open requests.

    They are logged if *access*, as of :class:`_LoggedRequest`, begins with a format.

    A response counts when its last piece is handed to the server, also if the application
    goes on.  If the application ends before that, with an error or without one, it counts with the
    status that it has, or as 500, with which the server answers then.
    """
    make = partial(_LoggedRequest, *access) if any(access[:1]) else _Request

    async def count(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":  # a WebSocket
            with suppress(AttributeError):  # another implementation
                receive.__self__.head_until = None
            figures.websockets += 1
            figures.open_websockets += 1
            try:
                await app(scope, receive, send)
            finally:
                if not figures.ended:
                    figures.open_websockets -= 1
            return
        request = make(scope, receive, send, figures)
        requests.add(request)
        try:
            await app(scope, receive, request.tell)
        except BaseException as error:
            if not request.explains(error):
                raise
            # What it has streamed from ends now, and not with the next garbage collection.
            clear_frames(error.__traceback__)
        finally:
            requests.discard(request)
            if request.answer is not None:
                await asyncio.shield(request.answer)
            # What is open when figures end is counted as cut off.
            if request.status != _OVER and not figures.ended:
                request.count(request.status or _SERVER_ERROR)

    return count


def _shown(text: bytes | str) -> str:
    """Return what a client has sent as a part of a line."""
    found = text if isinstance(text, str) else text.decode("latin-1")
    if found.isprintable() and len(found) <= _MOST_SHOWN:
        return found
    return printable(found, _MOST_SHOWN)


class _Request:
    """One request, whose application has not returned.

    Attributes:
        cycle: What uvicorn knows of it; ``None`` with another implementation of HTTP.
        status: Of its response; 0 if there is none yet.
        answer: The task that answers in place of the application, which was given up.
    """

    # Of the class, since they would cost each request some time otherwise.
    status = refused = pieces = 0
    told = False
    left_at = 0.0
    answer: asyncio.Task[None] | None = None

    def __init__(
        self, scope: Any, receive: Any, send: Any, figures: RequestFigures
    ) -> None:
        self.scope, self._send = scope, send
        self._responses = figures.responses
        self.task = asyncio.current_task()
        cycle: Any = getattr(receive, "__self__", None)
        self.cycle: Any = cycle
        if cycle is not None:
            try:
                cycle.transport.get_protocol().request = self
            except AttributeError:  # another implementation of HTTP, which is let be
                self.cycle = None
        self.began = monotonic()

    @property
    def title(self) -> str:
        """What it is called among the tasks of its worker."""
        age, scope = monotonic() - self.began, self.scope
        return f"{age:.1f} s: {scope['method']} {scope['path']!r}{self.who}"

    def row(self) -> dict[str, object]:
        """Return what a list of open requests has of it."""
        return {
            "method": self.scope["method"],
            "path": self.scope["path"][:_MOST_SHOWN],
            "age": round(monotonic() - self.began, 3),
            "client": self.who.removeprefix(" of ")[:_MOST_SHOWN],
            "stack": self.stack()[:_LONGEST_STACK] or None,
        }

    @property
    def who(self) -> str:
        """Of which client it is."""
        client = self.scope.get("client")
        return f" of {client[0]}:{client[1]}" if client else ""

    def tell(self, message: Any) -> Any:
        """Send a message; an application that goes on for nobody gets an error."""
        if self.answer is not None:
            return _refuse_more(message)
        if self.status == 0:
            self.status = message.get("status", 0)
            return self._send(message)
        if self.scope["method"] == "HEAD":
            # The client gets none of the body, which may be endless, and waits for the next response.
            if self.status == _OVER:
                return _refuse_more(message)
            message = {"type": "http.response.body"}
        if message.get("more_body"):
            # Who never waits keeps the loop from telling uvicorn, but not the transport.
            if self.cycle is not None and self.cycle.transport.is_closing():
                self.refused += 1
                if self.refused > _UNHEARD:
                    return _refuse_more(message)
            self.pieces += 1
            if not self.pieces % _PIECES_A_TURN:
                return self._send_later(message)
        elif self.status != _OVER:
            took = (monotonic() - self.began) * 1e6
            # As Durations.note() does, whose call would take as long again.
            durations = self._responses[class_of(self.status)]
            durations.counts[int(took).bit_length()] += 1
            durations.total += took
            self.status = _OVER
        return self._send(message)

    async def _send_later(self, message: Any) -> None:
        await asyncio.sleep(0)
        await self._send(message)

    def count(self, status: int) -> None:
        """Count the response, which is over."""
        self._responses[class_of(status)].note(monotonic() - self.began)
        self.status = _OVER

    def explains(self, error: BaseException) -> bool:
        """Tell whether the application has ended with *error* only because it was told to."""
        if isinstance(error, asyncio.CancelledError):
            return self.answer is not None
        group: Any = BaseExceptionGroup("", [error])
        return group.split(ClientLeftError)[1] is None

    def leave(self) -> None:
        """Note that the client is gone, of which uvicorn tells the last request alone."""
        cycle, call = self.cycle, self.scope.get(CALL)
        if not cycle.response_complete:
            cycle.disconnected = True
            if call is not None:
                call.leave()
        cycle.message_event.set()

    def refuse_soon(self, status: int) -> None:
        """End the application, and answer in its place; without a status cut the connection."""
        call: Call | None = self.scope.get(CALL)
        if call is not None:
            call.leave()
        self.answer = asyncio.get_running_loop().create_task(
            self._refuse(status), name="asyncpool request refused"
        )
        assert self.task is not None
        self.task.cancel()

    async def _refuse(self, status: int) -> None:
        if not status:
            # If it is complete, the next request may be there.
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.transport.abort()
            return
        text = HTTPStatus(status).phrase.encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(text)),
            (b"connection", b"close"),
        ]
        self.count(status)  # now, since the application may go on for long
        with suppress(Exception):  # the connection may end at any time
            await self._send(
                {"type": "http.response.start", "status": status, "headers": headers}
            )
            await self._send({"type": "http.response.body", "body": text})

    def stack(self) -> str:
        """Return where the application is, the innermost call first."""
        call: Call | None = self.scope.get(CALL)
        if call is None:
            assert self.task is not None
            frames = [*waiting_frames(self.task.get_coro())][::-1]
        else:
            frame = sys._current_frames().get(call.thread or 0)  # noqa: SLF001 - it is documented
            frames = [it for it, _ in walk_stack(frame)] if frame else []
        theirs = [
            line_of(it)
            for it in frames
            if not it.f_code.co_filename.startswith(_NOT_THEIRS)
        ]
        return "\n".join(theirs[:_DEEPEST])


class _LoggedRequest(_Request):
    """One that is logged when it is over.

    Args:
        form: The format of a line.
        log: The worker's own log; ``None`` if its records go to the master.
        *args: As of any request.
    """

    def __init__(self, form: str, log: Any, *args: Any) -> None:
        super().__init__(*args)
        self._form, self._log = form, log
        self._start: Any = None
        self._size = 0

    def tell(self, message: Any) -> Any:
        if "status" in message:
            self._start = message
        elif self.scope["method"] != "HEAD":
            self._size += len(message.get("body", b""))
        sending = super().tell(message)
        if self.status == _OVER:
            self._end()
        return sending

    def count(self, status: int) -> None:
        super().count(status)
        self._start = self._start or {"status": status}
        self._end()

    def _end(self) -> None:
        form, self._form = self._form, ""
        if not form:
            return
        scope, start = self.scope, self._start
        asked, client = dict(scope["headers"]), scope.get("client")
        answered = {name.lower(): value for name, value in start.get("headers", ())}
        query = scope["query_string"]
        target = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
        fields: dict[str, Any] = {
            "client": _shown(client[0] if client else "-"),
            "method": scope["method"],
            "path": _shown(target),
            "protocol": f"HTTP/{scope['http_version']}",
            "status": start["status"],
            "bytes": self._size,
            "ms": round((monotonic() - self.began) * 1e3, 3),
            "agent": _shown(asked.get(b"user-agent", b"-")),
            "referer": _shown(asked.get(b"referer", b"-")),
            "request_id": _shown((asked | answered).get(b"x-request-id", b"-")),
        }
        # In a line they can end no quotation.
        shown = {
            name: it.replace('"', '\\"') if type(it) is str else it
            for name, it in fields.items()
        }
        if self._log is not None:
            self._log.access(form % shown, fields)
        else:
            logging.getLogger(ACCESS_LOGGER).info(form, shown, extra=fields)


async def _refuse_more(message: Any) -> None:
    """Have an application that streams stop, also if it never waits for anything else."""
    await asyncio.sleep(0)
    if message.get("more_body"):
        raise ClientLeftError("the client has left")


# Drain the connections, so that no request is lost.
#
# A client may send its next request at any time, also just when its keep-alive connection is
# closed: that request is lost.  So a connection at rest is not closed, but given to another
# worker: the socket stays open, and what is on its way arrives there.  Where that cannot be,
# the next response says that it is the last one, which leaves the client to open another
# connection, and only what stays at rest for long is closed.

# How often connections are looked at, besides the moments when a response is complete.
_LOOK = 0.02  # seconds

# How long a connection stays open for a last request, if the worker has the time.
_PATIENCE = 1.0  # seconds

_CLOSE = (b"connection", b"close")


class Drain:
    """The end of all connections of one server.

    Args:
        worker: The worker, which drains.
        state: What the server knows of its connections.
        moves: Whether it is known when they are at rest, and nothing encrypts them.
    """

    def __init__(self, worker: Worker, state: ServerState, *, moves: bool) -> None:
        self._worker = worker
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._patience = min(_PATIENCE, worker.drain_timeout / 2)
        self._headers = state.default_headers
        self._can_move = moves
        self._lacks = False  # descriptors
        self._told, self._lost = set[Any](), set[Any]()
        # Since when each is at rest, and the timer that tells one rest from another.
        self._resting: dict[Any, tuple[Any, float]] = {}

    async def run(self, connecting: asyncio.Task[None]) -> None:
        """Wait until no connection and no request is left.

        Args:
            connecting: What brings new connections, as long as it runs.
        """
        while True:
            self._set_headers()
            connections = self._state.connections
            for protocol in list(connections):
                self._visit(protocol)
            if connecting.done() and not connections and not self._state.tasks:
                return
            await asyncio.sleep(_LOOK)

    def _set_headers(self) -> None:
        """Have responses that are begun from now on be the last ones of their connections.

        Unless another worker may go on with these.
        """
        self._state.default_headers = self._headers + [_CLOSE] * (not self._moves)

    @property
    def _moves(self) -> bool:
        return self._can_move and self._worker.can_give_back

    def _visit(self, protocol: Any) -> None:
        if not hasattr(protocol, "cycle"):  # a WebSocket, or HTTP/2
            # In the middle of its handshake it would be told that the server has failed.
            if protocol not in self._told and _is_open(protocol):
                self._told.add(protocol)
                protocol.shutdown()
            return
        if protocol.transport.is_closing() or self.move(protocol):
            return
        if self._lacks and protocol not in self._lost:
            self._lost.add(protocol)
            self._worker.lost()
        cycle = protocol.cycle
        if cycle is not None and not cycle.response_complete:
            if not self._moves and not cycle.response_started:
                cycle.default_headers = self._state.default_headers
        elif self._has_rested(protocol):
            protocol.shutdown()

    def move(self, protocol: Any) -> bool:
        """Have another worker go on with a connection, if it is at rest; return whether it was."""
        transport = protocol.transport
        unsent = transport.get_write_buffer_size()
        if unsent or not self._moves or not protocol.is_at_rest():
            return False
        # The copy outlives the transport, which closes without a word to the client.
        transport.pause_reading()
        try:
            descriptor = os.dup(transport.get_extra_info("socket").fileno())
            with socket.socket(fileno=descriptor) as copy:
                self._worker.give_back(copy)
        except OSError as error:
            self._can_move, self._lacks = False, True
            self._set_headers()
            transport.resume_reading()
            logger, extra = logging.getLogger("asyncpool"), {"seconds": self._patience}
            say.NOT_HANDED_ON.log(logger, extra, why=error.strerror)
            return False
        transport.abort()
        return True

    def _has_rested(self, protocol: Any) -> bool:
        """Tell whether it has been at rest for long, with nothing to be read."""
        timer = protocol.timeout_keep_alive_task
        if timer is None and protocol.scope is not None:
            return False  # in the middle of a request
        now = self._loop.time()
        known, since = self._resting.setdefault(protocol, (timer, now))
        if known is not timer:
            self._resting[protocol] = timer, now
            return False
        if now - since < self._patience:
            return False
        sock = protocol.transport.get_extra_info("socket")
        return not queued(sock, termios.FIONREAD)


def _is_open(protocol: Any) -> bool:
    """Tell whether the handshake of a WebSocket is over."""
    event = getattr(protocol, "handshake_completed_event", None)
    done = getattr(protocol, "handshake_complete", True)
    return bool(done if event is None else event.is_set())
