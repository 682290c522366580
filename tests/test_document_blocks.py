"""Every block of Python in the documents runs, with what is around it in a reader's program."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from asyncpool import Cluster
from tests.helpers.clusters import all_ready
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.scripts import (
    DOCUMENTS,
    ROOT,
    finish,
    run_script,
    start_script,
)


class Around(NamedTuple):
    """What is around a block, which is in place of ``BLOCK``, and what is printed then.

    A coroutine ``main`` is run.
    """

    program: str
    prints: str


FRAGMENTS = {
    "def renew():": Around(
        """
        import asyncio, os
        import numpy
        import asyncpool

        BLOCK

        def throw():
            return float(generator.random())

        async def main():
            async with asyncpool.Pool(4, initializer=throw) as pool:
                print(len(set((await pool.broadcast(throw)).values())))
        """,
        "4\n",
    ),
    "async def thumbnail(data: bytes) -> bytes:": Around(
        """
        import asyncio, json, os, tempfile
        import asyncpool

        def shrink(data):
            return data[:3]

        BLOCK

        async def main():
            with tempfile.TemporaryDirectory() as folder:
                path = f"{folder}/jobs.sock"
                os.environ["ASYNCPOOL_SHARED_POOLS"] = json.dumps({"jobs": path})
                async with asyncpool.Pool(1) as pool, asyncpool.PoolServer(pool, path):
                    print(await thumbnail(b"abcdef"))
        """,
        "b'abc'\n",
    ),
    "sandbox = asyncpool.Sandbox.parser()": Around(
        """
        import asyncpool

        BLOCK
        print(sandbox.network, sandbox.processes, sandbox.imports)
        """,
        "False 0 False\n",
    ),
    'async with asyncpool.Pool(preload=["parsers"], max_queued=32) as pool:': Around(
        """
        import asyncio, pathlib, asyncpool

        pathlib.Path("parsers.py").touch()
        document = b"text"

        def extract_text(document):
            return document.decode()

        async def main():
            BLOCK
            print(text)
        """,
        "text\n",
    ),
    "box = asyncpool.Sandbox.parser()  # no files, no network, no other processes": Around(
        """
        import asyncio, pathlib, asyncpool

        pathlib.Path("images.py").write_text(
            "def decode(image: bytes) -> bytes:\\n    return image[:3]\\n"
        )
        import images

        upload = b"image"

        async def main():
            BLOCK
            print(thumbnail)
        """,
        "b'ima'\n",
    ),
    "with asyncpool.ProcessPoolExecutor(4) as executor:  # instead of concurrent.futures": Around(
        """
        import asyncpool

        measure, paths = len, ["a", "bb"]
        BLOCK
        print(sizes)
        """,
        "[1, 2]\n",
    ),
    "async for page in pool.stream(render_pages, path):": Around(
        """
        import asyncio, asyncpool

        def render_pages(path):
            yield from path

        class Response:
            async def write(self, page):
                print(page)

        async def main():
            path, response = ["one", "two"], Response()
            async with asyncpool.Pool(1) as pool:
                BLOCK
        """,
        "one\ntwo\n",
    ),
    "async def connect(dsn: str) -> None:": Around(
        """
        import asyncio, asyncpool

        Row, dsn = str, "database"

        class asyncpg:
            def __init__(self, dsn):
                self.dsn = dsn

            @classmethod
            async def create_pool(cls, dsn):
                return cls(dsn)

            async def fetchrow(self, query, key):
                return f"row {key} of {self.dsn}"

        async def main():
            BLOCK
            print(row)
        """,
        "row 42 of database\n",
    ),
    "def load_model(path: str) -> None:": Around(
        """
        import asyncio, asyncpool

        path, image = "cats", b"1"

        class torch:
            @staticmethod
            def load(path):
                return lambda image: f"{path}: {image}"

        async def main():
            BLOCK
            print(label)
        """,
        "cats: b'1'\n",
    ),
    "def share(queue: multiprocessing.Queue) -> None:": Around(
        """
        import asyncio, asyncpool, multiprocessing

        def put(value):
            asyncpool.worker_state().found.put(value)

        async def main():
            BLOCK
                await pool.submit(put, 3)
                print(found.get())
        """,
        "3\n",
    ),
    "async with pool.worker(timeout=5) as worker:": Around(
        """
        import asyncio, asyncpool

        path = "ledger"

        def open_book(path):
            asyncpool.worker_state().book = path

        def pages(first, last):
            for number in range(first, last):
                yield asyncpool.worker_state().book, number

        def save():
            print("saved", asyncpool.worker_state().book)

        async def main():
            async with asyncpool.Pool(2, worker_output="inherit") as pool:
                BLOCK
                print(page)
        """,
        "saved ledger\n('ledger', 19)\n",
    ),
    'await pool.broadcast(load_prices, "2026-11-22")': Around(
        """
        import asyncio, asyncpool

        def load_prices(day):
            asyncpool.worker_state().day = day

        def day():
            return asyncpool.worker_state().day

        async def main():
            async with asyncpool.Pool(2) as pool:
                BLOCK
                print(await pool.submit(day))
        """,
        "2026-11-22\n",
    ),
    "with asyncpool.ProcessPoolExecutor(4) as executor:": Around(
        """
        import asyncio, asyncpool

        def resize(image):
            return image[:1]

        async def main():
            loop, measure, paths, image = asyncio.get_running_loop(), len, ["a", "bb"], "xyz"
            BLOCK
            print(sizes, thumbnail)
        """,
        "[1, 2] x\n",
    ),
    "async def extend(receipt: str) -> None:  # one renewal of one lease": Around(
        """
        import asyncio, asyncpool
        from types import SimpleNamespace

        NoSuchMessage, SlowDown = LookupError, BlockingIOError
        extended = asyncio.Event()

        class queue:
            @staticmethod
            async def change_visibility(receipt, seconds):
                print(receipt, seconds)
                extended.set()

        def work(body):
            return body.upper()

        async def main():
            message = SimpleNamespace(receipt="one", body="text")
            BLOCK
                await extended.wait()
                print(await job)
        """,
        "one 300\nTEXT\n",
    ),
    "pool = asyncpool.Pool(2)": Around(
        """
        import asyncio, asyncpool

        async def main():
            BLOCK
            print(await pool.submit(len, "ab"))
            await pool.close()
        """,
        "2\n",
    ),
    "sizes = await pool.map(measure, paths)": Around(
        """
        import asyncio, asyncpool

        async def main():
            measure, paths = len, ["a", "bb"]
            async with asyncpool.Pool(2) as pool:
                BLOCK
            print(sizes)
        """,
        "[1, 2]\n",
    ),
    "from asyncpool.prometheus import register": Around(
        """
        import asyncio, asyncpool, prometheus_client

        def start_http_server(port):
            [family] = [
                it
                for it in prometheus_client.REGISTRY.collect()
                if it.name == "asyncpool_workers_wanted"
            ]
            print(port, family.samples[0].labels, family.samples[0].value)

        prometheus_client.start_http_server = start_http_server

        async def main():
            BLOCK
        """,
        "9100 {'pool': 'images'} 4\n",
    ),
    "profile = await pool.profile(5)": Around(
        """
        import asyncio, asyncpool, os

        def spin():
            while True:
                pass

        async def main():
            async with asyncpool.Pool(1, on_cancel="kill") as pool:
                job = pool.submit(spin)
                short = pool.profile
                pool.profile = lambda seconds: short(0.1)
                BLOCK
                job.cancel()
            print(os.path.exists("flame.html"))
        """,
        "True\n",
    ),
    "from asyncpool.cluster import Cluster, protocol, streams": Around("BLOCK", ""),
    "from asyncpool.cluster import Cluster, asgi": Around("BLOCK", ""),
    "import msgspec": Around("BLOCK", ""),
}

# Tested as wholes: below, in test_document_hooks.py and in test_documents.py.
PROGRAMS = {
    "import asyncio\nimport sys\nimport asyncpool\n": "docs/cluster.md",
    "import asyncio\n\nconversations = set()": "docs/cluster.md",
    "async def serve(worker):\n    servers = [": "docs/cluster.md",
    "# hooks.py\n": "docs/inside-a-job.md",
    'async with asyncpool.Pool(2, around="hooks:bind_names")': "docs/inside-a-job.md",
    "# sentry_hook.py\n": "docs/inside-a-job.md",
    "# otel_hook.py\n": "docs/inside-a-job.md",
    "# jobs.py\n": "docs/web-service.md",
    "# service.py\n": "docs/web-service.md",
    "# app.py\n": "docs/web-service.md",
    "# starlette_app.py\n": "docs/web-service.md",
}


def blocks(document: Path) -> list[str]:
    text = document.read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def block_of(document: str, begin: str) -> str:
    [found] = [each for each in blocks(ROOT / document) if each.startswith(begin)]
    return found


SHOWN = [(name, block) for name in DOCUMENTS for block in blocks(ROOT / name)]


def test_every_block_is_run() -> None:
    left = [
        f"{document}: {block}"
        for document, block in SHOWN
        if "# Output:\n" not in block  # test_documents.py runs what says what it prints
        and block.partition("\n")[0] not in FRAGMENTS
        and not any(
            block.startswith(begin) and document == where
            for begin, where in PROGRAMS.items()
        )
    ]
    assert left == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_block_hides(document: str) -> None:
    """One that is indented, or says nothing of its language, would not be found."""
    lines = re.findall(r"^ *```.*$", (ROOT / document).read_text(), re.MULTILINE)
    languages = {"console", "ini", "mermaid", "python", "sh", "text", "toml", "yaml"}
    begins, ends = lines[::2], lines[1::2]
    assert {line.removeprefix("```") for line in begins} <= languages
    assert {*ends} <= {"```"}


@pytest.mark.parametrize("first", FRAGMENTS)
def test_a_fragment_does_what_it_says(first: str, tmp_path: Path) -> None:
    [block] = [block for _, block in SHOWN if block.partition("\n")[0] == first]
    around = FRAGMENTS[first]
    program = re.sub(
        r"^( *)BLOCK$",
        lambda found: textwrap.indent(block, found[1]).rstrip(),
        textwrap.dedent(around.program),
        flags=re.MULTILINE,
    )
    if "\nasync def main():\n" in program and "asyncio.run(main())" not in program:
        program += '\nif __name__ == "__main__":\n    asyncio.run(main())\n'
    assert run_script(tmp_path, program).endswith(around.prints)


# What the server of the guide is connected to: something that makes garbage, in cycles,
# and has it collected while each client waits.
DATABASE = """
import gc


class Database:
    async def answer(self, line):
        for _ in range(10):
            cycle = []
            cycle.append(cycle)
        gc.collect()
        await asyncio.sleep(0)
        return b"answer to " + line


async def connect_to_database():
    return Database()
"""

CLIENTS, LINES = 40, 30


async def converse(port: int) -> int:
    """Have a conversation; return how many lines were answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for number in range(LINES):
            writer.write(b"line %d\n" % number)
            if await reader.readline() != b"answer to line %d\n" % number:
                return number
    finally:
        writer.close()
        await writer.wait_closed()
    return LINES


@pytest.mark.asyncio
async def test_the_first_server_of_the_guide_ends_no_conversation(
    tmp_path: Path,
) -> None:
    (tmp_path / "app.py").write_text(
        block_of("docs/cluster.md", "import asyncio\n\nconversations") + DATABASE
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = block_of("docs/cluster.md", "import asyncio\nimport sys\n")
    process = start_script(tmp_path, program.replace("8000", str(port)))
    try:
        async with patience():
            answered = [await first_conversation(port)]
            answered += await asyncio.gather(*map(converse, [port] * (CLIENTS - 1)))
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.to_thread(finish, process)
    finally:
        process.kill()
        process.wait(PATIENCE)
    assert answered == [LINES] * CLIENTS
    assert "Task was destroyed" not in err
    assert (process.returncode, out) == (0, "")


async def first_conversation(port: int) -> int:
    """Begin as soon as somebody listens."""
    while True:
        try:
            return await converse(port)
        except ConnectionRefusedError:
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_the_server_of_the_guide_that_accepts_by_itself_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = block_of("docs/cluster.md", "async def serve(worker):\n    servers = [")
    (tmp_path / "accepting.py").write_text(ACCEPTING + shown)
    monkeypatch.syspath_prepend(tmp_path)
    cluster = Cluster("accepting:serve", bind="127.0.0.1:0", workers=2, spread="shared")
    async with patience(), cluster:
        await all_ready(cluster)
        [address] = cluster.addresses
        port = int(address.rpartition(":")[2])
        assert await asyncio.gather(*map(converse, [port] * 5)) == [LINES] * 5


ACCEPTING = """
import asyncio


async def converse(reader, writer):
    async for line in reader:
        writer.write(b"answer to " + line)
    writer.close()


"""
