"""``asyncpool status`` where some of the clusters cannot tell how they are."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from asyncpool._cli import cluster_commands
from asyncpool._cli.cluster_commands import status_command
from asyncpool._core.control_protocol import Request
from asyncpool.errors import ProtocolError

ENDED = ConnectionResetError("the cluster has ended")


class Scripted:
    """A client of a cluster whose answers are written down beforehand."""

    answers: dict[str, list[Exception | None]]

    def __init__(self, path: str) -> None:
        self._name = Path(path).stem
        if self._name == "gone":
            raise ConnectionRefusedError
        self._next = iter(self.answers[self._name])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
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
    monkeypatch.setattr(cluster_commands, "ControlClient", Scripted)
    monkeypatch.setattr(cluster_commands, "live_names", lambda: [*Scripted.answers])
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
        "gone": [],
        "green": [None],
        "odd": [ProtocolError("no such action")],
    }
    assert status() == 1
    assert names(capsys) == (
        ["green"],
        [
            (
                "asyncpool: there is no cluster named gone; there is "
                "blue, ended, gone, green, odd"
            ),
            "asyncpool: blue has not answered for 10 s",
            "asyncpool: ended has ended",
            "asyncpool: odd cannot tell how it is: no such action",
        ],
    )


def test_who_ends_while_it_is_watched_does_not_end_the_others(
    clusters: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters |= {"blue": [None, ENDED], "green": [None, None, None, ENDED]}
    assert status("--watch", "--every", "0.001") == 0
    assert names(capsys) == (["blue", "green", "green", "green"], [])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TimeoutError(), "has not answered for 10 s"),
        (ProtocolError("no such action"), "cannot tell how it is: no such action"),
    ],
)
def test_who_cannot_be_watched_any_more_is_left_out(
    error: Exception, told: str, clusters: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters |= {"blue": [None, error], "green": [None, None, ENDED]}
    assert status("--watch", "--every", "0.001") == 1
    assert names(capsys) == (["blue", "green", "green"], [f"asyncpool: blue {told}"])


def test_who_is_watched_is_one_that_is_meant(
    clusters: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters |= {"blue": [TimeoutError()], "green": [None]}
    assert status("--name", "green") == 0
    assert status("--name", "blue") == 1
    assert status("--control", "./blue") == 1
    assert names(capsys) == (
        ["green"],
        [
            "asyncpool: blue has not answered for 10 s",
            "asyncpool: ./blue has not answered for 10 s",
        ],
    )
