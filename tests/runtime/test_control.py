"""Control sockets: where they are, whom they serve, and what clients do that hang, lie or leave."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from asyncpool._observe.control import (
    client as control_client,
    server as control_server,
    socket_files,
)
from asyncpool._observe.control.client import ControlClient
from asyncpool._observe.control.protocol import MAX_REPLY, MAX_REQUEST, Request
from asyncpool._observe.control.server import ControlSocket, write_reply
from asyncpool._observe.control.socket_files import live_names, path_of, private_folder
from asyncpool.errors import ProtocolError
from tests.helpers.patience import PATIENCE, patience

US = os.geteuid()
STATUS = Request("status")
NEVER: Any = None  # what watches


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have a folder for control sockets, also in place of /tmp; their paths must be short."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        monkeypatch.setattr(socket_files, "_TMP", Path(name))
        yield Path(name)


# Where they are.


def test_the_folder_is_made_for_its_user_alone(runtime: Path) -> None:
    assert private_folder(make=False) == runtime / "asyncpool"
    assert path_of("app") == str(runtime / "asyncpool" / "app.sock")
    assert path_of("./x") == "./x"
    assert os.listdir(runtime) == []
    path_of("app", make=True)
    assert stat.S_IMODE((runtime / "asyncpool").stat().st_mode) == 0o700
    error = "'..' is no name that commands find, which is 1 to 64 of A-Z, a-z, 0-9, '.'"
    with pytest.raises(ValueError, match=f"^{re.escape(error)}"):
        path_of("..")


@pytest.mark.parametrize("value", ["relative", "/no/such/folder", "", None, "theirs"])
def test_without_a_runtime_folder_of_ones_own_it_is_in_tmp(
    value: str | None, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", value or "")
    if value is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
    if value == "theirs":
        (runtime / "theirs").mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / "theirs"))
        assert private_folder(make=False).parent == runtime / "theirs"
        monkeypatch.setattr(os, "geteuid", lambda: US + 1)
    assert private_folder(make=False) == runtime / f"asyncpool-{os.geteuid()}"


WAY_OUT = "have it removed, or set XDG_RUNTIME_DIR to a folder of your own"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("link", "is no folder: somebody else has taken the name; " + WAY_OUT),
        ("open", "its permissions are 710, and must be 700: chmod 700 "),
        ("theirs", f"belongs to user {US}, not to {US + 1}; {WAY_OUT}"),
    ],
)
@pytest.mark.parametrize("make", [True, False])
def test_a_folder_of_others_is_a_trap(
    kind: str,
    error: str,
    runtime: Path,
    make: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trap = runtime / "asyncpool"
    if kind == "theirs":
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        monkeypatch.setattr(os, "geteuid", lambda: US + 1)
        trap = runtime / f"asyncpool-{US + 1}"
    (runtime / "elsewhere").mkdir(mode=0o700)
    if kind == "link":
        trap.symlink_to(runtime / "elsewhere")
    else:
        trap.mkdir(mode=0o710 if kind == "open" else 0o700)
    with pytest.raises(PermissionError, match=re.escape(error)) as caught:
        private_folder(make=make)
    assert str(trap) in str(caught.value)


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


# The server.


async def echo(request: Request) -> dict[str, Any]:
    if request.action == "reload":
        raise RuntimeError("no such code")
    if request.action == "resize":
        raise ZeroDivisionError
    return {"you said": request.action}


@asynccontextmanager
async def serving(
    answer: Callable[[Request], Any] = echo,
    watch: Callable[[Request], Any] = lambda _: Counter(),
) -> AsyncIterator[str]:
    control = ControlSocket(path_of("app", make=True), answer, watch)
    control.listen()
    async with patience():
        try:
            yield control.path
        finally:
            await control.close()
            assert not Path(control.path).exists()


def ask(path: str, *requests: Request) -> list[dict[str, Any]]:
    with ControlClient(path, within=PATIENCE) as client:
        return [client.ask(request) for request in requests]


async def asked(path: str, *requests: Request) -> list[dict[str, Any]]:
    return await asyncio.to_thread(ask, path, *requests)


@pytest.mark.logs("command-failed")
@pytest.mark.asyncio
async def test_requests_are_answered_in_turns_and_errors_are_the_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "asyncpool")
    async with serving() as path:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert live_names() == ["app"]
        with pytest.raises(ProtocolError, match=r"^no such code$"):
            await asked(path, Request("reload"))
        with pytest.raises(ProtocolError, match=r"^ZeroDivisionError$"):
            await asked(path, Request("resize", 1))
        assert await asked(path, STATUS, Request("stop", now=True)) == [
            {"you said": "status"},
            {"you said": "stop"},
        ]
        with pytest.raises(OSError, match="another process listens there"):
            ControlSocket(path, echo, NEVER)


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
    sent: bytes, error: bytes
) -> None:
    async with serving() as path:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(sent)
        assert await reader.readline() == error
        with suppress(ConnectionResetError):  # what it had sent was not all read
            assert await reader.read() == b""
        writer.close()


@pytest.mark.logs("control-refused", "control-unknown-user")
@pytest.mark.asyncio
async def test_another_user_is_refused_and_so_is_who_is_unknown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def peer_uid(_: socket.socket) -> int:
        if caplog.messages:
            raise OSError("unknown")
        return US + 1

    monkeypatch.setattr(control_server, "peer_uid", peer_uid)
    async with serving() as path:
        for _ in range(2):
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                await asked(path, STATUS)
    assert caplog.messages == [
        f"the control socket has refused user {US + 1}",
        "the control socket cannot tell whose a connection is: unknown",
    ]


@pytest.mark.asyncio
async def test_a_server_of_another_user_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_client, "peer_uid", lambda _: US + 1)
    requests = []

    async def note(request: Request) -> dict[str, Any]:
        requests.append(request)
        return {}

    async with serving(note) as path:
        with pytest.raises(PermissionError, match=f"^user {US + 1} listens at {path}$"):
            await asked(path, Request("stop"))
    assert requests == []


@pytest.mark.asyncio
async def test_there_is_a_most_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "_MOST_CLIENTS", 2)
    async with serving() as path:
        clients = [await asyncio.open_unix_connection(path) for _ in range(2)]
        for reader, writer in clients:
            writer.write(STATUS.pack())
            assert await reader.readline()
        error = "2 clients are connected already, and there may be no more"
        with pytest.raises(ProtocolError, match=f"^{error}$"):
            await asked(path, STATUS)
        for _, writer in clients:
            writer.close()


@pytest.mark.asyncio
async def test_who_says_half_a_request_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_server, "_LINE_TIMEOUT", 0.05)
    async with serving() as path:
        with ControlClient(path, within=PATIENCE) as quiet:
            first = await asyncio.to_thread(quiet.ask, STATUS)
            halves = [await asyncio.open_unix_connection(path) for _ in range(31)]
            for _, writing in halves:
                writing.write(b'{"action": ')
            for reader, _ in halves:
                assert await reader.read() == b""
            assert await asked(path, STATUS) == [first]
            # Who is silent between two requests may stay.
            assert await asyncio.to_thread(quiet.ask, STATUS) == first
        for _, writing in halves:
            writing.close()


@pytest.mark.asyncio
async def test_no_answer_controls_a_terminal() -> None:
    async def hostile(request: Request) -> dict[str, Any]:
        if request.action == "stop":
            raise ValueError("\x1b[2J")
        return {"text": "\x1b[2Jred\nblue", "rows": [{"\x07name": "\x9b1m"}, 3, None]}

    async with serving(hostile) as path:
        rows = [{"\\x07name": "\\x9b1m"}, 3, None]
        assert await asked(path, STATUS) == [
            {"text": "\\x1b[2Jred\nblue", "rows": rows}
        ]
        with pytest.raises(ProtocolError, match=r"^\\x1b\[2J$"):
            await asked(path, Request("stop"))


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


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """What is set when a server has looked three times whether a client is there."""
    monkeypatch.setattr(control_server, "_LOOK_EVERY", 0.001)
    there, enough, seen = control_server._is_closed, asyncio.Event(), itertools.count(1)

    def look(sock: socket.socket) -> bool:
        if next(seen) == 3:
            enough.set()
        return there(sock)

    monkeypatch.setattr(control_server, "_is_closed", look)
    return enough


@pytest.mark.asyncio
@pytest.mark.parametrize("action", ["status", "stacks", "profile"])
async def test_a_question_is_given_up_when_its_client_leaves(
    action: Any, looked: asyncio.Event
) -> None:
    unhurried = Unhurried()
    async with serving(unhurried.answer) as path:
        _, writer = await asyncio.open_unix_connection(path)
        # The next request is there already, and hides the end of what the client sends.
        writer.write(Request(action).pack() + STATUS.pack())
        await looked.wait()
        assert unhurried.ends.empty(), "it is there"
        writer.close()
        assert await unhurried.ends.get() == "given up"
        unhurried.done.set()
        # Who only sends nothing more gets its answer.
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(Request(action).pack())
        writer.write_eof()
        assert json.loads(await reader.read()) == {"you said": action}
        writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "order",
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
    order: Request, looked: asyncio.Event
) -> None:
    unhurried = Unhurried()
    async with serving(unhurried.answer) as path:
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(order.pack())
        await unhurried.begun.wait()
        writer.close()
        # A question that comes later is looked after meanwhile.
        asking = asyncio.create_task(asked(path, STATUS))
        await looked.wait()
        unhurried.done.set()
        assert await asking == [{"you said": "status"}]
        assert [await unhurried.ends.get() for _ in range(2)] == ["answered"] * 2


@pytest.mark.asyncio
async def test_a_request_that_takes_long_ends_with_the_server() -> None:
    unhurried = Unhurried()
    async with serving(unhurried.answer) as path:
        asking = asyncio.create_task(asked(path, STATUS))
        await unhurried.begun.wait()
    with pytest.raises(ConnectionResetError, match=r"^it has ended$"):
        await asking


@pytest.mark.asyncio
async def test_who_does_not_answer_or_let_anybody_in_in_time() -> None:
    def impatient(path: str) -> None:
        with ControlClient(path, within=PATIENCE) as client:
            assert client.pid in {os.getpid(), None}
            client.ask(STATUS, within=0.01)

    control = ControlSocket(path_of("app", make=True), echo, NEVER)  # and is not opened
    async with patience(), AsyncExitStack() as stack:
        stack.push_async_callback(control.close)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(impatient, control.path)
        with suppress(BlockingIOError):
            while True:
                guest = stack.enter_context(socket.socket(socket.AF_UNIX))
                guest.setblocking(False)
                guest.connect(control.path)
        nobody = f"^too many clients wait at {control.path}, and none is accepted$"
        with pytest.raises(TimeoutError, match=nobody):
            await asyncio.to_thread(ControlClient, control.path, within=0.01)
        assert live_names() == ["app"], "it is there, none the less"


@pytest.mark.logs("control-not-accepted")
@pytest.mark.asyncio
@pytest.mark.parametrize("pause", [0, 3600])
async def test_it_waits_while_no_file_can_be_opened(
    pause: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def accept(sock: socket.socket) -> tuple[socket.socket, object]:
        if refused.is_set():
            return accepts(sock)
        refused.set()
        raise OSError(24, "Too many open files")

    refused, accepts = asyncio.Event(), socket.socket.accept
    async with serving() as path:
        monkeypatch.setattr(control_server, "_PAUSE", pause)
        monkeypatch.setattr(socket.socket, "accept", accept)
        asking = asyncio.create_task(asked(path, STATUS))
        await refused.wait()
        if not pause:
            assert await asking
    with suppress(ConnectionResetError):  # it ends in its pause, while a client comes
        assert await asking
    assert caplog.messages == [
        "the control socket cannot accept a connection: [Errno 24] Too many open files"
    ]


# Clients that watch: each gets line after line, and one that hangs costs nothing.

WATCH = Request("watch", every=0.1)
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Counter:
    """Tells a client how often it was asked.

    Attributes:
        looks: How often.
        looked: Set at the first time.
        closed: Set when the client is gone.
    """

    def __init__(self, ballast: int = 0, error: Exception | None = None) -> None:
        self.looks = 0
        self.looked, self.closed = asyncio.Event(), asyncio.Event()
        self._ballast, self._error = "x" * ballast, error

    def __next__(self) -> dict[str, Any]:
        self.looks += 1
        self.looked.set()
        if self._error is not None:
            raise self._error
        return {"n": self.looks, "ballast": self._ballast}

    def close(self) -> None:
        self.closed.set()


async def connected(path: str, request: Request = WATCH) -> Client:
    reader, writer = await asyncio.open_unix_connection(path, limit=MAX_REPLY)
    writer.write(request.pack())
    return reader, writer


async def line(reader: asyncio.StreamReader) -> Any:
    return json.loads(await reader.readline())


@pytest.mark.asyncio
async def test_a_client_that_hangs_loses_lines_and_holds_up_nobody() -> None:
    """Its connection takes one line that is too large for the kernel, and no other."""
    hung, other = Counter(ballast=2_000_000), Counter()
    counters = [hung, other]
    async with serving(watch=lambda _: counters.pop(0)) as path:
        with socket.socket(socket.AF_UNIX) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(path)
            client.sendall(WATCH.pack())
            reader, writer = await connected(path)
            for n in range(1, 6):
                assert (await line(reader))["n"] == n
            assert hung.looks == 1
            # It wakes up.
            lines = client.makefile("rb")
            first = json.loads(await asyncio.to_thread(lines.readline))
            second = json.loads(await asyncio.to_thread(lines.readline))
            lines.close()
        assert (first["n"], second["n"]) == (1, 2)
        assert "lost" not in first
        assert second["lost"] >= 3
        writer.close()
        await asyncio.gather(hung.closed.wait(), other.closed.wait())


@pytest.mark.asyncio
async def test_the_end_does_not_wait_for_a_client_that_hangs() -> None:
    counter = Counter(ballast=2_000_000)
    with socket.socket(socket.AF_UNIX) as client:
        async with serving(watch=lambda _: counter) as path:
            client.connect(path)
            client.sendall(WATCH.pack())
            assert await asked(path, STATUS)
            await counter.looked.wait()
        assert counter.closed.is_set()


@pytest.mark.asyncio
async def test_what_ends_a_watch_is_told() -> None:
    asks, fails = Counter(), Counter(error=ZeroDivisionError("no figures"))
    counters = [asks, fails]
    async with serving(watch=lambda _: counters.pop(0)) as path:
        reader, writer = await connected(path)
        assert (await line(reader))["n"] == 1
        writer.write(STATUS.pack())
        rest = [json.loads(each) for each in (await reader.read()).splitlines()]
        assert rest[-1] == {"error": "a client that watches asks no more"}
        failed, other = await connected(path)
        assert await line(failed) == {"error": "no figures"}
        assert await failed.read() == b""
        assert asks.closed.is_set()
        assert fails.closed.is_set()
        for each in (writer, other):
            each.close()


@pytest.mark.asyncio
async def test_too_many_that_watch_are_refused_but_for_some() -> None:
    """The first ones go on, and commands still get in."""
    counters: list[Counter] = []

    def watch(_: Request) -> Counter:
        counters.append(Counter())
        return counters[-1]

    async with serving(watch=watch) as path:
        clients = [await connected(path) for _ in range(16)]
        for reader, _ in clients:
            assert (await line(reader))["n"] == 1
        refused, writer = await connected(path)
        error = "16 clients are watching already, and there may be no more"
        assert json.loads(await refused.read()) == {"error": error}
        writer.close()
        assert await asked(path, STATUS) == [{"you said": "status"}]
        # There is room again when one goes.
        clients[0][1].close()
        await counters[0].closed.wait()
        clients.append(await connected(path))
        assert (await line(clients[-1][0]))["n"] == 1
        for _, each in clients:
            each.close()


@pytest.mark.asyncio
async def test_whoever_is_written_to_may_be_gone_already() -> None:
    """The end of a connection and the time for the next line may come in one turn of the loop."""
    ours, theirs = socket.socketpair()
    with theirs:
        async with patience():
            _, writer = await asyncio.open_unix_connection(sock=ours)
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()
            with pytest.raises(ConnectionResetError, match="the client is gone"):
                write_reply(writer, {})
