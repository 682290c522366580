"""A cluster in operation: who may ask for what, when, and the exit code."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from asyncpool._core.control.control_protocol import Request
from asyncpool._runtime.control.client import ControlClient
from asyncpool._runtime.control.paths import live_names, path_of, private_folder
from asyncpool.cluster import _run
from asyncpool.cluster._run import Operation, run
from asyncpool.enums import CrashKind, NextStep, RunState
from asyncpool.errors import ProtocolError, ResizeError
from asyncpool.events import Crash, Crashed, RollResult
from tests.helpers.fake_cluster import FakeCluster
from tests.helpers.locked_folder import assert_waits, locked
from tests.helpers.patience import PATIENCE, patience

pytestmark = pytest.mark.asyncio

CRASH = Crash(
    slot=2,
    generation=1,
    pid=7,
    exit_code=3,
    signal=None,
    kind=CrashKind.CRASH,
    uptime=1.0,
    job_id=None,
    attempt=0,
    detail="no module",
    stderr_tail=(),
    next_step=NextStep.CLOSE,
)


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


RELOADED = {
    "replaced": 2,
    "filled": 0,
    "reason": "",
    "text": "reloaded: 2 workers are new",
}


class Running:
    """An operation under way, with a fake cluster."""

    def __init__(self, **options: Any) -> None:
        self.cluster = FakeCluster()
        self.ready = asyncio.Event()
        self.operation = Operation(
            cast("Any", self.cluster), on_ready=self.ready.set, **options
        )
        self.task = asyncio.create_task(self.operation.run())

    async def ask(self, action: Any, **fields: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._ask, Request(action, **fields))

    def _ask(self, request: Request) -> dict[str, Any]:
        path = self.operation.control_path
        assert path is not None
        with ControlClient(path, within=PATIENCE) as client:
            return client.ask(request)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what asyncpool has logged; asyncio does, too, if a step takes long."""
    return [r.getMessage() for r in caplog.records if r.name == "asyncpool"]


@asynccontextmanager
async def operating(**options: Any) -> AsyncIterator[Running]:
    """Have a cluster that is up; it is stopped at last, if it is not."""
    async with patience():
        running = Running(**options)
        running.cluster.up.set()
        await running.ready.wait()
        running.cluster.done.clear()
        try:
            yield running
        finally:
            running.cluster.drained.set()
            running.cluster.reloaded.set()
            while not running.task.done():
                running.operation.stop()
                await asyncio.wait({running.task}, timeout=0.01)


async def test_a_signal_drains_and_another_ends_at_once() -> None:
    async with operating() as running:
        signal.raise_signal(signal.SIGTERM)
        await running.cluster.asked_for("close")
        assert not running.task.done()
        signal.raise_signal(signal.SIGINT)
        await running.cluster.asked_for("close", "close 0")
        assert await running.task == 128 + signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_drains_in_time_ends_with_0(number: int) -> None:
    async with operating() as running:
        running.cluster.drained.set()
        signal.raise_signal(number)
        assert await running.task == 0
    assert live_names() == []


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
)
async def test_a_signal_behind_the_end_changes_nothing(number: int) -> None:
    before = {it: signal.getsignal(it) for it in signal.valid_signals()}

    def is_last() -> bool:
        signal.raise_signal(number)  # while it is an order still
        return True

    try:
        async with operating(is_last=is_last) as running:
            running.cluster.drained.set()
            signal.raise_signal(signal.SIGTERM)
            assert await running.task == 0
            signal.raise_signal(number)
            assert running.cluster.done == ["close"]
    finally:
        for it, handler in before.items():
            if handler is not signal.getsignal(it):
                signal.signal(it, handler)


async def test_it_is_stopped_while_it_starts() -> None:
    async with patience():
        running = Running()
        await running.cluster.asked_for("start")
        assert (await running.ask("status"))["state"] == "new"
        running.cluster.drained.set()
        signal.raise_signal(signal.SIGTERM)
        assert await running.task == 0
        assert not running.ready.is_set()


async def test_it_cannot_start() -> None:
    async with patience():
        running = Running()
        running.cluster.start_error = OSError("cannot listen")
        running.cluster.up.set()
        with pytest.raises(OSError, match=r"^cannot listen$"):
            await running.task
        await running.cluster.asked_for("start", "close 0")
    assert live_names() == []


async def test_it_gives_up() -> None:
    async with operating() as running:
        running.cluster.break_down()
        running.cluster.drained.set()
        assert await running.task == 3
        assert running.cluster.done == ["close"]
        assert running.operation.broken is not None
        assert running.operation.broken.reason == "too many"


async def test_a_hangup_reloads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncpool")
    async with operating() as running:
        signal.raise_signal(signal.SIGHUP)
        await running.cluster.asked_for("reload")
        # While one is under way, any number of others is one more.
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGUSR1)
        await running.cluster.asked_for("reload", "stacks")
        running.cluster.reloaded.set()
        await running.cluster.asked_for("reload", "stacks", "reload")
    asked = [line for line in told(caplog) if "reload" in line]
    assert asked == ["cluster app: asked to reload by SIGHUP"] * 2


async def test_a_reload_fails() -> None:
    async with operating() as running:
        running.cluster.result = RollResult(replaced=0, reason="bad code", crash=None)
        running.cluster.reloaded.set()
        text = (
            "the reload has ended after 0 workers, the others are as before: bad code"
        )
        assert await running.ask("reload") == {
            "replaced": 0,
            "filled": 0,
            "reason": "bad code",
            "text": text,
        }


async def test_a_client_reloads_one_at_a_time() -> None:
    async with operating() as running:
        first = asyncio.create_task(running.ask("reload"))
        await running.cluster.asked_for("reload")
        with pytest.raises(ProtocolError, match=r"^a reload is under way already$"):
            await running.ask("reload")
        running.cluster.reloaded.set()
        assert await first == RELOADED


async def test_a_hangup_while_a_client_reloads_is_one_more() -> None:
    async with operating() as running:
        first = asyncio.create_task(running.ask("reload"))
        await running.cluster.asked_for("reload")
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGUSR1)
        await running.cluster.asked_for("reload", "stacks")
        # Who is refused changes nothing.
        with pytest.raises(ProtocolError, match=r"^a reload is under way already$"):
            await running.ask("reload")
        running.cluster.reloaded.set()
        assert await first == RELOADED
        await running.cluster.asked_for("reload", "stacks", "reload")


async def test_signals_resize() -> None:
    async with operating() as running:
        for number in (signal.SIGTTIN, signal.SIGTTIN, signal.SIGTTOU):
            signal.raise_signal(number)
            await asyncio.sleep(0)
        await running.cluster.asked_for("resize 3", "resize 4", "resize 3")
        assert await running.ask("resize", workers=1) == {
            "workers": 1,
            "text": "1 worker now, 3 before",
        }
        signal.raise_signal(signal.SIGTTOU)
        await running.cluster.asked_for(
            "resize 3", "resize 4", "resize 3", "resize 1", "resize 1"
        )


@pytest.mark.logs("worker-stacks")
async def test_a_signal_dumps_stacks(caplog: pytest.LogCaptureFixture) -> None:
    async with operating() as running:
        signal.raise_signal(signal.SIGUSR1)
        await running.cluster.asked_for("stacks")
        assert await running.ask("stacks") == {"stacks": {"0": "zero\n", "1": "one\n"}}
    assert told(caplog) == ["stacks of worker 0:\nzero", "stacks of worker 1:\none"]


@pytest.mark.logs("reload-asked", "resize-asked", "signal-refused", "stop-asked")
async def test_who_asks_for_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncpool")
    async with operating() as running:
        running.cluster.reloaded.set()
        running.cluster.drained.set()
        signal.raise_signal(signal.SIGHUP)
        await running.cluster.asked_for("reload")
        signal.raise_signal(signal.SIGTTIN)
        await running.cluster.asked_for("reload", "resize 3")
        await running.ask("resize", workers=1)
        signal.raise_signal(signal.SIGUSR2)
        signal.raise_signal(signal.SIGTERM)
        assert await running.task == 0
    assert told(caplog) == [
        "cluster app: asked to reload by SIGHUP",
        "cluster app: asked to have 3 workers by SIGTTIN",
        "cluster app: asked to have 1 worker by a command",
        (
            "cluster app: SIGUSR2 means nothing here: SIGHUP reloads, SIGTERM ends after a "
            "drain, SIGQUIT at once"
        ),
        (
            "cluster app: asked to end by SIGTERM: workers finish their connections; when "
            "asked again, it ends at once"
        ),
    ]


async def test_a_client_asks_how_it_is() -> None:
    async with operating() as running:
        status = await running.ask("status")
    assert (status["kind"], status["name"]) == ("cluster", "app")
    assert status["pid"] == os.getpid()
    assert status["addresses"] == ["tcp://127.0.0.1:1"]
    assert status["slots"][0]["connections"] == 1


@pytest.mark.parametrize(
    ("now", "asked"),
    [(False, ["close"]), (True, ["close 0"])],
)
async def test_a_client_stops_it(now: bool, asked: list[str]) -> None:  # noqa: FBT001
    async with operating() as running:
        assert await running.ask("stop", now=now) == {
            "pid": os.getpid(),
            "name": "app",
        }
        await running.cluster.asked_for(*asked)
        running.cluster.drained.set()
        assert await running.task == 0


@pytest.mark.logs("order-failed")
async def test_an_order_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with operating() as running:

        async def fail(workers: int) -> None:
            await FakeCluster.resize(running.cluster, workers)
            raise RuntimeError("no room")

        running.cluster.resize = fail  # type: ignore[method-assign]
        signal.raise_signal(signal.SIGTTIN)
        await running.cluster.asked_for("resize 3")
    assert told(caplog) == ["an order to cluster app has failed"]
    assert "RuntimeError: no room" in caplog.text


async def test_a_resize_that_does_not_succeed_is_for_the_cluster_to_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with operating() as running:

        async def fail(workers: int) -> None:
            await FakeCluster.resize(running.cluster, workers)
            raise ResizeError(CRASH)

        running.cluster.resize = fail  # type: ignore[method-assign]
        signal.raise_signal(signal.SIGTTIN)
        await running.cluster.asked_for("resize 3")
        with pytest.raises(ProtocolError, match="exited with status 3: no module"):
            await running.ask("resize", workers=4)
    assert told(caplog) == []


async def test_it_is_cancelled() -> None:
    async with operating() as running:
        running.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running.task
        assert running.cluster.done == ["close 0"]
    assert live_names() == []


async def test_a_client_watches() -> None:
    async with operating() as running:
        path = running.operation.control_path
        assert path is not None
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(Request("watch", every=0.1).pack())
        first = json.loads(await reader.readline())
        assert first["status"] == await running.ask("status")
        assert (first["events"], first["jobs"], first["ended"]) == ([], [], 0)
        (listener,) = running.cluster.listeners
        listener(Crashed(CRASH))
        events = json.loads(await reader.readline())["events"]
        writer.close()
    assert [(event["type"], event["crash"]["detail"]) for event in events] == [
        ("Crashed", "no module")
    ]


@pytest.mark.logs("commanded")
async def test_a_client_ends_workers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncpool")
    async with operating() as running:
        killed = await running.ask("kill", slot=1)
        assert killed == {"text": "the worker in slot 1 was killed"}
        recycled = await running.ask("recycle", slot=0)
        assert recycled == {"text": "the worker in slot 0 is being replaced"}
        running.cluster.reloaded.set()
        assert await running.ask("recycle") == RELOADED
        await running.cluster.asked_for("kill 1", "retire 0", "reload")
    assert told(caplog)[:3] == [
        "cluster app: by a command: the worker in slot 1 was killed",
        "cluster app: by a command: the worker in slot 0 is being replaced",
        "cluster app: asked to reload by a command",
    ]


async def test_a_client_asks_for_the_stacks_of_a_slot() -> None:
    async with operating() as running:
        assert await running.ask("stacks", slot=1) == {"stacks": {"1": "one\n"}}
        with pytest.raises(ProtocolError, match=r"^a server has no jobs: name a slot"):
            await running.ask("stacks", job=1)
        text = "^a profile is of the jobs of a pool, and a server has none: 'asyncpool stacks'"
        with pytest.raises(ProtocolError, match=text):
            await running.ask("profile")


# Its control socket.


@pytest.mark.logs("name-taken")
async def test_its_name_is_another_ones_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncpool")
    name = f"app-{os.getpid()}"
    line = f"cluster app: another one has this name: commands find it as {name}"
    async with operating():
        assert line not in told(caplog)
        async with operating() as second:
            assert live_names() == ["app", name]
            assert second.operation.control_path == path_of(name)
            assert line in told(caplog)
            async with operating() as third:
                assert third.operation.control_path == path_of(f"{name}-2")


async def test_a_name_that_was_given_is_its_own() -> None:
    async with operating(control="mine"):
        running = Running(control="mine")
        error = f"cannot make the control socket {path_of('mine')}: another process"
        with pytest.raises(OSError, match=error):
            await running.task
        assert running.cluster.done == ["close 0"]
        assert live_names() == ["mine"]


async def test_a_locked_folder_does_not_hold_up_the_loop() -> None:
    folder = private_folder(make=True)
    async with patience():
        with locked(folder):
            running = Running()
            await assert_waits(folder, running.task)
        running.cluster.up.set()
        await running.ready.wait()
        assert running.operation.control_path == path_of("app")
        running.cluster.drained.set()
        running.operation.stop()
        assert await running.task == 0


async def test_no_control_socket_is_wanted() -> None:
    async with operating(control="") as running:
        assert running.operation.control_path is None
        assert live_names() == []


async def test_a_control_socket_at_a_path(runtime: Path) -> None:
    path = f"{runtime}/mine"
    async with operating(control=path):
        assert (runtime / "mine").is_socket()
        running = Running(control=path)
        error = f"cannot make the control socket {path}: another process listens there"
        with pytest.raises(OSError, match=f"{error}$"):
            await running.task
        assert running.cluster.done == ["close 0"]
    assert not (runtime / "mine").exists()


@pytest.mark.parametrize("foreign", [False, True])
async def test_a_path_need_be_no_name_and_no_folder_of_names(
    runtime: Path, *, foreign: bool
) -> None:
    """It is the way out where the folder of the names is somebody else's."""
    if foreign:
        (runtime / "asyncpool").touch()
    path = f"{runtime}/{'mine' if foreign else 'my app.sock'}"
    async with operating(control=path) as running:
        assert running.operation.control_path == path
        assert running.operation.which == f"--control {path}"


@pytest.mark.logs("no-control")
async def test_where_no_control_socket_can_be_it_serves_without(
    runtime: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runtime / "asyncpool").touch()
    async with operating() as running:
        assert running.operation.control_path is None
    assert told(caplog) == [
        (
            "cluster app: there is no control socket, so commands cannot reach it: "
            f"{runtime / 'asyncpool'} is no folder: somebody else has taken the name; have it "
            "removed, or set XDG_RUNTIME_DIR to a folder of your own; --control PATH has it "
            "elsewhere"
        )
    ]


async def test_a_name_that_cannot_be_had_is_no_reason_not_to_serve(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (runtime / "asyncpool").touch()
    async with operating(control="mine") as running:
        assert running.operation.control_path is None
    assert "there is no control socket" in caplog.text


# The service manager.


@pytest.fixture
def manager(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"{runtime}/notify")
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{runtime}/notify")
        yield sock


async def heard(manager: socket.socket) -> list[str]:
    loop = asyncio.get_running_loop()
    lines = (await loop.sock_recv(manager, 4096)).decode().split("\n")
    return [line for line in lines if not line.startswith("MONOTONIC_USEC=")]


LINE = "STATUS=1 of 2 workers, 3 connections, 0 restarts"


async def test_a_service_manager_is_told(manager: socket.socket) -> None:
    async with operating() as running:
        assert await heard(manager) == ["READY=1", LINE]
        running.cluster.reloaded.set()
        signal.raise_signal(signal.SIGHUP)
        assert await heard(manager) == ["RELOADING=1", "STATUS=reloading"]
        assert await heard(manager) == ["READY=1", LINE]
        signal.raise_signal(signal.SIGTERM)
        assert await heard(manager) == ["STOPPING=1", "STATUS=draining"]


async def test_the_watchdog_hears_of_a_cluster_that_serves(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    async with operating() as running:
        assert await heard(manager) == ["READY=1", LINE]
        assert await heard(manager) == ["WATCHDOG=1"]
        assert await heard(manager) == [LINE]
        running.cluster.state = RunState.BROKEN
        none = LINE.replace("1 of", "0 of")
        while await heard(manager) != [none]:
            pass
        # From here on there are only lines, until it serves again.
        for _ in range(3):
            assert await heard(manager) == [none]
        running.cluster.state = RunState.RUNNING
        assert await heard(manager) in (["WATCHDOG=1"], [none])
        while await heard(manager) != ["WATCHDOG=1"]:
            pass


async def test_the_watchdog_hears_of_a_cluster_that_drains(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    async with operating() as running:
        signal.raise_signal(signal.SIGTERM)
        await running.cluster.asked_for("close")
        while await heard(manager) != ["STOPPING=1", "STATUS=draining"]:
            pass
        for _ in range(3):
            assert await heard(manager) == ["WATCHDOG=1"]


async def test_run_is_what_clusters_do() -> None:
    cluster = FakeCluster()
    cluster.up.set()
    cluster.drained.set()
    async with patience():
        task = asyncio.create_task(run(cast("Any", cluster), ""))
        await cluster.asked_for("start")
        signal.raise_signal(signal.SIGTERM)
        assert await task == _run.STOPPED
