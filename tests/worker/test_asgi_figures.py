"""What is counted of the requests to an ASGI application, whatever that does."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from asyncpool._core.figures.request_figures import CLASSES, RequestFigures
from asyncpool.cluster._servers.uvicorn_parts import counted

pytestmark = pytest.mark.asyncio


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
        await counted(app, figures, set())({"type": "http"}, None, ignore)
    return figures


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


async def test_all_messages_get_to_the_server_and_errors_to_it_too() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    app = counted(saying(*said(), error=ArithmeticError("no")), RequestFigures(), set())
    with pytest.raises(ArithmeticError, match="no"):
        await app({"type": "http"}, None, send)
    assert sent == said()


async def test_a_response_counts_although_the_application_goes_on() -> None:
    figures, go = RequestFigures(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in said():
            await send(message)
        await go.wait()

    request = asyncio.create_task(
        counted(app, figures, set())({"type": "http"}, None, ignore)
    )
    while not counts(figures):  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0)
    assert not request.done()
    go.set()
    await request
    assert counts(figures) == {"2xx": 1}


async def test_what_is_cut_off_is_no_response() -> None:
    figures = RequestFigures()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    request = asyncio.create_task(
        counted(app, figures, set())({"type": "http"}, None, ignore)
    )
    await asyncio.sleep(0)
    figures.end()
    request.cancel()
    await asyncio.wait({request})
    assert request.cancelled()
    assert counts(figures) == {}


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
