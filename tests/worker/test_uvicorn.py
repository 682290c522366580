"""What is taken for an application, how its requests count, and what of uvicorn is used."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import flask
import pytest
import uvicorn
from aiohttp import web
from starlette.applications import Starlette
from uvicorn.lifespan.on import LifespanOn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from asyncpool._core.figures import CLASSES, RequestFigures
from asyncpool.cluster._servers.uvicorn_parts import (
    application,
    asgi_version,
    bounded,
    counted,
    load_environment,
)


async def asgi3(scope: Any, receive: Any, send: Any) -> None: ...


async def wrapped(*args: Any, **kwargs: Any) -> None: ...


class Asgi2:
    def __init__(self, scope: Any) -> None: ...


def wsgi(environ: Any, start_response: Any) -> Any: ...


def make_asgi() -> Any:
    return asgi3


def make_wsgi() -> Any:
    return wsgi


def make_nothing() -> Any:
    return None


def takes_four(a: Any, b: Any, c: Any, d: Any) -> Any: ...


def needs(path: str) -> Any:
    return path


@pytest.mark.parametrize(
    "app",
    [asgi3, wrapped, Asgi2, Starlette(), functools.partial(asgi3), max],
    ids=["function", "wrapped", "of version 2", "object", "partial", "of C"],
)
def test_an_application_stays_as_it_is(app: Any) -> None:
    assert application(app, "app:app", "ASGI", factory=False) is app


@pytest.mark.parametrize(
    ("app", "version"),
    [
        (asgi3, "asgi3"),
        (wrapped, "asgi3"),
        (functools.partial(asgi3), "asgi3"),
        (Starlette(), "asgi3"),
        (Asgi2, "auto"),
    ],
)
def test_what_takes_three_arguments_gets_them(app: Any, version: str) -> None:
    assert asgi_version(app) == version


@pytest.mark.logs("looks-like-factory")
def test_a_factory_is_called(caplog: pytest.LogCaptureFixture) -> None:
    assert application(make_asgi, "app:make", "ASGI", factory=True) is asgi3
    assert application(make_wsgi, "app:make", "WSGI", factory=True) is wsgi
    assert caplog.messages == []
    assert application(make_asgi, "app:make", "ASGI", factory=False) is asgi3
    assert caplog.messages == [
        (
            "app:make takes no arguments, and is called to make the application; say "
            "--factory if that is right"
        )
    ]


WSGI = (
    "app:app is a WSGI application, not ASGI: serve it with --interface wsgi, in a program "
    "with asyncpool.cluster.wsgi()"
)


@pytest.mark.parametrize(
    ("app", "factory", "text"),
    [
        (wsgi, False, WSGI),
        (flask.Flask("shop"), False, WSGI),
        ({}, False, "app:app is no application: dict cannot be called"),
        (web.Application(), False, "cannot be called with (scope, receive, send)"),
        (make_nothing, True, "has made no application: NoneType cannot be called"),
        (takes_four, False, "function cannot be called with (scope, receive, send)"),
    ],
    ids=["wsgi", "flask", "dict", "aiohttp", "factory of nothing", "four"],
)
def test_what_is_none_is_refused(app: Any, factory: bool, text: str) -> None:  # noqa: FBT001
    with pytest.raises(TypeError) as caught:
        application(app, "app:app", "ASGI", factory=factory)
    assert str(caught.value).endswith(text)


@pytest.mark.parametrize(
    ("app", "text"),
    [
        (asgi3, "is an ASGI application, not WSGI: serve it with --interface asgi"),
        (needs, "function cannot be called with (environ, start_response)"),
    ],
)
def test_nor_is_it_wsgi(app: Callable[..., Any], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        application(app, "app:app", "WSGI", factory=False)
    assert str(caught.value).endswith(text)


def test_a_file_of_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEPT", "as it was")
    monkeypatch.setenv("SHOP_SET", "")
    monkeypatch.delenv("SHOP_SET")
    path = tmp_path / "env"
    path.write_text("SHOP_SET=new\nSHOP_KEPT=new\n# a remark\n")
    load_environment(str(path))
    assert (os.environ["SHOP_SET"], os.environ["SHOP_KEPT"]) == ("new", "as it was")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_environment("nowhere")


async def ignore(_: Any) -> None: ...


def said(status: Any = 200) -> list[dict[str, Any]]:
    return [
        {"type": "http.response.start", "status": status, "headers": []},
        {"type": "http.response.body", "body": b"so", "more_body": True},
        {"type": "http.response.body", "body": b"on"},
    ]


def saying(*messages: dict[str, Any], error: Exception | None = None) -> Any:
    """Return an application that sends these, and then raises."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        if error is not None:
            raise error

    return app


def counts(figures: RequestFigures) -> dict[str, int]:
    found = zip(CLASSES, figures.responses, strict=True)
    return {name: sum(each.counts) for name, each in found if any(each.counts)}


async def ask(app: Any) -> RequestFigures:
    figures = RequestFigures()
    with suppress(ArithmeticError):
        await counted(app, figures, set())(
            {"type": "http", "method": "GET"}, None, ignore
        )
    return figures


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("app", "found"),
    [
        (saying(*said()), {"2xx": 1}),
        (saying(*said(404)), {"4xx": 1}),
        (saying(*said(799)), {"other": 1}),
        (saying(*said(), *said()[1:]), {"2xx": 1}),
        (saying(*said()[:2]), {"2xx": 1}),
        (saying(), {"5xx": 1}),
        (saying(error=ArithmeticError()), {"5xx": 1}),
        (saying(*said()[:2], error=ArithmeticError()), {"2xx": 1}),
        (saying(*said(), error=ArithmeticError()), {"2xx": 1}),
    ],
    ids=[
        "answered",
        "status",
        "no status",
        "too much",
        "no end",
        "nothing",
        "raised",
        "raised in the middle",
        "raised behind it",
    ],
)
async def test_each_request_counts_once(app: Any, found: dict[str, int]) -> None:
    assert counts(await ask(app)) == found


@pytest.mark.asyncio
async def test_websockets_are_counted_apart() -> None:
    seen: list[tuple[int, int]] = []
    figures = RequestFigures()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((figures.websockets, figures.open_websockets))
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        await counted(app, figures, set())({"type": "websocket"}, None, ignore)
    assert seen == [(1, 1)]
    assert (figures.websockets, figures.open_websockets) == (1, 0)
    assert counts(figures) == {}


# What of uvicorn is used that its documentation does not promise: after an update of uvicorn that
# makes one of these fail, see where ``asyncpool/cluster/_servers`` uses it.


# By the protocol: what is read or called of it, besides what asyncio calls.
OF_BOTH = (
    "connections",
    "cycle",
    "flow",
    "on_response_complete",
    "scope",
    "shutdown",
    "timeout_keep_alive_task",
    "transport",
)
OF_CYCLES = (
    "body",
    "disconnected",
    "flow",
    "message_event",
    "more_body",
    "response_complete",
    "response_started",
    "transport",
)
PARTS = {
    "h11": (*OF_BOTH, "conn", "handle_events"),
    "httptools": (
        *OF_BOTH,
        "headers",
        "on_headers_complete",
        "on_message_begin",
        "parser",
        "pipeline",
        "send_400_response",
        "_should_upgrade",
        "_unsupported_upgrade_warning",
        "url",
    ),
}
LATER = {"url"}  # made by the first request


async def app(scope: Any, receive: Any, send: Any) -> None: ...


def loaded(http: Any) -> uvicorn.Config:
    config = uvicorn.Config(app, http=http, loop="none", log_config=None)
    config.load()
    return config


@pytest.mark.asyncio
@pytest.mark.parametrize("http", PARTS)
async def test_protocols_have_the_parts_that_are_used(http: Any) -> None:
    config = loaded(http)
    kind: Any = config.http_protocol_class
    make = bounded(kind, most=1, within=1.0, figures=RequestFigures(), threaded=True)
    protocol = make(
        config=config,
        server_state=ServerState(),
        app_state={},
        _loop=asyncio.get_running_loop(),
    )
    missing = [name for name in PARTS[http] if not hasattr(protocol, name)]
    assert set(missing) <= LATER, f"uvicorn {uvicorn.__version__} has no {missing}"
    assert protocol.head_until is None
    made = inspect.getmodule(kind).RequestResponseCycle.__init__.__code__.co_names  # type: ignore[union-attr]
    assert set(OF_CYCLES) <= set(made), f"uvicorn {uvicorn.__version__}: {made}"
    # What answers the requests beyond limit_concurrency.
    assert callable(inspect.getmodule(kind).service_unavailable)  # type: ignore[union-attr]


@pytest.mark.asyncio
async def test_servers_have_them() -> None:
    server = uvicorn.Server(loaded("h11"))
    state = vars(server.server_state)
    flow = FlowControl(None)  # type: ignore[arg-type]
    assert {"read_paused", "write_paused"} <= vars(flow).keys()
    assert {"connections", "default_headers", "tasks", "total_requests"} <= state.keys()
    assert list(inspect.signature(server.on_tick).parameters) == ["counter"]
    lifespan = LifespanOn(loaded("h11"))
    parts = {"logger", "receive_queue", "should_exit", "state"}
    assert parts <= vars(lifespan).keys()
