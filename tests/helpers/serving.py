"""``asyncpool serve`` as a user runs it, and what a client of it does."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.helpers.command import Done, command_environment
from tests.helpers.patience import PATIENCE

__all__ = ["APP", "Server", "until", "write_app"]

# An application with a version; a request to /slow ends when there is a file "go".
APP = """
    import asyncio, os, pathlib

    VERSION = "one"

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        if scope["path"] == "/slow":
            pathlib.Path("begun").touch()
            while not pathlib.Path("go").exists():
                await asyncio.sleep(0.005)
        text = f"{VERSION} {os.getpid()}".encode()
        headers = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})
"""


def write_app(folder: Path, source: str = APP, name: str = "app") -> None:
    """Write an application for the command to find."""
    # Whole, or not at all: somebody may be looking.
    (folder / "new").write_text(textwrap.dedent(source))
    (folder / "new").rename(folder / f"{name}.py")


def until(condition: Callable[[], Any], what: str) -> Any:
    """Return what a condition says, once that is true."""
    give_up_at = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"never: {what}"
        time.sleep(0.005)
    return found


class Server:
    """One that runs in *folder*, with *before* in front of the command; it ends with its context."""

    def __init__(
        self,
        folder: Path,
        *args: str,
        env: dict[str, str] | None = None,
        before: Sequence[str] = (),
        fds: Sequence[int] = (),
    ) -> None:
        self.folder = folder
        # The paths of sockets must be short, and those of tests are not.
        self._runtime = tempfile.TemporaryDirectory()
        self.env = {
            **command_environment(),
            "XDG_RUNTIME_DIR": self._runtime.name,
            # A file that is written twice within a second may look the same.
            "PYTHONDONTWRITEBYTECODE": "1",
            **(env or {}),
        }
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "asyncpool", "serve", *args],
                cwd=folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=fds,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._runtime.cleanup()
        if error is not None:
            sys.stderr.write(self.log)

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text()

    def says(self, text: str, times: int = 1) -> Self:
        """Wait until it has printed a text so many times."""

        def said() -> bool:
            ended = self.process.poll() is not None
            found = self.log.count(text) >= times
            assert found or not ended, f"it has ended: {self.log}"
            return found

        until(said, f"{text!r} is printed")
        return self

    def up(self) -> Self:
        """Wait until it serves."""
        return self.says("Ctrl-C drains")

    def whole(self) -> dict[str, Any]:
        """Wait until all of its workers are ready; return its status."""
        self.up()

        def status() -> dict[str, Any] | None:
            found = self.status()
            ready = [slot["ready"] for slot in found["slots"]]
            return found if ready == [True] * found["workers"] else None

        status_then: dict[str, Any] = until(status, "all workers are ready")
        return status_then

    @property
    def port(self) -> int:
        """Its first port."""
        self.up()
        found = re.search(r"(?:http|tcp)://127\.0\.0\.1:(\d+)", self.log)
        assert found is not None
        return int(found[1])

    def begin(self, path: str = "/") -> http.client.HTTPConnection:
        """Send a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, PATIENCE)
        connection.request("GET", path)
        return connection

    def get(self, path: str = "/") -> str:
        """Return the answer to a request."""
        connection = self.begin(path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def command(self, *args: str) -> Done:
        """Run another command of its user."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "asyncpool", *args],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        # A worker's, which some show, is indented.
        assert "\nTraceback" not in f"\n{done.stderr}"
        return Done(done.returncode, done.stdout, done.stderr)

    def status(self) -> dict[str, Any]:
        """Return what ``asyncpool status`` says."""
        done = self.command("status", "--json")
        assert done.code == 0, done.err
        status: dict[str, Any] = json.loads(done.out)
        return status

    def end(self, number: int = 0) -> int:
        """Wait for its end, after a signal if there is one; return its exit code."""
        if number:
            self.signal(number)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill the master, and wait until its workers have noticed and are gone."""
        workers = psutil.Process(self.process.pid).children(recursive=True)
        assert self.end(signal.SIGKILL) == -signal.SIGKILL
        _, alive = psutil.wait_procs(workers, PATIENCE)
        assert not alive
