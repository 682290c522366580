"""The dashboard finds programs, watches them, and sees them end and come back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from asyncpool._cli.dashboard import asking, web as programs
from asyncpool._cli.dashboard.asking import ask
from asyncpool._cli.dashboard.web import Programs
from asyncpool._core.control.control_protocol import Request
from asyncpool._runtime.control.paths import path_of, private_folder
from asyncpool.errors import ProtocolError
from tests.helpers.fake_program import FakeProgram
from tests.helpers.patience import patience
from tests.helpers.told_lines import cluster_status, line, pool_status

pytestmark = pytest.mark.asyncio

LINE = line(0.0, pool_status())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(programs, "_LOOK", 0.01)
    return tmp_path


class Seen:
    """What a page would have been told by now."""

    def __init__(self) -> None:
        self.change = asyncio.Event()
        self.programs = Programs(self.change.set)

    async def until(self, condition: Callable[[list[dict[str, Any]]], Any]) -> None:
        """Wait until the lines of the programs are as wanted."""
        async with patience():
            while not condition(self.programs.lines()):
                self.change.clear()
                await self.change.wait()


@pytest_asyncio.fixture
async def seen() -> AsyncIterator[Seen]:
    found = Seen()
    task = asyncio.create_task(found.programs.run())
    yield found
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_it_finds_pools_and_servers_by_name(seen: Seen) -> None:
    with (
        FakeProgram("web", line(0.0, cluster_status())) as web,
        FakeProgram("shop", LINE),
    ):
        await seen.until(lambda lines: [each["lives"] for each in lines] == [True] * 2)
        assert [
            (each["name"], each["kind"], each["problem"])
            for each in seen.programs.lines()
        ] == [("shop", "pool", ""), ("web", "cluster", "")]
        assert web.asked == [{"action": "watch", "every": 0.5, "jobs": 100}]


async def test_it_takes_in_what_it_is_told(seen: Seen) -> None:
    with FakeProgram("shop", LINE) as shop:
        await seen.until(lambda lines: lines and lines[0]["queued"] == 0)
        shop.tell(line(0.5, pool_status(queued=17)))
        await seen.until(lambda lines: lines[0]["queued"] == 17)
        program = seen.programs.get("shop")
        assert program is not None
        assert program.history.cursor == 2


@pytest.mark.parametrize("killed", [False, True])
async def test_a_program_ends_and_comes_back(seen: Seen, *, killed: bool) -> None:
    first = FakeProgram("shop", LINE)
    await seen.until(lambda lines: lines and lines[0]["lives"])
    first.end(leave_socket=killed)
    await seen.until(lambda lines: not lines[0]["lives"])
    assert seen.programs.lines()[0]["problem"] == ""
    with FakeProgram("shop", line(9.0, pool_status(pid=401))):
        await seen.until(lambda lines: lines[0]["lives"])
        assert seen.programs.lines()[0]["pid"] == 401


async def test_a_program_that_is_gone_for_long_is_forgotten(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_KEPT", 0.0)
    with FakeProgram("shop", LINE):
        await seen.until(lambda lines: lines and lines[0]["lives"])
    await seen.until(lambda lines: not lines)


async def test_a_socket_that_a_killed_program_has_left_is_no_program(
    seen: Seen,
) -> None:
    FakeProgram("dead").end(leave_socket=True)
    with FakeProgram("shop", LINE):
        await seen.until(lambda lines: lines)
        assert [each["name"] for each in seen.programs.lines()] == ["shop"]
    Path(path_of("dead")).unlink()
    await seen.until(lambda lines: seen.programs.get("dead") is None or lines)


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"error": "16 watch"}, "It cannot be watched: 16 watch."),
        ("{", "It cannot be watched: a line of the control socket is no JSON."),
        (
            {"at": 0.0, "status": {"slots": []}},
            "Its figures are of another version of asyncpool: KeyError('functions').",
        ),
    ],
)
async def test_one_that_cannot_be_shown_says_why(
    seen: Seen, told: Any, problem: str
) -> None:
    with FakeProgram("shop", told):
        await seen.until(lambda lines: lines and lines[0]["problem"])
        assert seen.programs.lines()[0] == {
            "name": "shop",
            "lives": False,
            "problem": problem,
        }


async def test_one_that_does_not_answer_is_told_of(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_PATIENCE", 0.05)
    monkeypatch.setattr(programs, "_EVERY", 0.05)
    with FakeProgram("shop", LINE):
        await seen.until(
            lambda lines: (
                lines
                and lines[0]["problem"]
                == "It does not answer: its process is stopped, or hangs."
            )
        )


async def test_a_folder_that_others_may_enter_is_told_of(
    seen: Seen, folder: Path
) -> None:
    private_folder(make=True).chmod(0o755)
    await seen.until(lambda _: seen.programs.problem)
    assert seen.programs.problem == (
        f"others may enter {folder}/asyncpool: its permissions are 755, and must be 700: "
        f"chmod 700 {folder}/asyncpool"
    )


async def test_asking_has_all_ends() -> None:
    with FakeProgram("shop") as shop:
        path = path_of("shop")
        shop.answers["stacks"] = {"stacks": {"0": "File ..."}}
        assert await ask(path, Request("stacks")) == {"stacks": {"0": "File ..."}}
        shop.answers["kill"] = {"error": "no slot 9"}
        with pytest.raises(ProtocolError, match=r"^no slot 9$"):
            await ask(path, Request("kill", slot=9))
        with pytest.raises(TimeoutError):
            await ask(path, Request("watch"), within=0.05)
    with pytest.raises(FileNotFoundError):
        await ask(path, Request("stacks"))


async def test_the_socket_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def somebody(_: socket.socket) -> int:
        return 12345

    monkeypatch.setattr(asking, "peer_uid", somebody)
    with (
        FakeProgram("shop"),
        pytest.raises(PermissionError, match=r"^user 12345 listens at .*shop\.sock$"),
    ):
        await ask(path_of("shop"), Request("stacks"))


async def test_watching_ends_with_the_program() -> None:
    with FakeProgram("shop", LINE) as shop:
        async with contextlib.aclosing(
            asking.watch(path_of("shop"), every=0.5, jobs=1)
        ) as found:
            assert await anext(found) == LINE
            shop.end()
            with pytest.raises(ConnectionResetError, match=r"^the program has ended$"):
                await anext(found)
