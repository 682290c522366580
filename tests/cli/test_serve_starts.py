"""Where ``asyncpool serve`` and ``agent`` start: behind a symbolic link, without a stderr."""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from asyncpool import connect
from tests.helpers.command import command_environment
from tests.helpers.gate import short_folder
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.serving import Server, until, write_app

WHERE = """
    import os, pathlib

    RELEASE = pathlib.Path("release").read_text()

    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200})
            body = f"{RELEASE} {pathlib.Path(os.getcwd()).name}".encode()
            await send({"type": "http.response.body", "body": body})
"""
NO_STDERR = ["sh", "-c", 'exec "$@" 2>&-', "sh"]


def test_a_reload_serves_the_release_that_the_link_leads_to_now(tmp_path: Path) -> None:
    link = tmp_path / "current"
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "release").write_text(release)
        write_app(tmp_path / release, WHERE)
    link.symlink_to("one")
    bind = ("app:app", "--bind", "127.0.0.1:0", "--workers", "1")
    with Server(link, *bind, env={"PWD": str(link)}) as server:
        port = server.port
        assert server.get() == "one one"
        (tmp_path / "log").symlink_to("two")
        (tmp_path / "log").rename(link)
        os.rename(tmp_path / "one" / "log", tmp_path / "two" / "log")
        shutil.rmtree(tmp_path / "one")
        server.signal(signal.SIGHUP)
        server.says("reloaded: 1 worker is new")
        assert server.get() == "two two"
        assert server.port == port
        assert server.end(signal.SIGTERM) == 0


def test_a_server_works_without_stderr(tmp_path: Path) -> None:
    (tmp_path / "release").write_text("one")
    write_app(tmp_path, WHERE)
    bind = ("app:app", "--bind", "127.0.0.1:0", "--workers", "1")
    with Server(tmp_path, *bind, before=NO_STDERR) as server:
        until(lambda: server.command("status").code == 0, "it serves")
        [address] = server.status()["addresses"]
        port = int(address.rpartition(":")[2])
        client = http.client.HTTPConnection("127.0.0.1", port, PATIENCE)
        client.request("GET", "/")
        assert client.getresponse().read().startswith(b"one ")
        client.close()
        assert server.end(signal.SIGTERM) == 0


def test_an_agent_works_without_stderr() -> None:
    async def use(address: str) -> int:
        async with patience(), connect(address) as pool:
            return await pool.submit(pow, 2, 5)

    with short_folder() as folder:
        address = f"unix:{folder}/pool.sock"
        command = [sys.executable, "-m", "asyncpool", "agent", "--bind", address]
        env = {**command_environment(), "XDG_RUNTIME_DIR": str(folder)}
        with subprocess.Popen([*NO_STDERR, *command], cwd=folder, env=env) as agent:
            until((folder / "pool.sock").exists, "it shares its pool")
            assert asyncio.run(use(address)) == 32
            agent.terminate()
            assert agent.wait(PATIENCE) == 0
