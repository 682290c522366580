"""A web service in a process of its own, and a client of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.helpers.patience import PATIENCE, patience
from tests.helpers.sandboxes import SANDBOXED

__all__ = ["EXAMPLES", "INTERPRETER", "Service", "run_service"]

EXAMPLES = Path(__file__).parents[2] / "examples"


class Example(NamedTuple):
    """One of the examples, and the prefix of its settings."""

    app: str
    prefix: str


THUMBNAILS = Example("thumbnails.app:app", "THUMBNAILS_")
INTERPRETER = Example("code_interpreter.app:app", "INTERPRETER_")


class Service:
    """One of the examples, served by uvicorn."""

    def __init__(
        self, process: asyncio.subprocess.Process, log: Path, client: httpx.AsyncClient
    ) -> None:
        self.process = process
        self.log = log
        self.client = client

    @property
    def address(self) -> tuple[str, int]:
        return self.client.base_url.host, self.client.base_url.port or 0

    async def thumbnail(self, image: bytes, size: str = "medium") -> httpx.Response:
        return await self.client.post(f"/thumbnails?size={size}", content=image)

    async def health(self) -> dict[str, Any]:
        health: dict[str, Any] = (await self.client.get("/health")).json()
        return health

    async def until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Ask for its health until that is so; return it."""
        async with patience():
            while not holds(health := await self.health()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # it has no event for us
        return health

    async def said(self, pattern: str) -> str:
        """Return what it has logged, when that is there."""
        async with patience():
            while not (found := re.search(pattern, self.log.read_text())):
                assert self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.01)
        return found[1] if found.re.groups else found[0]

    async def stop(self) -> None:
        """Stop it as a service manager would, and check that it does that well."""
        self.process.terminate()
        async with patience():
            status = await self.process.wait()
        log = self.log.read_text()
        assert status in {0, -signal.SIGTERM}, log
        assert "Application shutdown complete" in log
        assert "Traceback" not in log
        assert "Warning" not in log


@asynccontextmanager
async def run_service(
    folder: Path,
    example: Example = THUMBNAILS,
    /,
    *,
    loop: str,
    **settings: object,
) -> AsyncIterator[Service]:
    """Start the service with these *settings*, on a free port; stop it in the end."""
    log = folder / "service.log"
    names = {"THUMBNAILS_STRICT": str(SANDBOXED)}
    names |= {example.prefix + k.upper(): str(v) for k, v in settings.items()}
    with log.open("w") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "always", "-m", "uvicorn"),
            *("--app-dir", str(EXAMPLES), "--port", "0", "--loop", loop),
            example.app,
            env={**os.environ, **names},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            service = Service(process, log, client)
            client.base_url = httpx.URL(await service.said(r"running on (http://\S+)"))
            yield service
            if process.returncode is None:
                await service.stop()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
