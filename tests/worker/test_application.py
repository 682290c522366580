"""What is taken for an application, and what is refused before it replaces one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flask
import pytest
from aiohttp import web
from starlette.applications import Starlette

from asyncpool.cluster._servers.asgi import (
    asgi_application,
    asgi_version,
    load_environment,
    wsgi_application,
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
    assert asgi_application(app, "app:app", factory=False) is app


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
    assert asgi_application(make_asgi, "app:make", factory=True) is asgi3
    assert wsgi_application(make_wsgi, "app:make", factory=True) is wsgi
    assert caplog.messages == []
    assert asgi_application(make_asgi, "app:make", factory=False) is asgi3
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
        (
            web.Application(),
            False,
            (
                "app:app is no ASGI application: aiohttp.web_app.Application cannot be called "
                "with (scope, receive, send)"
            ),
        ),
        (
            make_nothing,
            True,
            "app:app has made no application: NoneType cannot be called",
        ),
        (
            takes_four,
            False,
            (
                "app:app is no ASGI application: function cannot be called with (scope, "
                "receive, send)"
            ),
        ),
    ],
    ids=["wsgi", "flask", "dict", "aiohttp", "factory of nothing", "four"],
)
def test_what_is_none_is_refused(app: Any, factory: bool, text: str) -> None:  # noqa: FBT001
    with pytest.raises(TypeError) as caught:
        asgi_application(app, "app:app", factory=factory)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("app", "text"),
    [
        (
            asgi3,
            "app:app is an ASGI application, not WSGI: serve it with --interface asgi",
        ),
        (
            needs,
            (
                "app:app is no WSGI application: function cannot be called with (environ, "
                "start_response)"
            ),
        ),
    ],
)
def test_nor_is_it_wsgi(app: Callable[..., Any], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        wsgi_application(app, "app:app", factory=False)
    assert str(caught.value) == text


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
