"""``asyncpool serve --pool`` and ``asyncpool agent``: pools that other processes find."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from asyncpool.sharedpool import shared_pool
from tests.helpers.scraping import Figures
from tests.helpers.serving import Server, until, write_app

APP = """
    import os, signal
    import asyncpool

    def make_pool():
        return asyncpool.Pool(2)

    def wait(path):
        with open(path, "w") as pipe:
            pipe.write(str(os.getpid()))
        signal.pause()

    pool = None

    async def app(scope, receive, send):
        global pool
        if scope["type"] == "lifespan":
            async with asyncpool.shared_pool("jobs") as pool:
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["path"] == "/wait":
            job = pool.options(cancel_grace=0).submit(wait, "begun")
        else:
            job = pool.submit(os.getpid)
        text = f"{os.getpid()} {await job}".encode()
        headers = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})
"""

WORKERS = 8


def seen(server: Server) -> tuple[set[int], set[int]]:
    """Return which processes serve, and which run the jobs."""
    pairs = [server.get().split() for _ in range(40)]
    return {int(one) for one, _ in pairs}, {int(other) for _, other in pairs}


def test_eight_server_workers_share_two_workers_of_a_pool(tmp_path: Path) -> None:
    write_app(tmp_path, APP)
    os.mkfifo(tmp_path / "begun")
    with Server(
        tmp_path,
        *("app:app", "--bind", "127.0.0.1:0", "--workers", str(WORKERS)),
        *("--pool", "jobs=app:make_pool", "--name", "web", "--preload", "uvicorn"),
    ) as server:
        server.up()
        until(
            lambda: (
                server.command("status", "web", "--json").out.count('"ready": true')
                == WORKERS
            ),
            "all are ready",
        )
        servers, pool = seen(server)
        assert len(servers) > 4
        assert len(pool) <= 2

        # A server worker that dies costs its own jobs, and nothing else.
        waiting = server.begin("/wait")
        busy = int((tmp_path / "begun").read_text())
        victim = next(pid for pid in servers if holds(pid, waiting.sock.getsockname()))
        os.kill(victim, signal.SIGKILL)
        waiting.close()
        until(lambda: not Path(f"/proc/{busy}").exists(), "its job has ended")
        pool = pool_of(server)
        assert len(pool) == 2

        # The pool survives a reload of the servers, and has an order of its own.
        assert server.command("reload", "web").code == 0
        reloaded, same = seen(server)
        assert not reloaded & servers
        assert same <= pool == pool_of(server)
        done = server.command("recycle", f"jobs-{server.process.pid}", "--yes")
        assert done.code == 0, done.err
        _, rolled = seen(server)
        assert not rolled & pool
        assert server.end(signal.SIGTERM) == 0


def test_the_metrics_of_a_server_have_its_pools(tmp_path: Path) -> None:
    write_app(tmp_path, APP)
    with Server(
        tmp_path,
        *("app:app", "--bind", "127.0.0.1:0", "--metrics", f"unix:{tmp_path}/m"),
        *("--pool", "jobs=app:make_pool", "--pool", "mail=app:make_pool"),
    ) as server:
        server.up()
        server.get()
        with socket.socket(socket.AF_UNIX) as scrape:
            scrape.connect(f"{tmp_path}/m")
            scrape.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            page = scrape.makefile().read()
        found = Figures(page.partition("\n\n")[2])
        assert found.labels("pool") == {"jobs", "mail"}
        assert found.get("jobs_submitted_total", pool="jobs") == 1
        assert found.get("jobs_submitted_total", pool="mail") == 0
        assert found.get("cluster_workers_wanted", cluster="app") > 0
        assert server.end(signal.SIGTERM) == 0


def pool_of(server: Server) -> set[int]:
    """Return the workers of the pool."""
    done = server.command("status", f"jobs-{server.process.pid}", "--json")
    return {slot["pid"] for slot in json.loads(done.out)["slots"]}


def holds(pid: int, address: tuple[str, int]) -> bool:
    """Tell whether a process has the other end of a connection."""
    import psutil

    return any(it.raddr == address for it in psutil.Process(pid).net_connections())


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("jobs", "is not NAME=MODULE:FUNCTION"),
        ("jobs=app", "is not MODULE:FUNCTION"),
        ("jobs=app:nothing", "cannot be loaded"),
        ("jobs=app:pool", "is no function"),
        ("jobs=os:getpid", "which is no Pool"),
    ],
)
def test_a_pool_that_is_none_is_a_mistake(
    tmp_path: Path, option: str, why: str
) -> None:
    write_app(tmp_path, APP)
    with Server(tmp_path, "app:app", "--bind", "127.0.0.1:0", "--pool", option) as it:
        assert it.end() == 2
        assert why in it.log
        assert "Traceback" not in it.log


def test_a_program_that_no_server_has_started_has_no_shared_pool() -> None:
    with pytest.raises(LookupError, match=r"no shared pool 'jobs' \(there are: none\)"):
        shared_pool("jobs")


def test_only_workers_that_are_trusted_print_records_of_the_log(tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        import asyncpool
        from tests.helpers import jobs

        def make_pool():
            return asyncpool.Pool(1, codec="json", functions=[jobs.say])

        async def app(scope, receive, send):
            if scope["type"] == "http":
                print('{"message": "mine"}', flush=True)
                async with asyncpool.shared_pool("jobs", codec="json") as pool:
                    await pool.submit(jobs.say, '{"message": "forged"}\\n')
                headers = [(b"content-length", b"0")]
                head = {"type": "http.response.start", "status": 200}
                await send({**head, "headers": headers})
                await send({"type": "http.response.body"})
        """,
    )
    with Server(
        tmp_path,
        *("app:app", "--bind", "127.0.0.1:0", "--workers", "1"),
        *("--pool", "jobs=app:make_pool", "--log-format", "json"),
    ) as server:
        server.up()
        server.get()
        server.says("forged")
        server.says("mine")
        assert server.end(signal.SIGTERM) == 0
        lines = [json.loads(line) for line in server.log.splitlines()]
    assert {"message": "mine"} in lines
    assert '{"message": "forged"}' in [line["message"] for line in lines]
