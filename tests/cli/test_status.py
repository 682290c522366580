"""The commands where some of the clusters cannot tell how they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from asyncpool._cli.live import order_commands, reaching
from asyncpool._cli.live.status_command import status_command
from asyncpool._core.control.control_protocol import Request
from asyncpool._runtime.base.machine import is_stopped
from asyncpool._runtime.control.client import ControlClient
from asyncpool.errors import ProtocolError
from tests.helpers.patience import PATIENCE
from tests.helpers.serving import until

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

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def ask(self, request: Request, *, within: float | None = None) -> dict[str, Any]:
        assert (request, within) == (Request("status"), 10.0)
        error = next(self._next)
        if error is not None:
            raise error
        return {"name": self._name}


@pytest.fixture(autouse=True)
def clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[dict[str, list[Exception | None]]]:
    """Return the answers of all clusters that there are; ``None`` is a good one."""
    Scripted.answers = {}
    monkeypatch.setattr(reaching, "ControlClient", Scripted)
    monkeypatch.setattr(reaching, "live_names", lambda: [*Scripted.answers])
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
        [
            f"asyncpool: blue {SILENT}",
            f"asyncpool: ./blue {SILENT}",
        ],
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
    monkeypatch.setattr(reaching, "ControlClient", ControlClient)
    monkeypatch.setattr(reaching, "PATIENCE", 0.01)
    monkeypatch.setattr("asyncpool._cli.live.status_command.PATIENCE", 0.01)
    name, *args = command.split()
    commands = {"status_command": status_command, **vars(order_commands)}
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
