"""Applications of each kind that stream, read, wait and hang, and tell what became of it.

``/stream`` has no end, ``/upload`` reads a body, ``/hang`` does not come back before ``/release``, and
``/told`` says what happened so far, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

import django
import fastapi
import flask
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from werkzeug.wsgi import ClosingIterator

Message = dict[str, Any]

told: Counter[str] = Counter()
released = threading.Event()
PIECE = b"x" * 1000


def pieces() -> Generator[bytes]:
    """Yield for ever, slowly."""
    told["begun"] += 1
    try:
        while True:
            yield PIECE
            released.wait(0.01)
    finally:
        told["closed"] += 1


async def later_pieces() -> AsyncIterator[bytes]:
    """Yield for ever, slowly, in an event loop."""
    told["begun"] += 1
    try:
        while True:
            yield PIECE
            await asyncio.sleep(0.01)
    finally:
        told["closed"] += 1


# WSGI.


class Endless:
    """An iterable that is no generator."""

    def __init__(self) -> None:
        self._pieces = pieces()

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        """Be told of the end."""
        self._pieces.close()
        told["close()"] += 1


def hang() -> None:
    told["hanging"] += 1
    released.wait()


def raw_wsgi(environ: Message, start_response: Callable[..., Any]) -> Any:
    where, body = environ["PATH_INFO"], b""
    if where in {"/stream", "/write"}:
        write = start_response("200 OK", [("content-type", "text/plain")])
        if where == "/stream":
            return Endless()
        for piece in pieces():
            write(piece)
    if where == "/flood":
        start_response("200 OK", [("content-type", "text/plain")])
        return flood()
    if where == "/lingering":
        start_response("200 OK", [])
        return ClosingIterator([b"whole"], hang)
    if where == "/silence":  # a stream whose next piece never comes
        start_response("200 OK", [("content-type", "text/plain")])
        return silence()
    if where == "/upload":
        try:
            body = environ["wsgi.input"].read()
        except OSError:
            told["broken off"] += 1
            raise
    elif where == "/lines":
        lines = environ["wsgi.input"]
        body = json.dumps(
            [lines.readline(3).decode(), lines.readlines()[0].decode()]
        ).encode()
    elif where == "/late":
        try:
            start_response("200 OK", [("x", "first")])
            raise ArithmeticError  # noqa: TRY301 - as a framework does
        except ArithmeticError as error:
            info = (type(error), error, error.__traceback__)
            start_response("418 No", [("x", "second")], info)
            return [b"changed"]
    elif where == "/headers":
        environ["wsgi.input"].read()
        names = ("HTTP_X_REMOTE_USER", "HTTP_COOKIE", "PATH_INFO", "SCRIPT_NAME")
        body = json.dumps({name: environ.get(name) for name in names}).encode()
    else:
        body = do(where)
    start_response(
        "200 OK", [("content-type", "text/plain"), ("content-length", str(len(body)))]
    )
    return [body]


def do(where: str) -> bytes:
    """Do what a path says that every application has."""
    if where == "/hang":
        hang()
    elif where == "/release":
        released.set()
    return json.dumps(told).encode()


def flood() -> Iterator[bytes]:
    """Yield for ever, as fast as somebody takes it."""
    try:
        while True:
            yield bytes(65_536)
    finally:
        told["closed"] += 1


def silence() -> Iterator[bytes]:
    yield PIECE
    hang()


flask_app = flask.Flask(__name__)


@flask_app.get("/stream")
def flask_stream() -> flask.Response:
    return flask.Response(pieces())


@flask_app.post("/upload")
def flask_upload() -> str:
    try:
        return str(len(flask.request.get_data()))
    except Exception:
        told["broken off"] += 1
        raise


@flask_app.get("/told")
def flask_told() -> dict[str, int]:
    return told


settings.configure(
    ALLOWED_HOSTS=["*"],
    LOGGING_CONFIG=None,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],  # tells the length
    ROOT_URLCONF=__name__,
    SECRET_KEY="not one",
)
django.setup()


def django_stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(pieces())


def django_upload(request: HttpRequest) -> HttpResponse:
    try:
        return HttpResponse(str(len(request.body)))
    except OSError:
        told["broken off"] += 1
        raise


def django_told(request: HttpRequest) -> HttpResponse:
    return HttpResponse(json.dumps(told))


urlpatterns = [
    path("stream", django_stream),
    path("upload", django_upload),
    path("told", django_told),
]
django_app = get_wsgi_application()


# ASGI.


async def raw_asgi(scope: Message, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    where, status, echo = scope["path"], 200, b""
    if where in {"/stream", "/torrent"}:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async for piece in later_pieces() if where == "/stream" else torrent():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    if where in {"/upload", "/echo"}:
        message: Message = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            echo += message.get("body", b"")
        if message["type"] == "http.disconnect":
            told["broken off"] += 1
            return
        names = sorted(name.decode() for name, _ in scope["headers"])
        echo = json.dumps([scope["method"], names, echo.decode()]).encode()
    elif where == "/wait":
        await asyncio.Event().wait()
    elif where == "/stubborn":
        await ignore_cancellation()
    elif where == "/events":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not released.is_set():  # noqa: ASYNC110 - a thread sets it elsewhere
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"at last"})
        return
    elif where == "/block":
        hang()
    elif where == "/client":
        echo = json.dumps([scope["client"], scope["scheme"]]).encode()
    elif where == "/big":
        echo = bytes(20 << 20)
    body = echo if where in {"/echo", "/big", "/client"} else do(where)
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def no_lifespan(scope: Message, receive: Any, send: Any) -> None:
    """Have a lifespan that raises, and answer all the same."""
    await receive()
    if scope["type"] == "lifespan":
        raise RuntimeError("no database")
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body"})


async def torrent() -> AsyncIterator[bytes]:
    """Yield for ever without ever waiting for anything."""
    told["begun"] += 1
    try:
        while True:
            yield PIECE
    finally:
        told["closed"] += 1


async def ignore_cancellation() -> None:
    """Go on until it is released, whatever comes."""
    told["hanging"] += 1
    while not released.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


async def starlette_stream(request: Request) -> StreamingResponse:
    return StreamingResponse(later_pieces())


async def starlette_upload(request: Request) -> JSONResponse:
    try:
        return JSONResponse(len(await request.body()))
    except Exception:
        told["broken off"] += 1
        raise


async def starlette_told(request: Request) -> JSONResponse:
    return JSONResponse(told)


starlette_app = Starlette(
    routes=[
        Route("/stream", starlette_stream),
        Route("/upload", starlette_upload, methods=["POST"]),
        Route("/told", starlette_told),
    ]
)

fast = fastapi.FastAPI()


@fast.get("/stream")
def fast_stream() -> StreamingResponse:
    return StreamingResponse(pieces())


@fast.get("/told")
async def fast_told() -> dict[str, int]:
    return dict(told)
