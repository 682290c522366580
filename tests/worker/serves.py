"""What workers serve in tests."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from typing import TYPE_CHECKING, Any

from asyncpool._cluster import worker as module
from tests.helpers import jobs
from tests.helpers.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpool.cluster import Connection, Worker

not_a_function = 3


async def fail_early(worker: Worker) -> None:
    raise LookupError(f"no database for {worker.id}")


async def leave_early(_: Worker) -> None:
    pass


async def obey(worker: Worker) -> None:
    """Do what messages say, ``(order, argument)``, and answer with what comes of it."""
    await Obedient(worker).run()


class Patient:
    """Serves something else, which may clean up for as long as a slow machine takes."""

    def __init__(self, target: Callable[[Worker], Awaitable[object]]) -> None:
        self._target = target

    async def __call__(self, worker: Worker) -> None:
        from asyncpool.cluster._servers import uvicorn_parts

        module._CLEAN_UP = uvicorn_parts._CLEAN_UP = PATIENCE
        await self._target(worker)


class Obedient:
    """Each of its public methods is an order."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._connections = worker.connections()
        self._kept: list[Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self._worker.ready()
        async for order, argument in self._worker.messages():
            if order == "return":
                return
            result = await getattr(self, order)(argument)
            if result is not None:
                await self._worker.send(result)
        await self._worker.wait_draining()

    async def take(self, count: int) -> str:
        for _ in range(count):
            self._kept.append(await anext(self._connections))
        return "taken"

    async def close(self, _: None) -> None:
        connection = self._kept.pop()
        connection.close()
        connection.close()
        connection.socket.close()

    async def make_transport(self, _: None) -> None:
        connection = self._kept.pop()
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_accepted_socket(
            asyncio.Protocol, connection.detach()
        )
        assert type(protocol) is asyncio.Protocol
        connection.close()  # not its own any more
        assert not transport.is_closing()
        transport.close()

    async def detach(self, _: None) -> None:
        os.close(self._kept.pop().detach().detach())

    async def copy(self, _: None) -> str:
        """Close a copy and a file that is not the last one."""
        connection = self._kept[-1]
        connection.socket.dup().close()
        connection.socket.makefile("rb").close()
        return str(connection.address)

    async def close_but_keep_a_file(self, _: None) -> None:
        sock = self._kept.pop().detach()
        with sock.makefile("rb"):
            sock.close()
            for _turn in range(3):  # what counts is told in the next turn
                await asyncio.sleep(0)
            await self._worker.send("kept")

    async def drop(self, _: None) -> None:
        self._kept.clear()
        gc.collect()

    async def drop_elsewhere(self, _: None) -> None:
        def collect() -> None:
            self._kept.clear()
            gc.collect()

        await asyncio.to_thread(collect)

    async def count(self, _: None) -> None:
        self._worker.opened()
        self._worker.closed()

    async def exit(self, status: int) -> None:
        sys.exit(status)

    async def block(self, gate: str) -> str:
        """Hold up the loop until somebody lets it go on."""
        return jobs.wait_at(gate, "blocked")

    async def be_busy(self, _: None) -> str:
        """Have the loop never wait for anything from now on."""

        async def turn() -> None:
            while True:  # noqa: ASYNC110 - it waits for nothing
                await asyncio.sleep(0)

        self._tasks.add(asyncio.create_task(turn()))
        return "busy"

    async def say(self, value: Any) -> Any:
        return value
