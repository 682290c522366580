"""A cluster in operation: signals, commands, its control socket, the service manager."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from asyncpool._engine.hub import EventStream
from asyncpool._observe.control.client import ControlClient
from asyncpool._observe.control.protocol import Request
from asyncpool._observe.control.socket_files import live_names, path_of
from asyncpool.cluster._run import (
    Notifier,
    Operation,
    name_of,
    obeyed,
    watchdog_interval,
)
from asyncpool.cluster._stats import ClusterStats, WorkerStats
from asyncpool.enums import RunState
from asyncpool.errors import PoolClosedError, ProtocolError, ResizeError
from asyncpool.events import CloseSummary, Event, RollResult
from tests.helpers.crashes import crash_with
from tests.helpers.patience import PATIENCE, patience


class FakeCluster:
    """What :class:`asyncpool.cluster._run.Operated` describes.

    Attributes:
        done: What was asked for, oldest first.
        news: Set at each.
        up: Set by the test to let the start return.
        drained: Set by the test when a close may return.
        reloaded: Set by the test when a reload may return.
        listeners: Who listens to events.
    """

    def __init__(self, name: str = "app") -> None:
        self.name = name
        self.done: list[str] = []
        self.news = asyncio.Condition()
        self.up = asyncio.Event()
        self.drained = asyncio.Event()
        self.reloaded = asyncio.Event()
        self.state: RunState = RunState.NEW
        self.workers = 2
        self.listeners: list[Callable[[Event], object]] = []
        self._over: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def _open_listeners(self) -> None: ...

    async def start(self) -> FakeCluster:
        await self._note("start")
        waiting: asyncio.Future[Any] = asyncio.create_task(self.up.wait())
        await asyncio.wait({waiting, self._over}, return_when="FIRST_COMPLETED")
        waiting.cancel()
        if self._over.done():
            raise PoolClosedError
        self.state = RunState.RUNNING
        return self

    async def wait(self) -> None:
        await self._over

    async def close(self, timeout: float | None = None) -> CloseSummary:  # noqa: ASYNC109
        await self._note("close" if timeout is None else f"close {timeout:g}")
        self.state = RunState.CLOSING
        if timeout == 0:
            self.drained.set()
        await self.drained.wait()
        self.state = RunState.CLOSED
        if not self._over.done():
            self._over.set_result(None)
        return CloseSummary(finished=0, failed=0, killed=0)

    async def reload(self) -> RollResult:
        await self._note("reload")
        await self.reloaded.wait()
        return RollResult(replaced=2, reason="", crash=None)

    async def resize(self, workers: int) -> None:
        self.workers = workers
        await self._note(f"resize {workers}")

    async def stacks(self) -> dict[int, str]:
        await self._note("stacks")
        return {1: "one\n", 0: "zero\n"}

    def kill(self, slot: int) -> None:
        self.done.append(f"kill {slot}")

    def retire(self, slot: int) -> None:
        self.done.append(f"retire {slot}")

    def events(self) -> EventStream[Event]:
        stream: EventStream[Event] = EventStream(10)
        stream.end()
        return stream

    def add_listener(self, listener: Callable[[Event], object]) -> None:
        self.listeners.append(listener)

    def remove_listener(self, listener: Callable[[Event], object]) -> int:
        self.listeners.remove(listener)
        return 1

    def stats(self) -> ClusterStats:
        ready = self.state is RunState.RUNNING
        worker = WorkerStats(
            slot=0,
            generation=1,
            pid=1,
            state="idle",
            ready=ready,
            connections=1,
            handed=3,
            uptime=1.0,
            memory=1,
        )
        return ClusterStats(
            state=self.state,
            workers=self.workers,
            spread="handoff",
            addresses=("tcp://127.0.0.1:1",),
            handed=3,
            refused=0,
            lost=0,
            crashes=0,
            restarts=0,
            spawned=1,
            slots=(worker,),
        )

    async def asked_for(self, *actions: str) -> None:
        """Wait until these were asked for, and no others."""
        async with self.news:
            await self.news.wait_for(lambda: len(self.done) >= len(actions))
        assert self.done == list(actions)

    async def _note(self, action: str) -> None:
        self.done.append(action)
        async with self.news:
            self.news.notify_all()


pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


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
    return [r.getMessage() for r in caplog.records if r.name == "asyncpool.pool"]


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


async def test_it_is_stopped_while_it_starts() -> None:
    async with patience():
        running = Running()
        await running.cluster.asked_for("start")
        assert (await running.ask("status"))["state"] == "new"
        running.cluster.drained.set()
        signal.raise_signal(signal.SIGTERM)
        assert await running.task == 0
        assert not running.ready.is_set()
    assert live_names() == []


async def test_it_is_cancelled() -> None:
    async with operating() as running:
        running.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running.task
        assert running.cluster.done == ["close 0"]
    assert live_names() == []


async def test_reloads_come_one_after_the_other_and_hangups_are_one_more() -> None:
    async with operating() as running:
        first = asyncio.create_task(running.ask("reload"))
        await running.cluster.asked_for("reload")
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGUSR1)
        await running.cluster.asked_for("reload", "stacks")
        # Who is refused changes nothing.
        with pytest.raises(ProtocolError, match=r"^a reload is under way already$"):
            await running.ask("reload")
        running.cluster.reloaded.set()
        text = "reloaded: 2 workers are new"
        found = {"replaced": 2, "filled": 0, "reason": "", "text": text}
        assert await first == found
        await running.cluster.asked_for("reload", "stacks", "reload")
        assert await running.ask("recycle") == found


@pytest.mark.logs(
    "reload-asked", "resize-asked", "signal-refused", "stop-asked", "worker-stacks"
)
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
        signal.raise_signal(signal.SIGUSR1)
        await running.cluster.asked_for("reload", "resize 3", "resize 1", "stacks")
        assert await running.ask("stacks") == {"stacks": {"0": "zero\n", "1": "one\n"}}
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
        "stacks of worker 0:",
        "stacks of worker 1:",
        (
            "cluster app: asked to end by SIGTERM: workers finish their connections; when "
            "asked again, it ends at once"
        ),
    ]
    shown = [r.stack_info for r in caplog.records if r.stack_info]
    assert shown == ["    zero", "    one"]


@pytest.mark.logs("order-failed")
async def test_an_order_that_fails_is_logged_but_not_what_the_cluster_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = [ResizeError(crash_with(exit_code=3, signal=None)), RuntimeError("no")]
    async with operating() as running:

        async def fail(workers: int) -> None:
            await FakeCluster.resize(running.cluster, workers)
            raise errors[0]

        running.cluster.resize = fail  # type: ignore[method-assign]
        signal.raise_signal(signal.SIGTTIN)
        await running.cluster.asked_for("resize 3")
        with pytest.raises(ProtocolError, match="exited with status 3"):
            await running.ask("resize", workers=4)
        assert told(caplog) == []
        del errors[0]
        signal.raise_signal(signal.SIGTTIN)
        await running.cluster.asked_for("resize 3", "resize 4", "resize 5")
    assert told(caplog) == ["an order to cluster app has failed"]
    assert "RuntimeError: no" in caplog.text


async def test_a_client_asks_for_the_stacks_of_a_slot() -> None:
    async with operating() as running:
        assert await running.ask("stacks", slot=1) == {"stacks": {"1": "one\n"}}
        with pytest.raises(ProtocolError, match=r"^a server has no jobs: name a slot"):
            await running.ask("stacks", job=1)
        text = "^a profile is of the jobs of a pool, and a server has none: 'asyncpool stacks'"
        with pytest.raises(ProtocolError, match=text):
            await running.ask("profile")
        killed = await running.ask("kill", slot=1)
        assert killed == {"text": "the worker in slot 1 was killed"}
        recycled = await running.ask("recycle", slot=0)
        assert recycled == {"text": "the worker in slot 0 is being replaced"}
        await running.cluster.asked_for("stacks", "kill 1", "retire 0")


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


@pytest.mark.logs("no-control")
@pytest.mark.parametrize("name", [None, "mine"])
async def test_where_no_control_socket_can_be_it_serves_without(
    name: str | None, runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (runtime / "asyncpool").touch()
    async with operating(control=name) as running:
        assert running.operation.control_path is None
    [text] = told(caplog)
    assert text.startswith("cluster app: there is no control socket, so commands ")
    # A path is the way out; it need be no name.
    path = f"{runtime}/my app.sock"
    async with operating(control=path) as running:
        assert running.operation.control_path == path
        assert running.operation.which == f"--control {path}"
    async with operating(control="") as running:
        assert running.operation.control_path is None
    assert len(told(caplog)) == 1


# The service manager.


class Manager:
    """Stands for systemd."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(address.replace("@", "\0", 1))
        self.sock.setblocking(False)
        self.environment = {"NOTIFY_SOCKET": address}

    async def heard(self) -> list[str]:
        loop = asyncio.get_running_loop()
        lines = (await loop.sock_recv(self.sock, 4096)).decode().split("\n")
        return [line for line in lines if not line.startswith("MONOTONIC_USEC=")]


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Manager]:
    if request.param == "abstract" and not Path("/proc/self/net/unix").exists():
        pytest.skip("only Linux has abstract sockets")
    abstract = f"@asyncpool-test-{os.getpid()}"
    found = Manager(abstract if request.param == "abstract" else f"{runtime}/notify")
    monkeypatch.setenv("NOTIFY_SOCKET", found.environment["NOTIFY_SOCKET"])
    with found.sock:
        yield found


LINE = "STATUS=1 of 2 workers, 3 connections, 0 restarts"


async def test_the_watchdog_hears_of_a_cluster_that_serves_or_drains(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    heard = manager.heard
    async with operating() as running:
        assert await heard() == ["READY=1", LINE]
        assert await heard() == ["WATCHDOG=1"]
        assert await heard() == [LINE]
        running.cluster.state = RunState.BROKEN
        none = LINE.replace("1 of", "0 of")
        while await heard() != [none]:
            pass
        # From here on there are only lines, until it serves again.
        for _ in range(3):
            assert await heard() == [none]
        running.cluster.state = RunState.RUNNING
        while await heard() != ["WATCHDOG=1"]:
            pass
        running.cluster.reloaded.set()
        signal.raise_signal(signal.SIGHUP)
        while await heard() != ["RELOADING=1", "STATUS=reloading"]:
            pass
        while await heard() != ["READY=1", LINE]:
            pass
        signal.raise_signal(signal.SIGTERM)
        while await heard() != ["STOPPING=1", "STATUS=draining"]:
            pass
        for _ in range(3):
            assert await heard() == ["WATCHDOG=1"]


async def test_a_reload_has_its_time_and_a_text_is_one_line(manager: Manager) -> None:
    with closing(Notifier(manager.environment)) as notifier:
        before = time.monotonic_ns() // 1000
        notifier.reloading()
        after = time.monotonic_ns() // 1000
        _, stamp, _ = manager.sock.recv(4096).decode().split("\n")
        name, _, microseconds = stamp.partition("=")
        assert name == "MONOTONIC_USEC"
        assert before <= int(microseconds) <= after
        notifier.tell("2 of 2\nworkers", "READY=1")
        assert await manager.heard() == ["READY=1", "STATUS=2 of 2 workers"]


async def test_nobody_waits_for_a_manager_that_does_not_read_or_is_not_there(
    manager: Manager,
) -> None:
    with closing(Notifier(manager.environment)) as notifier:
        for _ in range(10_000):
            notifier.tell("", "WATCHDOG=1")
    notifier.tell("", "WATCHDOG=1")  # nor after the end
    assert await manager.heard() == ["WATCHDOG=1"]
    for address in (None, "", "vsock:2:1234", "/no/such/socket"):
        environment = {} if address is None else {"NOTIFY_SOCKET": address}
        with closing(Notifier(environment)) as notifier:
            assert notifier.listens is (address == "/no/such/socket")
            notifier.tell("fine", "READY=1")  # must not raise


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid() + 1)}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
async def test_the_watchdog(environment: dict[str, str], seconds: float | None) -> None:
    assert watchdog_interval(environment) == seconds


# Signals.


ORDERS: dict[int, tuple[object, ...]] = {
    signal.SIGTERM: ("stop", 15),
    signal.SIGINT: ("stop", 2),
    signal.SIGHUP: ("reload",),
    signal.SIGTTIN: ("resize", 1),
    signal.SIGTTOU: ("resize", -1),
    signal.SIGUSR1: ("dump",),
    signal.SIGQUIT: ("quit",),
}


class Notes:
    """Orders that are noted."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()
        note = self.news.put_nowait
        self.obeyed = partial(
            obeyed,
            {number: partial(note, order) for number, order in ORDERS.items()},
            refuse=lambda number: note(("refuse", int(number))),
        )


# What ends or stops a process that has an unsound state, or does nothing by default.
SPARED = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGCONT),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
    *(signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG),
}


async def test_each_signal_is_an_order_or_refused_if_it_would_end_the_process() -> None:
    notes = Notes()
    others = signal.valid_signals() - SPARED - ORDERS.keys()
    others = {it for it in others if signal.getsignal(it) is signal.SIG_DFL}
    assert {signal.SIGXCPU, signal.SIGTRAP, signal.SIGSYS} < others
    orders = ORDERS | {int(number): ("refuse", int(number)) for number in others}
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with notes.obeyed():
        for number, order in orders.items():
            assert signal.getsignal(number) is not signal.SIG_DFL, "it ends the tests"
            signal.raise_signal(number)
            async with patience():
                assert await notes.news.get() == order
        for number in SPARED:
            assert signal.getsignal(number) is before[number]
    assert {it: signal.getsignal(it) for it in signal.valid_signals()} == before
    assert name_of(signal.SIGTERM) == "SIGTERM"
    assert name_of(1000) == "signal 1000"
    if hasattr(signal, "SIGRTMIN"):
        assert name_of(signal.SIGRTMIN + 2) == "SIGRTMIN+2"
        assert name_of(signal.SIGRTMAX) == "SIGRTMAX"


async def test_what_is_ignored_or_has_a_handler_stays_so() -> None:
    notes, calls = Notes(), list[int]()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    other = signal.signal(signal.SIGUSR2, lambda number, _: calls.append(number))
    try:
        with notes.obeyed():
            for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGUSR1):
                signal.raise_signal(number)
            async with patience():
                assert await notes.news.get() == ("dump",)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.signal(signal.SIGUSR2, other)
    assert calls == [signal.SIGUSR2] * 2


async def test_none_changes_how_a_process_ends_unless_by_an_exception() -> None:
    before = {it: signal.getsignal(it) for it in signal.valid_signals()}
    with pytest.raises(LookupError), Notes().obeyed(is_last=lambda: True):
        raise LookupError
    assert {it: signal.getsignal(it) for it in signal.valid_signals()} == before
    try:
        with Notes().obeyed(is_last=lambda: True):
            pass
        for number in ORDERS:
            signal.raise_signal(number)
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


async def test_only_the_main_thread_gets_signals() -> None:
    async def obey() -> None:
        with Notes().obeyed():
            pass

    why = "signals reach the main thread only: run the cluster there"
    with pytest.raises(RuntimeError, match=why):
        await asyncio.to_thread(asyncio.run, obey())
