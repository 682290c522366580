"""A pool that commands find: what it tells of itself, and under which name."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Pool
from asyncpool.errors import PoolClosedError
from asyncpool.events import Exited
from tests.helpers import jobs, profiled, several
from tests.helpers.asking import Lines, ask
from tests.helpers.gate import Gate
from tests.helpers.inside import live_names, path_of, private_folder
from tests.helpers.locked_folder import assert_waits, locked
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import closing, idle, kill_worker, next_of
from tests.helpers.scripts import start_script

pytestmark = BOTH_LOOPS


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have a folder for control sockets; their paths must be short."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        monkeypatch.delenv("ASYNCPOOL_CONTROL", raising=False)
        yield Path(name)


async def test_its_status_is_its_figures() -> None:
    async with patience(), Gate() as gate, Pool(2, control=True, name="shop") as pool:
        assert live_names() == ["shop"]
        await pool.submit(jobs.square, 2)
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        status, stats = await ask("shop", "status"), pool.stats()
        visitor.release()
        await job
        resized = await ask("shop", "resize", workers=3)
        assert resized == {"workers": 3, "text": "3 workers now, 2 before"}
        assert pool.stats().workers == 3
        for action in ("stop", "reload"):
            error = f"a pool cannot {action}: its program decides that"
            assert await ask("shop", action) == {"error": error}
        error = "a pool has no requests, only a server has"
        assert await ask("shop", "requests") == {"error": error}
    assert live_names() == []
    who = status["kind"], status["name"], status["pid"]
    assert who == ("pool", "shop", os.getpid())
    expected = json.loads(json.dumps(dataclasses.asdict(stats)))
    assert set(expected) < set(status)
    for name in ("state", "workers", "submitted", "functions", "crash_kinds"):
        assert status[name] == expected[name]
    (running,) = (slot for slot in status["slots"] if slot["running"])
    (told,) = running["running"]
    assert (told["job_id"], told["function"]) == (job.id, "tests.helpers.jobs.wait_at")


async def test_a_locked_folder_does_not_hold_up_the_loop() -> None:
    folder = private_folder(make=True)
    pool = Pool(1, control=True, name="shop")
    async with patience():
        with locked(folder):
            starting = [asyncio.create_task(pool.start()) for _ in range(2)]
            await assert_waits(folder, *starting)
        await asyncio.gather(*starting)
        assert live_names() == ["shop"]
        assert await pool.submit(jobs.square, 2) == 4
        await pool.close()
    assert live_names() == []


@pytest.mark.parametrize("how", ["close", "cancel the first", "cancel the second"])
async def test_a_pool_that_is_closed_before_it_has_its_socket(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, trace = private_folder(make=True), tmp_path / "trace.json"
    pool = Pool(1, control=True, name="shop", trace=trace)
    async with patience():
        with locked(folder):
            starting = [asyncio.create_task(pool.start()) for _ in range(2)]
            await assert_waits(folder, *starting)
            if how == "close":
                await pool.close()
            else:
                starting[how == "cancel the second"].cancel()
                await assert_waits(folder)
        errors = await asyncio.gather(*starting, return_exceptions=True)
        for error in errors:
            assert isinstance(error, PoolClosedError | asyncio.CancelledError)
        closed = [str(each) for each in errors if isinstance(each, PoolClosedError)]
        assert closed == ["the pool is closed"] * (2 if how == "close" else 1)
        with pytest.raises(PoolClosedError):
            await pool.start()
    assert os.listdir(folder) == []
    assert not trace.exists()
    assert not [r for r in caplog.records if r.name == "asyncpool"]


async def test_a_profile_ends_when_its_client_leaves() -> None:
    """And its samplers in the workers too."""
    async with patience(), Pool(1, control=True, name="shop") as pool:
        before = await pool.submit(profiled.count_threads)
        async with Lines("shop", "profile", seconds=600.0):
            while await pool.submit(profiled.count_threads) == before:
                pass
        while await pool.submit(profiled.count_threads) > before:
            pass
        assert (await ask("shop", "profile", seconds=0.1))["samples"] >= 0


async def test_who_watches_sees_each_of_few_jobs() -> None:
    async with patience(), Pool(2, control=True, name="shop") as pool:
        async with Lines("shop", "watch", every=0.1, jobs=500) as lines:
            first = await lines.next()
            assert (first["jobs"], first["ended"]) == ([], 0)
            events = pool.job_events()
            await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(300)))
            rows: list[Any] = []
            ended = 0
            while ended < 300:
                line = await lines.next()
                rows += line["jobs"]
                ended += line["ended"]
                assert line["status"]["kind"] == "pool"
        # A job may come back from a slow worker, and is queued twice then.
        told: list[Any] = []
        while len(told) < 300:
            event = await anext(events)
            if hasattr(event, "outcome"):
                told.append(event)
    assert ended == len(rows) == 300
    for row, event in zip(rows, told, strict=True):
        number, function, slot, lane, at, wait, run, outcome, attempts = row
        assert (number, function, slot) == (event.job_id, event.function, event.slot)
        assert (lane, outcome, attempts) == (0, "ok", 1)
        assert (wait, run) == (event.wait, event.run)
        assert first["at"] <= at + run


async def test_jobs_at_once_are_in_different_lanes() -> None:
    async with (
        patience(),
        Gate() as gate,
        Pool(1, concurrency=4, control=True, name="shop") as pool,
        Lines("shop", "watch", every=0.1, jobs=100) as lines,
    ):
        running = [pool.submit(several.at, gate.path, str(n)) for n in range(4)]
        for visitor in [await gate.visitor(str(n)) for n in range(4)]:
            visitor.release()
        await asyncio.gather(*running)
        rows: list[Any] = []
        while len(rows) < 4:
            rows += (await lines.next())["jobs"]
    assert {row[3] for row in rows} == {0, 1, 2, 3}


async def test_who_watches_sees_a_crash() -> None:
    async with (
        patience(),
        Pool(1, control=True, name="shop") as pool,
        Lines("shop", "watch", every=0.1) as lines,
    ):
        await idle(pool)
        await lines.next()
        await kill_worker(pool)
        events: list[Any] = []
        while not any(event["type"] == "Ready" for event in events):
            events += (await lines.next())["events"]
        (crashed,) = (event for event in events if event["type"] == "Crashed")
        assert crashed["crash"]["signal"] == "SIGKILL"
        assert crashed["crash"]["kind"] == "crash"
        assert crashed["at"] > 1.7e9


@pytest.mark.logs("commanded")
async def test_commands_end_workers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "asyncpool")
    async with patience(), Pool(2, control=True, name="shop") as pool:
        await idle(pool)
        events = pool.events()
        killed = await ask("shop", "kill", slot=1)
        exited = await next_of(events, Exited)
        assert (exited.slot, exited.reason) == (1, "kill")
        await idle(pool)
        recycled = await ask("shop", "recycle", slot=0)
        exited = await next_of(events, Exited)
        assert (exited.slot, exited.reason) == (0, "retire")
        await idle(pool)
        rolled = await ask("shop", "recycle")
        # 9 is no slot.
        refused = [await ask("shop", action, slot=9) for action in ("kill", "recycle")]
    assert killed == {"text": "the worker in slot 1 was killed"}
    assert recycled == {"text": "the worker in slot 0 is being replaced"}
    assert rolled == {
        "replaced": 2,
        "filled": 0,
        "reason": "",
        "text": "2 workers are new",
    }
    assert all(
        reply["error"].startswith("there is no worker in slot 9") for reply in refused
    )
    by_command = [it for it in caplog.messages if "by a command" in it]
    assert by_command == [
        "pool shop: by a command: the worker in slot 1 was killed",
        "pool shop: by a command: the worker in slot 0 is being replaced",
        "pool shop: by a command: all workers are being replaced, one after the other",
        "pool shop: by a command: 2 workers are new",
    ]


async def test_a_command_shows_where_jobs_are() -> None:
    async with patience(), Gate() as gate, Pool(2, control=True, name="shop") as pool:
        await idle(pool)
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        while "in knock" in (text := await job.stack()):
            pass  # it has come, and not returned to where it waits
        both = (await ask("shop", "stacks"))["stacks"]
        (slot,) = (slot for slot, found in both.items() if found)
        assert (await ask("shop", "stacks", job=job.id))["stacks"] == {slot: text}
        assert (await ask("shop", "stacks", slot=int(slot)))["stacks"] == {slot: text}
        second, queued = (pool.submit(jobs.wait_at, gate.path, word) for word in "ab")
        assert await ask("shop", "stacks", job=queued.id) == {
            "error": f"job {queued.id} has not begun, or is over by now"
        }
        visitor.release()
        await job
        assert await ask("shop", "stacks", job=job.id) == {
            "error": f"job {job.id} is over, or never was"
        }
        for word in "ab":
            (await gate.visitor(word)).release()
        await asyncio.gather(second, queued)
    assert "wait_at" in text


async def test_it_is_found_while_it_closes_and_those_who_watch_see_its_end() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1, control=True, name="shop")
        await pool.start()
        async with Lines("shop", "watch", every=60) as lines:
            await lines.next()
            job = pool.submit(jobs.wait_at, gate.path)
            visitor = await gate.visitor()
            close = await closing(pool)
            assert (await ask("shop", "status"))["state"] == "closing"
            visitor.release()
            await asyncio.gather(job, close)
            with pytest.raises(AssertionError, match="it has ended"):
                await lines.next()
    assert live_names() == []


async def test_each_of_one_name_is_found() -> None:
    pid = os.getpid()
    async with patience():
        pools = [Pool(1, control=True, name="shop") for _ in range(3)]
        for pool in pools:
            await pool.start()
        names = ["shop", f"shop-{pid}", f"shop-{pid}-2"]
        assert live_names() == names
        assert [(await ask(name, "status"))["name"] for name in names] == names
        for pool in pools:
            await pool.close()


async def test_a_path(runtime: Path) -> None:
    path = runtime / "my socket"
    async with patience(), Pool(1, control=path):
        assert live_names() == []
        assert (await ask(str(path), "status"))["which"] == f"--control {path}"
        other = Pool(1, control=path)
        error = f"cannot make the control socket {path}: another process listens there"
        with pytest.raises(OSError, match=f"^.*{re.escape(error)}$"):
            await other.start()
        await other.close()
    assert not path.exists()


@pytest.mark.parametrize(("value", "found"), [("1", ["shop"]), ("0", []), ("", [])])
async def test_the_environment_says_whether_pools_are_found(
    value: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCPOOL_CONTROL", value)
    async with patience(), Pool(1, name="shop"), Pool(1, name="other", control=False):
        assert live_names() == found


async def test_an_environment_that_says_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASYNCPOOL_CONTROL", "yes")
    error = "the environment variable ASYNCPOOL_CONTROL is 0 or 1, not 'yes'"
    with pytest.raises(ValueError, match=f"^{error}$"):
        Pool(1)


async def test_where_no_socket_can_be_it_works_without(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (runtime / "asyncpool").touch()
    async with patience(), Pool(1, control=True, name="shop") as pool:
        assert await pool.submit(jobs.square, 3) == 9
    (told,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert told.getMessage() == (
        "pool shop: there is no control socket, so commands cannot reach it: "
        f"{runtime / 'asyncpool'} is no folder: somebody else has taken the name; have it "
        "removed, or set XDG_RUNTIME_DIR to a folder of your own; Pool(control='/path') has it "
        "elsewhere"
    )


async def test_a_name_is_never_a_path(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ASYNCPOOL_CONTROL", "1")
    monkeypatch.chdir(runtime)
    (runtime / "shop").mkdir()
    async with patience(), Pool(1, name="shop/images") as pool:
        assert await pool.submit(jobs.square, 3) == 9
        assert live_names() == []
    assert not list((runtime / "shop").iterdir())
    (told,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert told.getMessage() == (
        "pool shop/images: there is no control socket, so commands cannot reach it: "
        "'shop/images' is no name that commands find, which is 1 to 64 of A-Z, a-z, 0-9, "
        "'.', '-', '_' and ':', the first of them neither '.' nor '-'; "
        "Pool(control='/path') has it elsewhere"
    )
    async with patience(), Pool(1, name="shop/images", control="images"):
        assert live_names() == ["images"]


async def test_a_fork_of_the_program_does_not_answer() -> None:
    """Nor does it keep anything open, so that a client would wait for its end."""
    async with patience(), AsyncExitStack() as stack:
        pool = await stack.enter_async_context(Pool(1, control=True, name="shop"))
        lines = await stack.enter_async_context(Lines("shop", "watch", every=60))
        await lines.next()
        pid = os.fork()
        if not pid:
            signal.pause()
            os._exit(0)
        stack.push_async_callback(asyncio.to_thread, os.waitpid, pid, 0)
        stack.callback(os.kill, pid, signal.SIGKILL)
        assert (await ask("shop", "status"))["pid"] == os.getpid()
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(path_of("shop"))
            await pool.close()
            with pytest.raises(AssertionError, match="it has ended"):
                await lines.next()
            assert await asyncio.to_thread(late.recv, 1) == b""


PROGRAM = """
import asyncio, os
from asyncpool import Pool
from asyncpool.events import Exited

async def main():
    async with Pool(1, control=True, name="shop"):
        print("here", flush=True)
        await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_the_socket_of_a_killed_program_is_replaced(tmp_path: Path) -> None:
    process = start_script(tmp_path, PROGRAM)
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "here\n"
    assert live_names() == ["shop"]
    process.kill()
    process.communicate()
    assert Path(path_of("shop")).exists()
    assert live_names() == []
    async with patience(), Pool(1, control=True, name="shop"):
        assert (await ask("shop", "status"))["pid"] == os.getpid()


async def test_a_pool_that_is_dropped_ends_its_socket() -> None:
    async with patience():
        pool = Pool(1, control=True, name="shop")
        await pool.start()
        events = pool.events()
        with pytest.warns(ResourceWarning):
            del pool
        async for _ in events:
            pass
    assert live_names() == []
