"""The thumbnails of the examples behind ``asyncpool serve``, and a crowd of clients."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.helpers.command import command_environment
from tests.helpers.images import image
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.web import EXAMPLES, Service

__all__ = [
    "CLIENTS",
    "WORKERS",
    "Crowd",
    "ServedService",
    "crowd_of",
    "run_served",
]

WORKERS, CLIENTS = 2, 4

GOOD = image("JPEG")

# One worker in the pool of each; a slow machine is no reason to give an image up.
SETTINGS = {"THUMBNAILS_WORKERS": "1", "THUMBNAILS_TIMEOUT": "600"}


class ServedService(Service):
    """The thumbnails, served by several workers; its code is a copy, which may change."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        folder: Path,
        client: httpx.AsyncClient,
    ) -> None:
        super().__init__(process, folder / "service.log", client)
        self.folder = folder
        self.code = folder / "thumbnails" / "app.py"

    async def command(self, name: str, *options: str) -> tuple[int, str]:
        """Run a command on it, such as ``reload``; return its status and what it says."""
        process = await start(self.folder, name, *options, "--control", "./control")
        async with patience():
            out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, (out + err).decode()

    async def status(self) -> dict[str, Any]:
        code, text = await self.command("status", "--json")
        assert code == 0, text
        status: dict[str, Any] = json.loads(text)
        return status

    async def workers(self) -> set[int]:
        """Return the processes that serve."""
        slots = (await self.status())["slots"]
        return {slot["pid"] for slot in slots if slot["ready"]}

    async def until_all_ready(self, *, without: int = 0) -> None:
        """Wait until it has all its workers, none of which is that process."""
        async with patience():
            while len(await self.workers() - {without}) < WORKERS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # it has no event for us

    async def stop(self) -> None:
        """Stop it as a service manager would, and check that it does that well."""
        self.process.terminate()
        async with patience():
            status = await self.process.wait()
        assert status == 0, self.log.read_text()


async def start(folder: Path, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "asyncpool", *words),
        cwd=folder,
        env=command_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def run_served(folder: Path, *, loop: str) -> AsyncIterator[ServedService]:
    """Serve a copy of the example on a free port; stop it in the end."""
    shutil.copytree(EXAMPLES / "thumbnails", folder / "thumbnails")
    with (folder / "service.log").open("w") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "asyncpool", "serve", "thumbnails.app:app"),
            *("--bind", "127.0.0.1:0", "--workers", str(WORKERS), "--loop", loop),
            *("--drain-timeout", str(PATIENCE), "--control", "./control"),
            cwd=folder,
            env=command_environment() | SETTINGS,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            service = ServedService(process, folder, client)
            client.base_url = httpx.URL(await service.said(r"(http://\S+:\d+)"))
            await service.until_all_ready()
            yield service
            if process.returncode is None:
                await service.stop()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Crowd:
    """Clients that ask for one thumbnail after the other, until they are told to leave.

    Attributes:
        statuses: Those of all answers.
        lost: Requests that were sent, and got none.
    """

    def __init__(self, service: Service) -> None:
        self.statuses: list[int] = []
        self.lost: list[httpx.TransportError] = []
        self._service = service
        self._leave = False
        self._news = asyncio.Condition()

    async def more(self, count: int) -> None:
        """Wait until so many more have been answered."""
        enough = len(self.statuses) + count
        async with patience(), self._news:
            await self._news.wait_for(lambda: len(self.statuses) >= enough)

    async def ask(self) -> None:
        while not self._leave:
            try:
                answer = await self._service.thumbnail(GOOD, "small")
            except httpx.TransportError as error:
                self.lost.append(error)
            else:
                async with self._news:
                    self.statuses.append(answer.status_code)
                    self._news.notify_all()

    def leave(self) -> None:
        self._leave = True


@asynccontextmanager
async def crowd_of(service: Service) -> AsyncIterator[Crowd]:
    """Have :data:`CLIENTS` ask while the body runs."""
    crowd = Crowd(service)
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(crowd.ask())
        await crowd.more(CLIENTS)
        yield crowd
        crowd.leave()
