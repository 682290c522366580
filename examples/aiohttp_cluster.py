"""An aiohttp application whose workers share a port and are replaced while it serves.

    pip install asyncpool-supervised aiohttp
    python examples/aiohttp_cluster.py

Ctrl-C ends it; a SIGHUP to the process that it names replaces its workers, one after the
other.
"""

from __future__ import annotations

import asyncio
import os
import sys

from aiohttp import web

from asyncpool.cluster import Cluster, Worker

ADDRESS = "127.0.0.1:8000"

# How long a client may take for a last request on a connection, in seconds.
PATIENCE = 1.0


async def who(_: web.Request) -> web.Response:
    """Tell which process has answered."""
    return web.json_response({"pid": os.getpid()})


def make_app() -> web.Application:
    """Return the application; nothing in it knows of the cluster."""
    app = web.Application()
    app.router.add_get("/", who)
    return app


async def serve(worker: Worker) -> None:
    """Serve in a worker, until it has drained."""
    app = make_app()

    async def leave_politely(_: web.Request, response: web.StreamResponse) -> None:
        if worker.is_draining:
            # The client opens another connection, which goes to another worker.  If
            # this one were just closed, a request on its way would be lost.
            response.headers["Connection"] = "close"
            response.force_close()

    app.on_response_prepare.append(leave_politely)
    runner = web.AppRunner(app, shutdown_timeout=worker.drain_timeout)
    await runner.setup()
    assert runner.server is not None
    worker.ready()

    loop = asyncio.get_running_loop()
    async for connection in worker.connections():
        await loop.connect_accepted_socket(runner.server, connection.detach())

    end = loop.time() + min(PATIENCE, worker.drain_timeout / 2)
    while runner.server.connections and loop.time() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await runner.cleanup()


async def main() -> int:
    """Run the cluster until a signal ends it."""
    cluster = Cluster("aiohttp_cluster:serve", bind=ADDRESS, workers=4)
    print(f"serving http://{ADDRESS}/ from process {os.getpid()}", flush=True)
    return await cluster.run()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
