"""The example that runs generated code: over HTTP and WebSocket, of any cell."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import websockets

from tests.helpers.patience import patience
from tests.helpers.sandboxes import needs_sandbox
from tests.helpers.web import INTERPRETER, Service, run_service

pytestmark = [pytest.mark.asyncio, needs_sandbox]

# Each prints ESCAPED if it has got out; of sandboxes as such there is more in test_escapes.py.
ESCAPES = {
    "a file of the system": "open('/etc/passwd').read(); print('ESCAPED')",
    "the files of another session": (
        "import os\nfor name in os.listdir('..'): print('ESCAPED', name)"
    ),
    "a link": "import os\nos.symlink('/etc/passwd', 'p'); open('p').read(); print('ESCAPED')",
    "the environment of the service": (
        "import os\n"
        "text = open(f'/proc/{os.getppid()}/environ').read(); print('ESCAPED')"
    ),
    "its own environment": "import os\nassert 'INTERPRETER_SECRET' in os.environ; print('ESCAPED')",
    "a connection": (
        "import socket\nsocket.create_connection(('127.0.0.1', PORT)); print('ESCAPED')"
    ),
    "a program": "import subprocess\nsubprocess.run(['true']); print('ESCAPED')",
}

# Each may cost its own session, and no other one.
BOMBS = {
    "forks": "import os\nwhile True:\n    os.fork()",
    "threads": (
        "import threading\n"
        "while True:\n    threading.Thread(target=threading.Event().wait).start()"
    ),
    "10 GB": "held = []\nfor _ in range(10_000): held.append(b'x' * 1_000_000)",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "a null pointer": "import ctypes\nctypes.string_at(0)",
    "an exit": "import os\nos._exit(0)",
    "a broken answer": (
        "import sys\n"
        "cells = sys.modules['code_interpreter.cells']\n"
        "cells.run_cell.__code__ = (lambda source: {'pictures': [10**9]}).__code__"
    ),
}


class Client:
    """One session, over HTTP."""

    def __init__(self, service: Service, name: str) -> None:
        self.http = service.client
        self.path = f"/sessions/{name}"

    async def cell(self, source: str) -> dict[str, Any]:
        answer = await self.http.post(f"{self.path}/cells", content=source)
        found: dict[str, Any] = answer.json()
        return {"status": answer.status_code, **found}

    async def value(self, source: str) -> str | None:
        found = await self.cell(source)
        assert found["error"] is None, found
        return str(found["value"])


async def begin(service: Service) -> Client:
    answer = await service.client.post("/sessions")
    assert answer.status_code == 201, answer.text
    return Client(service, answer.json()["session"])


@asynccontextmanager
async def interpreter(folder: Path, **settings: object) -> AsyncIterator[Service]:
    async with run_service(folder, INTERPRETER, loop="asyncio", **settings) as service:
        yield service


async def test_cells_find_what_those_before_have_left(tmp_path: Path) -> None:
    async with interpreter(tmp_path) as service:
        one, other = await begin(service), await begin(service)
        shown = await one.cell("x = 20\nprint('twenty')\nx + 1")
        assert shown == {
            "status": 200,
            "output": "twenty\n",
            "error": None,
            "value": "21",
            "table": None,
            "pictures": [],
        }
        assert await one.value("x * 2") == "40"
        failed = await other.cell("x")
        assert failed["error"].startswith("Traceback (most recent call last):\n")
        assert failed["error"].endswith("NameError: name 'x' is not defined\n")
        assert "cells.py" not in failed["error"]

        rows = await one.cell("[{'city': 'Oslo', 'people': 7}, {'city': 'Rome'}]")
        assert rows["table"] == {
            "columns": ["city", "people"],
            "rows": [["Oslo", "7"], ["Rome", ""]],
            "total": 2,
        }
        drawn = await one.cell("import matplotlib.pyplot as p\np.plot([1, 2])\nNone")
        (picture,) = drawn["pictures"]
        assert base64.b64decode(picture).startswith(b"\x89PNG")
        assert (await one.cell("None"))["pictures"] == []
        half = await one.cell("p.plot([1, 2])\n1 / 0")
        assert (half["value"], len(half["pictures"])) == (None, 1)
        assert (await one.cell("None"))["pictures"] == []
        await _exchange_files(one, other)
        assert (await service.health())["sessions"] == 2
        assert (await one.http.delete(one.path)).status_code == 204
        await service.until(lambda health: health["sessions"] == 1)
        gone = await one.cell("x")
        assert gone == {"status": 410, "error": "there is no such session"}
        assert await other.value("1 + 1") == "2"


async def _exchange_files(one: Client, other: Client) -> None:
    data = bytes(range(256)) * 1000
    put = await one.http.put(f"{one.path}/files/data.bin", content=data)
    assert put.status_code == 204
    assert await one.value("len(open('data.bin', 'rb').read())") == "256000"
    await one.cell("open('made', 'w').write('by a cell')")
    assert (await one.http.get(f"{one.path}/files/made")).text == "by a cell"
    missing = await other.http.get(f"{other.path}/files/made")
    assert missing.status_code == 404
    await one.cell("import os\nos.symlink('/etc/passwd', 'link')")
    stolen = await one.http.get(f"{one.path}/files/link")
    assert "root" not in stolen.text
    assert stolen.status_code >= 400


async def test_a_connection_has_a_session_while_it_lasts(tmp_path: Path) -> None:
    async with interpreter(tmp_path) as service:
        url = str(service.client.base_url.copy_with(scheme="ws", path="/converse"))
        async with patience(), websockets.connect(url) as socket:
            for source, value in (("x = 1\nx", "1"), ("x + 1", "2")):
                await socket.send(source)
                assert json.loads(await socket.recv())["value"] == value
            await socket.send("import os\nos._exit(1)")
            last = json.loads(await socket.recv())
            assert last["gone"]
            assert last["error"].startswith("the session has ended: ")
            await socket.wait_closed()
        await service.until(lambda health: health["sessions"] == 0)


async def test_a_session_is_bounded(tmp_path: Path) -> None:
    async with interpreter(tmp_path, timeout=1.0, sessions=2, idle=3.0) as service:
        one, other = await begin(service), await begin(service)
        full = await service.client.post("/sessions")
        assert full.status_code == 503
        await one.cell("x = 5")
        endless = await one.cell("while True: pass")
        assert endless["error"] == "the cell was not done within 1 s"
        assert await one.value("x") == "5", (
            "it was interrupted, and its session goes on"
        )
        wordy = await one.cell("print('x' * 10_000_000)")
        assert len(wordy["output"]) < 70_000
        assert wordy["output"].endswith("more output than a cell may have ...")
        long = await one.cell("#" * 200_000)
        assert long["status"] == 413
        deaf = "sum(range(10**13))"  # C code, which no interrupt ends
        killed = await one.cell(deaf)
        assert killed["error"] == "the cell was not done within 1 s"
        assert (await one.cell("x"))["status"] == 410
        # Nobody uses the other one any more, which may have ended before.
        await service.until(lambda health: health["sessions"] == 0)
        assert (await other.cell("1"))["status"] == 410


async def test_no_cell_gets_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERPRETER_SECRET", "hidden")
    async with interpreter(tmp_path) as service:
        neighbour, session = await begin(service), await begin(service)
        await neighbour.cell("secret = 'mine'\nopen('secret', 'w').write(secret)")
        for what, source in ESCAPES.items():
            tried = await session.cell(source.replace("PORT", str(service.address[1])))
            if tried["status"] == 410:  # it has only hurt itself
                session = await begin(service)
                continue
            assert tried["error"] is not None, what
            assert "ESCAPED" not in tried["output"], what
        assert await neighbour.value("secret") == "'mine'"
        assert (await service.health())["sessions"] == 2


async def test_a_bomb_ends_its_own_session_at_the_most(tmp_path: Path) -> None:
    async with interpreter(tmp_path, timeout=3.0) as service:
        neighbour = await begin(service)
        await neighbour.cell("x = 1")
        for what, source in BOMBS.items():
            session = await begin(service)
            exploded, beside = await asyncio.gather(
                session.cell(source), neighbour.value("x")
            )
            assert exploded["status"] in {200, 410}, what
            assert exploded["error"] is not None or what == "a broken answer", what
            assert beside == "1", what
            await session.cell("1")  # of the broken one, whatever it is
            await session.http.delete(session.path)
        await service.until(lambda health: health["sessions"] == 1)


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.nightly)])
async def test_many_sessions_are_there_at_once(tmp_path: Path, count: int) -> None:
    async with interpreter(tmp_path) as service:
        sessions = await asyncio.gather(*(begin(service) for _ in range(count)))
        await asyncio.gather(
            *(each.cell(f"x = {n}") for n, each in enumerate(sessions))
        )
        found = await asyncio.gather(*(each.value("x") for each in sessions))
        assert found == [str(n) for n in range(count)]
        assert (await service.health())["sessions"] == count
