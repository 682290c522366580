"""``asyncpool agent``: a pool that other programs find."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncpool.errors import PoolClosedError
from asyncpool.events import Exited
from asyncpool.sharedpool import SharedPool, connect
from tests.helpers import jobs
from tests.helpers.command import command_environment, run_command, write_module
from tests.helpers.gate import Gate, short_folder
from tests.helpers.log_table import log_again
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import next_of

APP = """
    import asyncpool
    from tests.helpers import jobs

    def make_pool():
        return asyncpool.Pool(2)

    def fail():
        raise RuntimeError("no licence")


    def make_data_only():
        return asyncpool.Pool(1, codec="json", functions=[jobs.say])

    def make_broken():
        policy = asyncpool.RestartPolicy.limited(1, 60.0)
        return asyncpool.Pool(1, initializer=fail, restart_policy=policy)
"""


FORGED = '{"message_id": "pool-broken"}'


class Agent:
    """One that runs, with the log as JSON.

    Args:
        folder: Where it runs, and where its sockets are.
        process: It.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self.process = folder, process
        self.address = f"unix:{folder}/pool.sock"
        self.log: list[str] = []

    def until(self, message: str) -> dict[str, Any]:
        """Wait for a record, and return it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            found: dict[str, Any] = json.loads(line)
            if found.get("message_id") == message:
                return found
        raise AssertionError(f"{message} is not in {self.log}")

    def command(self, *words: str) -> str:
        """Run another command, and return what it prints."""
        name = f"agent-{self.process.pid}"
        done = subprocess.run(
            [sys.executable, "-m", "asyncpool", words[0], name, *words[1:]],
            env=_environment(self.folder),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def _environment(folder: Path) -> dict[str, str]:
    return {**command_environment(), "XDG_RUNTIME_DIR": str(folder)}


@contextmanager
def agent(pool: str = "app:make_pool") -> Generator[Agent]:
    """Run an agent, and log here at its end what it has logged."""
    with short_folder() as folder:
        write_module(folder, APP, "app")
        where = f"unix:{folder}/pool.sock"
        words = ("--bind", where, "--pool", pool, "--log-format", "json")
        process = subprocess.Popen(
            [sys.executable, "-m", "asyncpool", "agent", *words],
            cwd=folder,
            env=_environment(folder),
            stderr=subprocess.PIPE,
            text=True,
        )
        it = Agent(folder, process)
        with process:
            try:
                yield it
            finally:
                process.kill()
            assert process.stderr is not None
            it.log += process.stderr
        log_again("".join(it.log))


@pytest.mark.logs("agent-sharing", "agent-stopping", "agent-drained", "rolled")
def test_it_shares_a_pool_until_it_is_stopped() -> None:
    with agent() as it:
        shared = it.until("agent-sharing")
        assert shared["message"] == f"sharing pool pool-1 at {it.address}"
        asyncio.run(_use(it.address, it.process))
        assert it.process.wait(PATIENCE) == 0
        assert it.until("agent-stopping")["by"] == "SIGTERM"
        assert it.until("agent-drained")["finished"] >= 1
        it.until("pool-closed")


async def _use(address: str, agent: subprocess.Popen[str]) -> None:
    async with patience(), Gate() as gate, connect(address) as pool:
        first = await pool.submit(jobs.pid)
        assert first != os.getpid()
        events = pool.events()
        await pool.stats()  # the agent has heard that there is a listener
        agent.send_signal(signal.SIGHUP)
        for _ in range(2):
            await next_of(events, Exited)
        waiting = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        agent.send_signal(signal.SIGTERM)
        with pytest.raises(PoolClosedError):
            await _until_refused(pool)
        visitor.release()
        assert await waiting == "go"


async def _until_refused(pool: SharedPool) -> None:
    while True:
        await pool.stats()
        pool.submit(jobs.square, 1)


@pytest.mark.logs("resized", "worker-ended", "agent-roll-refused")
def test_other_commands_find_it_and_it_logs_what_they_order() -> None:
    with agent() as it:
        it.until("agent-sharing")
        assert f"agent-{it.process.pid}" in it.command("status")
        it.command("resize", "3", "--yes")
        assert it.until("resized")["most"] == 3
        it.command("kill", "--slot", "0", "--yes")
        assert it.until("worker-ended")["reason"] == "kill"
        asyncio.run(_roll_twice(it))
        assert it.until("rolled")["replaced"] == 3


async def _roll_twice(it: Agent) -> None:
    async with patience(), Gate() as gate, connect(it.address) as pool:
        waiting = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        it.process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(it.until, "roll-begun")
        it.process.send_signal(signal.SIGHUP)
        refused = await asyncio.to_thread(it.until, "agent-roll-refused")
        assert refused["message"].startswith("no roll: ")
        visitor.release()
        assert await waiting == "go"


@pytest.mark.logs("agent-gave-up")
def test_a_pool_that_cannot_start_is_told_and_ends_it() -> None:
    with agent("app:make_broken") as it:
        crashed = it.until("worker-crashed")
        assert "RuntimeError: no licence" in str(crashed)
        assert "no licence" in it.until("agent-gave-up")["message"]
        assert it.process.wait(PATIENCE) == 3


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--bind", "tcp:1"], "is not unix:PATH"),
        (["--bind", "unix:x", "--pool", "a:b", "--workers", "2"], "go there"),
        (["--bind", "unix:x", "--pool", "nothing:b"], "cannot be loaded"),
        (["--bind", "unix:x", "--workers", "99999"], "1<=x<=4096"),
        ([], "--bind"),
    ],
)
def test_a_mistake_in_the_command_is_told(
    tmp_path: Path, words: list[str], why: str
) -> None:
    done = run_command(tmp_path, "agent", *words)
    assert done.code == 2
    assert why in done.err
    assert "Traceback" not in done.err


def test_a_path_where_it_cannot_be_is_told_before_the_pool_starts(
    tmp_path: Path,
) -> None:
    done = run_command(tmp_path, "agent", "--bind", "unix:no/s")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"asyncpool: unix:no/s: there is no folder {tmp_path}/no: make it first\n"
    )


def test_a_worker_with_a_codec_forges_no_record() -> None:
    async def say(address: str) -> None:
        async with patience(), connect(address, codec="json") as pool:
            await pool.submit(jobs.say, f"{FORGED}\n")

    with agent("app:make_data_only") as it:
        it.until("agent-sharing")
        asyncio.run(say(it.address))
        it.process.terminate()
        assert it.until("line")["message"] == FORGED
