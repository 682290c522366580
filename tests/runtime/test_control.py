"""The control socket: who may use it, where it is, and what it answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import socket
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.control.control_protocol import MAX_REQUEST, Request
from asyncpool._runtime.control import (
    client as control_client,
    paths as control_paths,
    server as control_server,
)
from asyncpool._runtime.control.client import ControlClient
from asyncpool._runtime.control.paths import (
    live_names,
    path_of,
    peer_uid,
    private_folder,
)
from asyncpool._runtime.control.server import ControlSocket
from asyncpool.errors import ProtocolError
from tests.helpers.patience import PATIENCE, patience

US = os.geteuid()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have a folder for control sockets; their paths must be short."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


@pytest.fixture
def tmp(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a folder in place of /tmp, and no other."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(control_paths, "_TMP", runtime)
    return runtime


def test_the_folder_is_made_for_its_user_alone(runtime: Path) -> None:
    assert private_folder(make=False) == runtime / "asyncpool"
    assert os.listdir(runtime) == []
    folder = private_folder(make=True)
    assert folder == private_folder(make=True) == runtime / "asyncpool"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_without_a_runtime_folder_it_is_in_tmp(tmp: Path) -> None:
    assert private_folder(make=True) == tmp / f"asyncpool-{US}"


@pytest.mark.parametrize("value", ["relative", "/no/such/folder", ""])
def test_a_runtime_folder_that_is_none(
    value: str, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    assert private_folder(make=False).parent == tmp


def test_a_runtime_folder_of_somebody_else(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp / "theirs"))
    (tmp / "theirs").mkdir()
    assert private_folder(make=False).parent == tmp / "theirs"
    monkeypatch.setattr(os, "geteuid", lambda: US + 1)
    assert private_folder(make=False) == tmp / f"asyncpool-{US + 1}"


WAY_OUT = "have it removed, or set XDG_RUNTIME_DIR to a folder of your own"


@pytest.mark.parametrize("make", [True, False])
def test_a_folder_that_is_a_link_is_a_trap(tmp: Path, make: bool) -> None:  # noqa: FBT001
    (tmp / "elsewhere").mkdir(mode=0o700)
    trap = tmp / f"asyncpool-{US}"
    trap.symlink_to(tmp / "elsewhere")
    error = f"{trap} is no folder: somebody else has taken the name; {WAY_OUT}"
    with pytest.raises(PermissionError, match=f"^{re.escape(error)}$"):
        private_folder(make=make)


def test_a_folder_that_others_may_enter(tmp: Path) -> None:
    folder = private_folder(make=True)
    folder.chmod(0o710)
    error = f"others may enter {folder}: its permissions are 710, and must be 700: "
    error += f"chmod 700 {folder}"
    with pytest.raises(PermissionError, match=f"^{re.escape(error)}$"):
        private_folder(make=True)


def test_a_folder_of_somebody_else(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp / f"asyncpool-{US + 1}"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: US + 1)
    error = f"{folder} belongs to user {US}, not to {US + 1}; {WAY_OUT}"
    with pytest.raises(PermissionError, match=f"^{re.escape(error)}$"):
        private_folder(make=True)


def test_where_a_cluster_is(runtime: Path) -> None:
    assert path_of("app") == str(runtime / "asyncpool" / "app.sock")
    assert path_of("./x") == "./x"
    assert os.listdir(runtime) == []
    path_of("app", make=True)
    assert os.listdir(runtime) == ["asyncpool"]
    error = (
        "'..' is no name that commands find, which is 1 to 64 of A-Z, a-z, 0-9, '.', '-', '_' "
        "and ':', the first of them neither '.' nor '-'"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        path_of("..")


def test_live_names(runtime: Path) -> None:
    assert live_names() == []
    socks = []
    for name in ("b", "a", "dead"):
        socks.append(sock := socket.socket(socket.AF_UNIX))
        sock.bind(path_of(name, make=True))
        sock.listen(0)
    socks.pop().close()
    (runtime / "asyncpool" / "file.sock").touch()
    assert live_names() == ["a", "b"]
    # Nobody accepts, and no other connection fits into the backlog.
    busy = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for sock in busy:
        sock.setblocking(False)
        sock.connect_ex(path_of("a"))
    assert live_names() == ["a", "b"]
    for sock in (*socks, *busy):
        sock.close()


def test_who_is_at_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_uid(ours) == US


# The server.


async def echo(request: Request) -> dict[str, Any]:
    if request.action == "reload":
        raise RuntimeError("no such code")
    if request.action == "resize":
        raise ZeroDivisionError
    return {"you said": request.action}


@asynccontextmanager
async def serving(
    answer: Callable[[Request], Any] = echo, *, name: str = "app"
) -> AsyncIterator[str]:
    control = ControlSocket(path_of(name, make=True), answer)
    control.open()
    try:
        yield control.path
    finally:
        async with patience():
            await control.close()
        assert not Path(control.path).exists()


def ask(path: str, *requests: Request) -> list[dict[str, Any]]:
    with ControlClient(path, within=PATIENCE) as client:
        return [client.ask(request) for request in requests]


@pytest.mark.asyncio
async def test_requests_are_answered_in_turns(runtime: Path) -> None:
    async with patience(), serving() as path:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert live_names() == ["app"]
        asked = [Request("status"), Request("stop", now=True)]
        assert await asyncio.to_thread(ask, path, *asked) == [
            {"you said": "status"},
            {"you said": "stop"},
        ]


@pytest.mark.logs("command-failed")
@pytest.mark.asyncio
async def test_what_goes_wrong_is_an_error_of_the_clients(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "asyncpool")
    async with patience(), serving() as path:
        with pytest.raises(ProtocolError, match=r"^no such code$"):
            await asyncio.to_thread(ask, path, Request("reload"))
        with pytest.raises(ProtocolError, match=r"^ZeroDivisionError$"):
            await asyncio.to_thread(ask, path, Request("resize", 1))
        # And it goes on.
        assert await asyncio.to_thread(ask, path, Request("status"))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"rubbish\n{}", b'{"error": "a line of the control socket is no JSON"}\n'),
        (
            b"x" * (2 * MAX_REQUEST),
            b'{"error": "a line of the control socket is cut off or too long"}\n',
        ),
    ],
)
async def test_who_does_not_keep_to_the_protocol_is_sent_away(
    sent: bytes, error: bytes, runtime: Path
) -> None:
    async with patience(), serving() as path:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(sent)
        assert await reader.readline() == error
        with suppress(ConnectionResetError):  # what it had sent was not all read
            assert await reader.read() == b""
        writer.close()


@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans())
def test_whatever_a_client_sends_it_goes_on(lines: list[bytes], whole: bool) -> None:  # noqa: FBT001
    async def send(path: str) -> None:
        control = ControlSocket(path, echo)
        control.open()
        async with patience():
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"\n".join(lines) + b"\n" * whole)
            writer.write_eof()
            with suppress(ConnectionResetError):  # what it had sent was not all read
                for line in (await reader.read()).splitlines():
                    assert {"error"} == set(json.loads(line)) or b"you said" in line
            writer.close()
            assert await asyncio.to_thread(ask, path, Request("status"))
            await control.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(send(f"{folder}/control"))


@pytest.mark.logs("control-refused")
@pytest.mark.asyncio
async def test_another_user_is_refused(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control_server, "peer_uid", lambda _: US + 1)
    async with patience(), serving() as path:
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await asyncio.to_thread(ask, path, Request("status"))
    assert caplog.messages == [f"the control socket has refused user {US + 1}"]


@pytest.mark.logs("control-unknown-user")
@pytest.mark.asyncio
async def test_who_is_unknown_is_refused(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unknown(_: socket.socket) -> int:
        raise OSError("unknown")

    monkeypatch.setattr(control_server, "peer_uid", unknown)
    async with patience(), serving() as path:
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await asyncio.to_thread(ask, path, Request("status"))
    assert caplog.messages == [
        "the control socket cannot tell whose a connection is: unknown"
    ]


@pytest.mark.asyncio
async def test_a_server_of_another_user_is_not_asked(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "peer_uid", lambda _: US + 1)
    asked = []

    async def note(request: Request) -> dict[str, Any]:
        asked.append(request)
        return {}

    async with patience(), serving(note) as path:
        error = f"^user {US + 1} listens at {path}$"
        with pytest.raises(PermissionError, match=error):
            await asyncio.to_thread(ask, path, Request("stop"))
    assert asked == []


@pytest.mark.asyncio
async def test_there_is_a_most_of_clients(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "_MOST_CLIENTS", 2)
    async with patience(), serving() as path:
        clients = [await asyncio.open_unix_connection(path) for _ in range(2)]
        for reader, writer in clients:
            writer.write(Request("status").pack())
            assert await reader.readline()
        reader, writer = await asyncio.open_unix_connection(path)
        error = "2 clients are connected already, and there may be no more"
        assert json.loads(await reader.read()) == {"error": error}
        with pytest.raises(ProtocolError, match=f"^{error}$"):
            await asyncio.to_thread(ask, path, Request("status"))
        for _, writing in (*clients, (reader, writer)):
            writing.close()


@pytest.mark.asyncio
async def test_who_says_half_a_request_keeps_nobody_out(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "_LINE_TIMEOUT", 0.05)
    async with patience(), serving() as path:
        with ControlClient(path, within=PATIENCE) as quiet:
            first = await asyncio.to_thread(quiet.ask, Request("status"))
            halves = [await asyncio.open_unix_connection(path) for _ in range(31)]
            for _, writing in halves:
                writing.write(b'{"action": ')
            for reader, _ in halves:
                assert await reader.read() == b""
            assert await asyncio.to_thread(ask, path, Request("status")) == [first]
            # Who is silent between two requests may stay.
            assert await asyncio.to_thread(quiet.ask, Request("status")) == first
        for _, writing in halves:
            writing.close()


@pytest.mark.asyncio
async def test_no_answer_controls_a_terminal(runtime: Path) -> None:
    async def hostile(_: Request) -> dict[str, Any]:
        return {"text": "\x1b[2Jred\nblue", "rows": [{"\x07name": "\x9b1m"}, 3, None]}

    async def worse(_: Request) -> dict[str, Any]:
        raise ValueError("\x1b[2J")

    async with patience():
        async with serving(hostile) as path:
            assert await asyncio.to_thread(ask, path, Request("status")) == [
                {
                    "text": "\\x1b[2Jred\nblue",
                    "rows": [{"\\x07name": "\\x9b1m"}, 3, None],
                }
            ]
        async with serving(worse) as path:
            with pytest.raises(ProtocolError, match=r"^\\x1b\[2J$"):
                await asyncio.to_thread(ask, path, Request("status"))


@pytest.mark.asyncio
async def test_the_end_is_waited_for(runtime: Path) -> None:
    loop, asked = asyncio.get_running_loop(), asyncio.Event()

    def wait(path: str) -> dict[str, Any]:
        with ControlClient(path, within=PATIENCE) as client:
            reply = client.ask(Request("stop"))
            loop.call_soon_threadsafe(asked.set)
            client.wait_for_end()
            return reply

    async with patience():
        async with serving() as path:
            waiting = asyncio.create_task(asyncio.to_thread(wait, path))
            await asked.wait()
            assert not waiting.done()
        assert await waiting == {"you said": "stop"}


@pytest.mark.asyncio
async def test_a_request_that_takes_long_ends_with_the_server(runtime: Path) -> None:
    async def forever(request: Request) -> dict[str, Any]:
        begun.set()
        await asyncio.Event().wait()
        return {}

    begun = asyncio.Event()
    async with patience():
        async with serving(forever) as path:
            asking = asyncio.create_task(
                asyncio.to_thread(ask, path, Request("status"))
            )
            await begun.wait()
        with pytest.raises(ConnectionResetError, match=r"^it has ended$"):
            await asking


class Unhurried:
    """Answers when it is told to, and notes whether it was given up.

    Attributes:
        begun: Set when it was asked.
        done: Set when it may answer.
        ends: How each answer ended.
    """

    def __init__(self) -> None:
        self.begun, self.done = asyncio.Event(), asyncio.Event()
        self.ends: asyncio.Queue[str] = asyncio.Queue()

    async def answer(self, request: Request) -> dict[str, Any]:
        """Answer, or be given up."""
        self.begun.set()
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            self.ends.put_nowait("given up")
            raise
        self.ends.put_nowait("answered")
        return {"you said": request.action}


def looks(monkeypatch: pytest.MonkeyPatch, count: int) -> asyncio.Event:
    """Return what is set when a server has looked so often whether a client is there."""
    monkeypatch.setattr(control_server, "_LOOK_EVERY", 0.001)
    there, enough, seen = control_server._is_closed, asyncio.Event(), itertools.count(1)

    def look(sock: socket.socket) -> bool:
        if next(seen) == count:
            enough.set()
        return there(sock)

    monkeypatch.setattr(control_server, "_is_closed", look)
    return enough


@pytest.mark.asyncio
@pytest.mark.parametrize("action", ["status", "stacks", "profile"])
async def test_a_question_is_given_up_when_its_client_leaves(
    action: Any, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unhurried, looked = Unhurried(), looks(monkeypatch, 3)
    async with patience(), serving(unhurried.answer) as path:
        _, writer = await asyncio.open_unix_connection(path)
        # The next request is there already, and hides the end of what the client sends.
        writer.write(Request(action).pack() + Request("status").pack())
        await looked.wait()
        assert unhurried.ends.empty(), "it is there"
        writer.close()
        assert await unhurried.ends.get() == "given up"
        unhurried.done.set()
        assert await asyncio.to_thread(ask, path, Request("status")) == [
            {"you said": "status"}
        ]


@pytest.mark.asyncio
async def test_who_only_sends_nothing_more_gets_its_answer(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unhurried, looked = Unhurried(), looks(monkeypatch, 3)
    async with patience(), serving(unhurried.answer) as path:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(Request("profile").pack())
        writer.write_eof()
        await looked.wait()
        unhurried.done.set()
        assert json.loads(await reader.read()) == {"you said": "profile"}
        writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "request_",
    [
        Request("kill", slot=0),
        Request("recycle"),
        Request("resize", 2),
        Request("reload"),
        Request("stop"),
    ],
    ids=lambda request: request.action,
)
async def test_an_order_goes_on_without_its_client(
    request_: Request, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unhurried, looked = Unhurried(), looks(monkeypatch, 3)
    async with patience(), serving(unhurried.answer) as path:
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(request_.pack())
        await unhurried.begun.wait()
        writer.close()
        # A question that comes later is looked after meanwhile.
        with ControlClient(path, within=PATIENCE) as client:
            asking = asyncio.create_task(
                asyncio.to_thread(client.ask, Request("status"))
            )
            await looked.wait()
            unhurried.done.set()
            assert await asking == {"you said": "status"}
        assert [await unhurried.ends.get() for _ in range(2)] == ["answered"] * 2


@pytest.mark.asyncio
async def test_who_does_not_answer_in_time(runtime: Path) -> None:
    def impatient(path: str) -> None:
        with ControlClient(path, within=PATIENCE) as client:
            client.ask(Request("status"), within=0.01)

    control = ControlSocket(path_of("app", make=True), echo)  # and is not opened
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(impatient, control.path)
    await control.close()


@pytest.mark.asyncio
async def test_who_lets_nobody_in_in_time(runtime: Path) -> None:
    async with AsyncExitStack() as stack:
        control = ControlSocket(path_of("app", make=True), echo)  # and is not opened
        stack.push_async_callback(control.close)
        with suppress(BlockingIOError):
            while True:
                guest = stack.enter_context(socket.socket(socket.AF_UNIX))
                guest.setblocking(False)
                guest.connect(control.path)
        nobody = f"^too many clients wait at {control.path}, and none is accepted$"
        async with patience():
            with pytest.raises(TimeoutError, match=nobody):
                await asyncio.to_thread(ControlClient, control.path, within=0.01)
        assert live_names() == ["app"], "it is there, none the less"


@pytest.mark.asyncio
async def test_a_client_knows_whom_it_asks(runtime: Path) -> None:
    control = ControlSocket(path_of("app", make=True), echo)
    with ControlClient(control.path, within=PATIENCE) as client:
        assert client.pid == (os.getpid() if sys.platform == "linux" else None)
    await control.close()


@pytest.mark.asyncio
async def test_a_name_is_used_once(runtime: Path) -> None:
    async with serving() as path:
        with pytest.raises(OSError, match="another process listens there"):
            ControlSocket(path, echo)
    unused = ControlSocket(path, echo)
    await unused.close()


@pytest.mark.asyncio
async def test_nobody_is_there(runtime: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ControlClient(path_of("app"), within=PATIENCE)


class Scarce:
    """A socket whose first accept fails."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._failed = False

    def accept(self) -> tuple[socket.socket, object]:
        if not self._failed:
            self._failed = True
            raise OSError(24, "Too many open files")
        return self._sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.logs("control-not-accepted")
@pytest.mark.asyncio
async def test_it_waits_while_no_file_can_be_opened(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control_server, "_PAUSE", 0)
    control = ControlSocket(path_of("app", make=True), echo)
    control._sock = Scarce(control._sock)  # type: ignore[assignment]
    control.open()
    async with patience():
        assert await asyncio.to_thread(ask, control.path, Request("status"))
        await control.close()
    assert caplog.messages == [
        "the control socket cannot accept a connection: [Errno 24] Too many open files"
    ]


@pytest.mark.asyncio
async def test_it_ends_in_a_pause_and_while_a_client_comes(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control = ControlSocket(path_of("app", make=True), echo)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(control.path)
        control._accept()
        control._accept()  # nobody else is there
        control._sock = Scarce(control._sock)  # type: ignore[assignment]
        control._accept()
        async with patience():
            await control.close()
        assert client.recv(1) == b""
    assert len(caplog.messages) == 1
