"""The commands where some of the clusters cannot tell how they are."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, Self

import pytest
from rich.console import Console

from asyncpool._cli import orders
from asyncpool._cli.status import live_view, sparkline, status_command, status_view
from asyncpool._engine.machine import is_stopped
from asyncpool._observe.control.client import ControlClient
from asyncpool._observe.control.protocol import Request
from asyncpool._observe.history import History
from asyncpool.errors import ProtocolError
from asyncpool.stats import RunningJob, SlotStats
from tests.helpers.fake_program import FakeProgram
from tests.helpers.patience import PATIENCE
from tests.helpers.serving import until
from tests.helpers.told_lines import (
    REQUEST,
    cluster_status,
    crashed,
    function,
    job,
    line,
    pool_status,
    slot,
)
from tests.helpers.told_pool import NODE

ENDED = ConnectionResetError("it has ended")
SILENT = "has not answered for 10 s: its process is stopped, or hangs"


class Scripted:
    """A client of a cluster whose answers are written down beforehand."""

    answers: dict[str, list[Exception | None]]

    pid: int | None = None

    def __init__(self, path: str, *, within: float) -> None:
        assert within == 10.0
        self._name = Path(path).stem
        if self._name == "gone":
            raise ConnectionRefusedError
        if self._name == "full":
            raise TimeoutError
        self._next = iter(self.answers[self._name])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: Request, *, within: float | None = None) -> dict[str, Any]:
        assert (request, within) == (Request("status"), 10.0)
        error = next(self._next)
        if error is not None:
            raise error
        return {"name": self._name}


@pytest.fixture
def clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[dict[str, list[Exception | None]]]:
    """Return the answers of all clusters that there are; ``None`` is a good one."""
    Scripted.answers = {}
    monkeypatch.setattr(orders, "ControlClient", Scripted)
    monkeypatch.setattr(orders, "live_names", lambda: [*Scripted.answers])
    with tempfile.TemporaryDirectory() as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield Scripted.answers


def status(*args: str) -> int:
    """Run the command, and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        status_command.main(["--json", *args])
    code = ended.value.code
    assert isinstance(code, int)
    return code


Answers = dict[str, list[Exception | None]]


def names(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """Return who was shown, and what was told of the others."""
    shown = capsys.readouterr()
    return (
        [json.loads(line)["name"] for line in shown.out.splitlines()],
        shown.err.splitlines(),
    )


def test_who_does_not_answer_hides_nobody(
    clusters: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters |= {
        "blue": [TimeoutError()],
        "ended": [ENDED],
        "full": [],
        "gone": [],
        "green": [None],
        "odd": [ProtocolError("no such action")],
    }
    assert status() == 1
    assert names(capsys) == (
        ["green"],
        [
            f"asyncpool: full {SILENT}",
            (
                "asyncpool: there is no pool or server named gone; there is "
                "blue, ended, full, gone, green, odd"
            ),
            f"asyncpool: blue {SILENT}",
            "asyncpool: ended has ended",
            "asyncpool: odd cannot tell how it is: no such action",
        ],
    )


def test_who_ends_while_it_is_watched_does_not_end_the_others(
    clusters: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters |= {"blue": [None, ENDED], "green": [None, None, None, ENDED]}
    assert status("--watch", "--every", "0.1") == 0
    assert names(capsys) == (["blue", "green", "green", "green"], [])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TimeoutError(), SILENT),
        (ProtocolError("no such action"), "cannot tell how it is: no such action"),
    ],
)
def test_who_cannot_be_watched_any_more_is_left_out(
    error: Exception, told: str, clusters: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters |= {"blue": [None, error], "green": [None, None, ENDED]}
    assert status("--watch", "--every", "0.1") == 1
    assert names(capsys) == (["blue", "green", "green"], [f"asyncpool: blue {told}"])


def test_who_is_watched_is_one_that_is_meant(
    clusters: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters |= {"blue": [TimeoutError()], "green": [None]}
    assert status("--name", "green") == 0
    assert status("blue") == 1
    assert status("--control", "./blue") == 1
    assert names(capsys) == (
        ["green"],
        [f"asyncpool: blue {SILENT}", f"asyncpool: ./blue {SILENT}"],
    )


# Commands that go to a process that does nothing.

LISTENS = """
import os, signal, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
sock.listen()
print("here", flush=True)
os.kill(os.getpid(), signal.SIGSTOP) if sys.argv[2] == "stops" else signal.pause()
"""


@contextmanager
def one_that(does: str, path: str) -> Generator[int]:
    """Have a process listen, and stop or hang then; yield its number."""
    command = [sys.executable, "-c", LISTENS, path, does]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        # Whoever waits for it without an end has one then.
        bound = threading.Timer(PATIENCE, process.kill)
        bound.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            until(lambda: is_stopped(process.pid) is (does == "stops"), f"it {does}")
            yield process.pid
        finally:
            bound.cancel()
            bound.join()
            process.kill()


@pytest.mark.usefixtures("clusters")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who that is")
@pytest.mark.parametrize(
    "command", ["status", "reload", "resize 3", "stop", "stop --now"]
)
@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("stops", "process {pid} is stopped; kill -CONT {pid} has it go on, "),
        ("hangs", "process {pid} hangs, or has too much to do; "),
    ],
)
def test_whoever_does_nothing_is_told_of(
    command: str,
    does: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(orders, "ControlClient", ControlClient)
    monkeypatch.setattr(orders, "PATIENCE", 0.01)
    name, *args = command.split()
    commands = {"status_command": status_command, **vars(orders)}
    path = str(Path(os.environ["XDG_RUNTIME_DIR"], "sock"))
    with one_that(does, path) as pid:
        found = commands[f"{name}_command"]
        with pytest.raises(SystemExit) as ended:
            found.main([*args, "--control", path], standalone_mode=True)
        who = path if name == "status" else "it"
        end = f"kill -KILL {pid} ends it and its workers"
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        f"asyncpool: {who} has not answered for 0.01 s: {told.format(pid=pid)}{end}\n"
    )


# The requests that a server answers.


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


def requests(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        orders.requests_command.main([*args])
    code = ended.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.usefixtures("runtime")
def test_open_requests_are_told_with_where_they_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    in_thread = REQUEST | {"method": "POST", "path": "/\x1b[2J\n", "stack": None}
    with FakeProgram("web") as web:
        web.answers |= {"status": cluster_status()}
        web.answers["requests"] = {"requests": [REQUEST, in_thread]}
        assert requests("web") == 0
        assert capsys.readouterr().out.splitlines() == [
            "GET /orders?day=1 for 12.2 s, from 10.0.0.7:5123, slot 1",
            '  File "shop.py", line 9 in orders',
            '  File "db.py", line 4 in ask',
            "POST /\\x1b[2J\\n for 12.2 s, from 10.0.0.7:5123, slot 1",
        ]
        assert requests("--json") == 0
        [found] = json.loads(capsys.readouterr().out).values()
        assert found[0] == REQUEST
        web.answers["requests"] = {"requests": []}
        assert requests() == 0
        assert capsys.readouterr().out == "no request is open\n"


@pytest.mark.usefixtures("runtime")
def test_a_pool_has_no_requests(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeProgram("shop") as shop:
        shop.answers["status"] = pool_status()
        assert requests() == 1
        assert capsys.readouterr().err == (
            "asyncpool: a pool has no requests: 'asyncpool stacks' shows its jobs\n"
        )


# What a terminal shows of the last minute: rates, latencies, CPU, crashes.


def told(at: float, ok: int = 0, *slots: SlotStats, **more: Any) -> dict[str, Any]:
    """Return a line of a pool that has done *ok* jobs so far."""
    return line(at, pool_status(functions=[function("f", ok)], slots=slots), **more)


def test_rates_and_latencies() -> None:
    history = History()
    history.add(told(0.0, 5, slot(0, cpu=1.0)))
    jobs = [job(number, 0.5, run=number / 100 - 0.01) for number in range(1, 101)]
    history.add(told(0.5, 205, slot(0, cpu=1.25), jobs=jobs))
    history.add(told(1.5, 205, slot(0, cpu=1.75)))
    first, second = history.points()
    assert first["rate"] == 400.0
    assert (first["p50"], first["p99"]) == pytest.approx((0.5, 0.99))
    assert (second["rate"], second["p50"], second["p99"]) == (0.0, None, None)
    assert second["cpu"] == {0: 0.5}


def test_only_the_last_minute_is_shown() -> None:
    history = History()
    for at in range(200):
        history.add(told(float(at), ok=at if at < 130 else 129))
    [row] = [row for row in shown_of(history, pool_status()) if "jobs/s" in row]
    assert row.split() == ["jobs/s", "\N{LOWER ONE EIGHTH BLOCK}" * 60, "0"]


def test_nodes_are_rows_of_the_status() -> None:
    silent = dataclasses.replace(NODE, name="10.0.0.2", first_slot=10_000, silent=40.0)
    nodes = (NODE, dataclasses.replace(silent, suspected=True, clock_error=None))

    def shown(width: int, *nodes: Any) -> list[str]:
        console = Console(width=width, record=True, file=StringIO())
        console.print(status_view(pool_status(nodes=nodes, slots=[slot(0)])))
        rows = console.export_text().splitlines()
        return [" ".join(row.split()) for row in rows]

    lines = shown(80, *nodes)
    [head] = [row for row in lines if row.startswith("node ")]
    at = lines.index(head)
    assert lines[at + 1 : at + 3] == [
        "10.0.0.1 ready 0+ 3 2 3/4 5 1:02 5 MB",
        "10.0.0.2 silent for 40 s 10000+ 3 2 3/4 5 1:02 5 MB",
    ]
    # Whatever it is called, all of the name is there.
    named = dataclasses.replace(NODE, name="ray-worker-17.cluster.example.com")
    lines = shown(80, named, silent)
    first = next(n for n, row in enumerate(lines) if row.startswith("ray-w"))
    name = "".join(row.split()[0] for row in lines[first : first + 9])
    assert name.startswith(named.name)
    assert "node" not in " ".join(shown(80))


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [
        ([], 3, "   "),
        ([0.0, 0.0], 3, " ▁▁"),
        ([0.0, 4.0, 8.0], 3, "▁▅█"),
        ([8.0, None, 4.0], 4, " █ ▅"),
        ([9.0, 1.0, 2.0], 2, "▅█"),
    ],
)
def test_sparklines(values: list[float | None], width: int, shown: str) -> None:
    assert sparkline(values, width) == shown


def shown_of(history: History, status: dict[str, Any]) -> list[str]:
    console = Console(width=130, file=io.StringIO(), color_system=None)
    with console.capture() as shown:
        console.print(live_view(status, history))
    return [line.rstrip() for line in shown.get().splitlines()]


def test_nodes_and_clients_that_are_lost_are_shown() -> None:
    shown = shown_of(History(), pool_status(lost_nodes=1, refused_clients=2))
    assert shown[2] == "lost nodes: 1   refused clients: 2"


def test_a_pool_as_a_terminal_shows_it() -> None:
    running = tuple(
        RunningJob(job_id=number, function="shop.resize", attempt=2, seconds=1.25)
        for number in (9, 8)
    )
    busy = slot(0, running="shop.resize", pid=77, jobs=1234, uptime=62.0)
    figures: dict[str, Any] = {"busy": 1, "queued": 17, "oldest_queued": 0.25}
    figures |= {"completed": 1000, "failed": 2, "cancelled": 1, "timeouts": 3}
    crash = crashed(
        0.0,
        slot=1,
        kind="out of memory",
        signal="SIGKILL",
        stderr_tail=["so", "last words"],
    )

    def status(ok: int, cpu: float) -> dict[str, Any]:
        first = dataclasses.replace(busy, cpu=cpu, running=running)
        done = [function("shop.resize", ok, raised=10)]
        slots = [first, slot(1, pid=None)]
        return pool_status(functions=done, slots=slots, crashes=4, **figures)

    history = History()
    for at, last in ((1.0, status(950, 30.0)), (2.0, status(990, 30.5))):
        history.add(line(at, last, events=[crash], jobs=[job(9, 0.0, run=0.002)]))
    lines = shown_of(history, status(990, 30.5))
    assert lines[:2] == [
        "shop  pid 400  running  pool  --name shop",
        (
            "1 of 2 workers ready   17 queued, the oldest for 0.25 s   1,003 jobs ended: "
            "10 raised, 2 failed, 3 late   4 crashes   23 MB"
        ),
    ]
    assert lines[3].split()[:7] == ["0", "77", "busy", "1,234", "1:02", "50%", "11"]
    assert lines[3].endswith("shop.resize (job 9, attempt 2) and 1 more")
    assert lines[5].split() == ["jobs/s", "█", "40"]
    assert lines[6].split() == ["p50", "█", "12", "ms"]
    assert "slot 1  out of memory, SIGKILL in shop.resize: last words" in lines[8]


def test_a_server_as_a_terminal_shows_it() -> None:
    def status(at: float, *counts: int) -> dict[str, Any]:
        times = {"bounds": [0.001, 0.002], "counts": [*counts], "total": 1.0}
        found = cluster_status(handed=int(10 * at), responses={"2xx": times})
        found["requests"] |= {"open": 3, "refused": 0, "cut": 0}
        found["slots"][0] |= {"cpu": at / 4, "requests": {"responses": {"2xx": times}}}
        return found

    history = History()
    for at, counts in ((1.0, (100, 0)), (3.0, (100, 400))):
        history.add(line(at, status(at, *counts)))
    lines = [row.split() for row in shown_of(history, status(3.0, 100, 400))]
    assert lines[3][-4:] == ["p99", "up", "CPU", "memory"]
    assert lines[4][-6:] == ["1.99", "ms", "1:00", "25%", "11", "MB"]
    assert lines[5] == ["requests/s", "█", "200"]
    assert lines[7] == ["p99", "█", "1.99", "ms"]
    assert lines[8] == ["connections/s", "█", "10"]
    history.add(line(4.0, cluster_status(handed=45)))
    quiet = shown_of(history, cluster_status(handed=45))
    assert quiet[3].split()[6] == "-"
    assert quiet[4].split() == ["connections/s", "▆█", "15"]
