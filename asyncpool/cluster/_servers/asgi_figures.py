"""What a worker counts of the requests to its ASGI application, and how it reports that.

A request that does nothing takes uvicorn some 60 us, and whatever is counted here comes on top
of that.  So nothing is made for a request but a function, and its coroutine.
"""

from __future__ import annotations

import asyncio
import sys
from time import monotonic

from asyncpool._core.figures.request_figures import RequestFigures, class_of

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Any

    import uvicorn
    from uvicorn.server import ServerState

    from asyncpool._worker.cluster.worker import Worker

# Seconds between two reports, and between two looks at the event loop.
_INTERVAL = 1.0

_SERVER_ERROR = 500

# The status of a response that has been counted.
_OVER = -1


def count_in(config: uvicorn.Config, figures: RequestFigures) -> None:
    """Have a server count, whose lifespan has begun."""
    config.loaded_app = counted(config.loaded_app, figures)
    if config.limit_concurrency is not None:
        _count_refusals(config.http_protocol_class, figures)


def counted(app: Any, figures: RequestFigures) -> Any:
    """Return an application that counts what *app* answers.

    A response counts when its last piece is handed to the server, also if the application
    goes on.  If the application ends before that, with an error or without one, it counts with the
    status that it has, or as 500, with which the server answers then.
    """
    by_status = {status: figures.responses[class_of(status)] for status in range(600)}
    others = figures.responses[class_of(None)]

    async def count(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await _count_websocket(app, figures, scope, receive, send)
            return
        status: int = 0

        def tell(message: Any) -> Any:
            nonlocal status
            if status == 0:
                status = message.get("status", 0)
            elif status != _OVER and not message.get("more_body"):
                took = (monotonic() - began) * 1e6
                # As Durations.note() does, whose call would take as long again.
                durations = by_status.get(status, others)
                durations.counts[int(took).bit_length()] += 1
                durations.total += took
                status = _OVER
            return send(message)

        began = monotonic()
        try:
            await app(scope, receive, tell)
        finally:
            # What is open when figures end is counted as cut off.
            if status != _OVER and not figures.ended:  # pyright: ignore[reportUnnecessaryComparison] - tell() changes it
                durations = by_status.get(status or _SERVER_ERROR, others)
                durations.note(monotonic() - began)

    return count


async def _count_websocket(
    app: Any, figures: RequestFigures, scope: Any, receive: Any, send: Any
) -> None:
    figures.websockets += 1
    figures.open_websockets += 1
    try:
        await app(scope, receive, send)
    finally:
        if not figures.ended:
            figures.open_websockets -= 1


def _count_refusals(protocol_class: Any, figures: RequestFigures) -> None:
    """Count the requests that uvicorn refuses for its ``limit_concurrency``.

    They never get to the application, but to one of uvicorn's own.
    """
    module: Any = sys.modules[protocol_class.__module__]
    refuse = module.service_unavailable

    async def count(scope: Any, receive: Any, send: Any) -> None:
        figures.refused += 1
        await refuse(scope, receive, send)

    module.service_unavailable = count


class Reports:
    """Tells the master of a worker once a second what was counted, if there is anything new.

    Args:
        worker: The worker.
        state: What its server knows of its requests.
        figures: What it counts.
    """

    def __init__(
        self, worker: Worker, state: ServerState, figures: RequestFigures
    ) -> None:
        self._worker = worker
        self._state = state
        self._figures = figures
        self._told = figures.pack_requests()
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name="asyncpool server reports"
        )

    def end(self) -> None:
        """Report for the last time, with what is open as cut off."""
        self._task.cancel()
        self._count_open()
        self._figures.end()
        self._tell()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _INTERVAL
            await asyncio.sleep(_INTERVAL)
            self._count_open()
            self._tell()
            # It goes with the next report, as an idle worker has nothing else to tell.
            self._figures.lag.note(loop.time() - due)

    def _tell(self) -> None:
        """Report what is new."""
        requests = self._figures.pack_requests()
        if requests != self._told:
            self._told = requests
            report = requests + self._figures.lag.pack()
            self._worker._server_worker.report(report)  # noqa: SLF001 - no user calls it

    def _count_open(self) -> None:
        # uvicorn has a task for each, so nothing has to be counted when one begins and ends.
        figures = self._figures
        figures.open = max(0, len(self._state.tasks) - figures.open_websockets)
