"""An ASGI application without any framework, for servers that are tested."""

from __future__ import annotations

import os
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_begun = False


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """Answer with the pid, or do what the path says."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
    elif scope["type"] == "websocket":
        await _echo(receive, send)
    else:
        await _respond(scope["path"], receive, send)


def plain(scope: Message, receive: Receive, send: Send) -> Awaitable[None]:
    """Be the application, without being a coroutine function."""
    return app(scope, receive, send)


def make_app() -> Callable[..., Awaitable[None]]:
    return app


def make_app_unless(path: Path) -> Callable[..., Awaitable[None]]:
    """Return the application, or a broken one if there is such a file."""
    return broken if path.exists() else app


def make_flood(counted: Path) -> Callable[..., Awaitable[None]]:
    """Return an application whose WebSockets send without end.

    In the end it writes down how many KiB there were.
    """

    async def flood(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await app(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        sent = 0
        try:
            while True:
                await send({"type": "websocket.send", "bytes": bytes(65536)})
                sent += 64
        finally:
            counted.write_text(str(sent))

    return flood


async def broken(scope: Message, receive: Receive, send: Send) -> None:
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})


async def explaining(scope: Message, receive: Receive, send: Send) -> None:
    """Refuse to start, for a reason that takes two lines."""
    assert scope["type"] == "lifespan"
    await receive()
    text = "no database\nask for one"
    await send({"type": "lifespan.startup.failed", "message": text})


async def raising(scope: Message, receive: Receive, _send: Send) -> None:
    assert scope["type"] == "lifespan"
    await receive()
    raise ValueError("no database")


async def _live(receive: Receive, send: Send) -> None:
    global _begun  # noqa: PLW0603 - as an application has it
    await receive()
    _begun = True
    await send({"type": "lifespan.startup.complete"})
    await receive()
    print("shut down", flush=True)  # noqa: T201
    await send({"type": "lifespan.shutdown.complete"})


async def _echo(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


async def _respond(path: str, receive: Receive, send: Send) -> None:
    assert _begun
    size = 0
    if path == "/upload":
        size = await _read(receive)
    elif path == "/stream":
        # The response is in the middle of it as long as the request is.
        start: Message = {"type": "http.response.start", "status": 200, "headers": []}
        await send(start)
        await send({"type": "http.response.body", "body": b"so", "more_body": True})
        await _read(receive)
        await send({"type": "http.response.body", "body": b"on"})
        return
    elif path.startswith("/leave/"):
        _leave(int(path.removeprefix("/leave/")))
    elif path == "/fail":
        raise ValueError(path)
    body = f"{os.getpid()} {size}".encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _leave(descriptors: int) -> None:
    """Let this process open so many descriptors more."""
    lowest = os.dup(0)
    os.close(lowest)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + descriptors, hard))


async def _read(receive: Receive) -> int:
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    return size
