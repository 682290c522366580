"""Runs of ``asyncpool map`` that are killed, each in a process that was forked for it.

What is real is all but the pool: the reader, the window, the writer, the journal, the
files.  A fork costs 10 ms, where the command costs 300.  Each line of stdin asks for a
run; the answer is its exit status.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

from asyncpool._cli.journal.journal import START, Journal, RunIdentity
from asyncpool._cli.map.inputs import open_input
from asyncpool._cli.map.outputs import Outputs, usable
from asyncpool._cli.map.run import Files, Plan, Run
from asyncpool._cli.targets import FunctionRaisedError, Work, trouble
from asyncpool.pool import Pool
from tests.helpers.inside import sync_every

__all__ = ["expected_line", "fails"]


def fails(number: int) -> bool:
    """Tell whether an item is one that fails."""
    return number % 7 == 3


def expected_line(number: int) -> str:
    """Return the line that an item has in its file."""
    if fails(number):
        error = {
            "kind": "raised",
            "type": "ValueError",
            "message": "no",
            "traceback": "",
        }
        return f'{{"index": {number}, "input": {number}, "error": {json.dumps(error)}}}'
    return f'{{"index": {number}, "input": {number}, "result": {number * 2}}}'


class FakePool:
    """Finishes jobs in any order, and notes which it has begun."""

    def __init__(self, log: int, draw: random.Random) -> None:
        self._log = log
        self._draw = draw
        self._open: list[tuple[int, asyncio.Future[str]]] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._work())

    def options(self, **_: Any) -> FakePool:
        return self

    def stats(self) -> None:
        return None

    def submit(self, function: Any, number: int = 0, _raw: bytes = b"") -> Any:
        job: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if function is trouble:
            job.set_result("")
        else:
            os.write(self._log, b"%d\n" % number)
            self._open.append((number, job))
        return job

    async def _work(self) -> None:
        while True:
            self._draw.shuffle(self._open)
            for _ in range(self._draw.randint(0, len(self._open))):
                number, job = self._open.pop()
                if fails(number):
                    job.set_exception(FunctionRaisedError("ValueError", "no", ""))
                else:
                    job.set_result(expected_line(number))
            await asyncio.sleep(0)

    async def close(self, **_: Any) -> None:
        if self._task is not None:
            self._task.cancel()


def map_all(folder: Path, *, ordered: bool, seed: int) -> None:
    """Do what ``asyncpool map --journal`` does."""
    source = open_input(str(folder / "in.jsonl"), None, None)
    journal = Journal(str(folder / "run.db"))
    journal.begin(
        RunIdentity("f", source.name, "json", ordered, bare=False), source.size
    )
    output, failed = str(folder / "out.jsonl"), str(folder / "failed.jsonl")
    position = usable(journal.position, output, failed)
    if position is START:
        journal.begin_files_anew()
    outputs = Outputs(output, failed, position, ordered=ordered)
    log = os.open(folder / "begun.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    pool = cast("Pool", FakePool(log, random.Random(seed)))
    plan = Plan(Work("f"), ordered=ordered)
    asyncio.run(Run(plan, Files(source, journal, outputs), pool).execute())
    outputs.close()
    journal.close()


def kill_at(pid: int, log: Path, lines: int, delay: float) -> int:
    """Kill a run when it has begun so many items, and a while later; return its status."""
    while lines and (not log.exists() or log.read_bytes().count(b"\n") < lines):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def serve() -> None:
    """Answer the lines of stdin."""
    # The files are synced in each run, then, and not only in long ones.
    sync_every(0.01)
    for line in sys.stdin:
        asked = json.loads(line)
        folder, kill = Path(asked["folder"]), asked["kill"]
        pid = os.fork()
        if pid == 0:
            map_all(folder, ordered=asked["ordered"], seed=asked["seed"])
            os._exit(0)
        if kill is not None:
            status = kill_at(pid, folder / "begun.log", *kill)
        else:
            _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
