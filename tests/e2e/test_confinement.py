"""Workers in a sandbox: what they have, and what they are refused."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from asyncpool import Pool, Sandbox
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.sandboxes import needs_sandbox

pytestmark = [pytest.mark.asyncio, needs_sandbox]

ME = "tests.e2e.test_confinement"


def read(path: str) -> str:
    return Path(path).read_text()


def write(path: str) -> str:
    Path(path).write_text("x")
    return str(Path(path).absolute())


def environment() -> tuple[dict[str, str], str]:
    return dict(os.environ), str(Path.cwd())


def connect(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def run() -> int:
    return subprocess.run(["/bin/true"], check=False).returncode


@BOTH_LOOPS
async def test_a_parser_has_its_arguments_and_a_private_folder() -> None:
    async with Pool(1, preload=[ME], sandbox=Sandbox.parser()) as pool:
        assert await pool.submit(len, bytes(4 << 20)) == 4 << 20
        assert len(await pool.submit(bytes, 4 << 20)) == 4 << 20
        variables, folder = await pool.submit(environment)
        assert variables == {"HOME": folder, "TMPDIR": folder}
        assert await pool.submit(write, "here") == f"{folder}/here"
        for path in ("/etc/passwd", __file__, "/proc/self/environ"):
            with pytest.raises(PermissionError):
                await pool.submit(read, path)
        with pytest.raises(PermissionError):
            await pool.submit(write, "/tmp/there")
        with pytest.raises(PermissionError):
            await pool.submit(connect, 9)
        with pytest.raises(PermissionError):
            await pool.submit(run)
    assert not Path(folder).parent.exists(), "it goes with the pool"
