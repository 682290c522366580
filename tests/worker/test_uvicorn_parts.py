"""What of uvicorn is used that its documentation does not promise.

If one of these fails after an update of uvicorn, that part has moved: see where
``asyncpool/cluster/_servers`` uses it.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import uvicorn
from uvicorn.lifespan.on import LifespanOn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from asyncpool._core.figures.request_figures import RequestFigures
from asyncpool.cluster._servers.uvicorn_parts import _KNOWN, bounded

pytestmark = pytest.mark.asyncio

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


@pytest.mark.parametrize("http", PARTS)
async def test_protocols_have_the_parts_that_are_used(http: Any) -> None:
    config = loaded(http)
    kind: Any = config.http_protocol_class
    assert f"{kind.__module__}.{kind.__name__}" in _KNOWN
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


async def test_servers_have_them() -> None:
    server = uvicorn.Server(loaded("h11"))
    state = vars(server.server_state)
    flow = FlowControl(None)  # type: ignore[arg-type]
    assert {"read_paused", "write_paused"} <= vars(flow).keys()
    assert {"connections", "default_headers", "tasks", "total_requests"} <= state.keys()
    assert list(inspect.signature(server.on_tick).parameters) == ["counter"]
    lifespan = LifespanOn(loaded("h11"))
    assert {"logger", "should_exit", "state"} <= vars(lifespan).keys()
