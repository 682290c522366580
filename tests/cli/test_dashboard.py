"""The dashboard as a program of HTTP: its files, its stream, its questions and actions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from asyncpool._cli import dashboard_web as web
from asyncpool._cli.dashboard import Access, address_of, is_private, open_socket
from asyncpool._cli.dashboard_web import FILES, Programs, replies, serve
from asyncpool._observe.control import client as control_client
from asyncpool._observe.control.protocol import Request
from asyncpool._observe.control.socket_files import path_of, private_folder
from tests.helpers.fake_program import FakeProgram
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.told_lines import (
    REQUEST,
    cluster_status,
    crashed,
    job,
    line,
    pool_status,
)

pytestmark = pytest.mark.asyncio

LINE = line(0.0, pool_status(), jobs=[job(1, 0.0)])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(web, "_LOOK", 0.01)
    return tmp_path


@dataclass(frozen=True, slots=True)
class Served:
    """A dashboard that listens, and a client that knows its address."""

    url: str
    client: httpx.AsyncClient

    @contextlib.asynccontextmanager
    async def stream(
        self, program: str = "shop", last: int = 0
    ) -> AsyncIterator[Callable[[], Any]]:
        """Connect to the stream; yield what returns the next update."""
        headers = {"Last-Event-ID": str(last)} if last else {}
        async with self.client.stream(
            "GET", "events", params={"program": program}, headers=headers
        ) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            found = response.aiter_lines()

            async def update() -> Any:
                async for text in found:
                    if text.startswith("data: "):
                        return json.loads(text.removeprefix("data: "))
                return None

            yield update

    async def ask(self, **question: Any) -> tuple[int, Any]:
        """Return the status and the answer to a question."""
        response = await self.client.post("ask", json=question)
        return response.status_code, response.json()


@contextlib.asynccontextmanager
async def served(*, allow_actions: bool = False) -> AsyncIterator[Served]:
    with open_socket("127.0.0.1", 0) as sock:
        access = Access("127.0.0.1")
        url = address_of(sock, access)
        task = asyncio.create_task(serve(sock, access, allow_actions=allow_actions))
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            yield Served(url, client)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_it_serves_its_files_and_nothing_else() -> None:
    async with served() as page:
        for name, kind in FILES.items():
            response = await page.client.get(name)
            assert response.status_code == 200
            assert response.headers["content-type"].startswith(kind)
        index = await page.client.get("")
        assert "<!doctype html>" in index.text
        for name in ("nothing.js", "..%2Ffiles.py", "%2Fetc%2Fpasswd"):
            assert (await page.client.get(name)).status_code == 404


async def test_every_answer_says_what_a_browser_may_do_with_it() -> None:
    async with served() as page:
        good = await page.client.get("")
        bad = await page.client.get("", headers={"Host": "evil.example"})
    assert bad.status_code == 421
    for response in (good, bad):
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "server" not in response.headers


# The port may be another one: ssh can forward it.
OWN_HOSTS = ["localhost:1", "LOCALHOST", "127.0.0.1:9", "[::1]:8750", "10.0.0.7:80"]
# They may be those of a page whose owner has them point here (DNS rebinding).
EVIL_HOSTS = ["evil.example", "evil.example:8750", "127.0.0.1.evil.example", "[::1"]
EVIL_HOSTS += ["a@b", "evil.example@localhost", "localhost/evil.example"]
EVIL_HOSTS += ["localhost?evil.example"]
EVIL_ORIGINS = ["http://evil.example", "null", "http://127.0.0.1", "http://localhost:1"]

# Headers, with the address of the page in place of THIS, and what is answered.
ASKED = [
    *(({"Host": host}, 200) for host in OWN_HOSTS),
    *(({"Host": host}, 421) for host in EVIL_HOSTS),
    ({"Origin": "http://THIS", "Sec-Fetch-Site": "same-origin"}, 200),
    *(({"Origin": origin}, 403) for origin in EVIL_ORIGINS),
    # Another site may link to the page, and not load it.
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
]


async def test_who_may_ask_is_told_by_name_and_origin() -> None:
    async with served(allow_actions=True) as page:
        url = page.client.base_url
        for headers, status in ASKED:
            sent = {
                name: text.replace("THIS", f"{url.host}:{url.port}")
                for name, text in headers.items()
            }
            answer = await page.client.get("", headers=sent)
            assert answer.status_code == status, headers


async def test_who_lacks_the_token_is_refused() -> None:
    async with served() as page, served() as other:
        assert page.client.base_url.path != other.client.base_url.path
        token = page.client.base_url.path.strip("/")
        assert len(token) == 22
        root = page.client.base_url.copy_with(path="/")
        for path in (
            "",
            f"{token}2/",
            f"{token[:-1]}/",
            f"{token.swapcase()}/",
            f"x/{token}/",
        ):
            assert (await page.client.get(f"{root}{path}")).status_code == 401, path
        for path in (token, f"{token}/", f"{token}/style.css"):
            assert (await page.client.get(f"{root}{path}")).status_code != 401, path


async def test_foreign_requests_reach_no_program() -> None:
    async with served(allow_actions=True) as page:
        with FakeProgram("shop", LINE) as shop:
            origin = {"Origin": "http://evil.example"}
            refused = [
                await page.client.get("events", headers={"Host": "evil.example"}),
                await page.client.post("ask", json={}, headers=origin),
                await page.client.get(f"{page.url[:-2]}/events"),
            ]
            assert [response.status_code for response in refused] == [421, 403, 401]
            assert not [each for each in shop.asked if each["action"] != "watch"]


async def test_the_stream_has_all_and_then_what_is_new() -> None:
    async with served() as page, patience():
        with FakeProgram("shop", LINE) as shop:
            async with page.stream() as update:
                while not (first := await update()).get("shown", {}).get("cursor"):
                    pass
                assert [each["name"] for each in first["programs"]] == ["shop"]
                assert first["actions"] is False
                assert first["shown"]["fresh"] is True
                assert len(first["shown"]["jobs"]) == 1
                shop.tell(line(0.5, pool_status(), jobs=[job(2, 0.5)]))
                shop.tell(line(1.0, pool_status(), events=[crashed(0.9)]))
                jobs, crashes = list[Any](), list[Any]()
                while not crashes:
                    shown = (await update())["shown"]
                    assert shown["fresh"] is False
                    jobs += shown["jobs"]
                    crashes += shown["crashes"]
                assert [each[0] for each in jobs] == [2]
                assert [each["signal"] for each in crashes] == ["SIGSEGV"]


async def test_a_browser_that_comes_back_gets_what_it_lacks() -> None:
    async with served() as page, patience():
        second = line(1.0, pool_status(), jobs=[job(2, 1.0)])
        with FakeProgram("shop", LINE, second):
            async with page.stream() as update:
                while (await update()).get("shown", {}).get("cursor") != 2:
                    pass
            async with page.stream(last=1) as update:
                shown = (await update())["shown"]
                assert [each[0] for each in shown["jobs"]] == [2]
                assert len(shown["points"]) == 1


async def test_too_many_streams_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_MOST_STREAMS", 1)
    async with served() as page:
        async with page.stream() as update:
            await update()
            response = await page.client.get("events")
            assert (response.status_code, response.text) == (
                503,
                "Too many pages are open.",
            )
        async with patience():
            # The place of a browser that is gone is free again.
            status = 503
            while status != 200:
                async with page.client.stream("GET", "events") as again:
                    status = again.status_code


async def test_a_browser_that_does_not_read_holds_up_nobody() -> None:
    names = [f"{'f' * 400}{number}" for number in range(100)]
    async with served() as page, patience():
        with FakeProgram("shop", LINE) as shop:
            host, port = page.client.base_url.host, page.client.base_url.port or 0
            with socket.create_connection((host, port)) as silent:
                # Much less than what it is sent.
                silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                path = page.client.base_url.raw_path.decode()
                silent.sendall(
                    f"GET {path}events?program=shop HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
                )
                async with page.stream() as update:
                    for number in range(1, 40):
                        jobs = [job(number, number, name) for name in names]
                        shop.tell(line(number, pool_status(queued=number), jobs=jobs))
                        while True:
                            shown = (await update()).get("shown", {})
                            if shown.get("program", {}).get("queued") == number:
                                break


async def test_it_asks_for_stacks_and_profiles_also_if_it_only_shows() -> None:
    async with served() as page, patience():
        with FakeProgram("shop", LINE) as shop:
            shop.answers["requests"] = {"requests": [REQUEST]}
            shop.answers["stacks"] = {"stacks": {"3": "File ..."}}
            shop.answers["profile"] = {"stacks": [["a;b", 3]], "samples": 3}
            while (await page.ask(program="shop", action="stacks"))[0] == 404:
                pass
            assert await page.ask(program="shop", action="stacks", slot=3) == (
                200,
                {"stacks": {"3": "File ..."}},
            )
            found = await page.ask(program="shop", action="requests")
            assert found == (200, {"requests": [REQUEST]})
            assert (await page.ask(program="shop", action="profile", seconds=5))[
                0
            ] == 200
            assert shop.asked[-3:] == [
                {"action": "stacks", "slot": 3, "job": None},
                {"action": "requests"},
                {"action": "profile", "seconds": 5, "slot": None, "function": None},
            ]


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("kill", {"slot": 2}),
        ("recycle", {"slot": None}),
        ("resize", {"workers": 3}),
        ("reload", {}),
    ],
)
async def test_it_acts_only_if_that_was_allowed(
    action: str, fields: dict[str, Any]
) -> None:
    with FakeProgram("shop", LINE) as shop:
        shop.answers[action] = {"text": "done"}
        for allowed in (False, True):
            async with served(allow_actions=allowed) as page, patience():
                while (
                    found := await page.ask(program="shop", action=action, **fields)
                )[0] == 404:
                    pass
                asked = [each for each in shop.asked if each["action"] == action]
                if allowed:
                    assert found == (200, {"text": "done"})
                    assert asked == [{"action": action, **fields}]
                else:
                    assert found == (
                        403,
                        {
                            "error": "This page only shows: asyncpool dashboard "
                            "--allow-actions lets it act."
                        },
                    )
                    assert asked == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", None),
        (b"[]", "The request is no object."),
        (b"{}", "The request names no program, or no action."),
        (b'{"program": "shop", "action": "stop"}', "There is no action 'stop'."),
        (
            b'{"program": "shop", "action": "profile", "seconds": 1e9}',
            "seconds is 0.1 to 600 seconds, not 1000000000.0.",
        ),
        (
            b'{"program": "shop", "action": "stacks", "now": 1}',
            "stacks takes no 'now'.",
        ),
        (b" " * 5000, "The request is too long."),
        (b"[" * 4000, None),  # newer Pythons go as deep as that
    ],
)
async def test_what_is_no_question_is_refused(body: bytes, text: str | None) -> None:
    async with served(allow_actions=True) as page:
        response = await page.client.post("ask", content=body)
        assert response.status_code == 400
        assert text is None or response.json() == {"error": text}


async def test_it_says_what_a_program_has_refused() -> None:
    async with served() as page, patience():
        assert await page.ask(program="shop", action="stacks") == (
            404,
            {"error": "There is no shop."},
        )
        with FakeProgram("shop", LINE) as shop:
            shop.answers["stacks"] = {"error": "no stacks here"}
            while (found := await page.ask(program="shop", action="stacks"))[0] == 404:
                pass
            assert found == (502, {"error": "shop: no stacks here"})


async def test_a_program_that_does_not_answer_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web, "_WITHIN", -4.9)  # a profile's 5 s are added
    monkeypatch.setattr(web, "_QUESTIONS", frozenset({"watch"}))
    async with served() as page, patience():
        with FakeProgram("shop"):
            while (found := await page.ask(program="shop", action="watch"))[0] == 404:
                pass
            assert found == (504, {"error": "shop does not answer."})


async def test_the_printed_address_is_one_that_works_from_elsewhere() -> None:
    access = Access(token="secret", host="::1")
    with open_socket("::1", 0) as sock:
        port = sock.getsockname()[1]
        assert address_of(sock, access) == f"http://[::1]:{port}/secret/"
        assert is_private(sock)
    with open_socket("0.0.0.0", 0) as sock:
        assert not is_private(sock)
        assert "0.0.0.0" not in address_of(sock, access)


# The dashboard finds programs, watches them, and sees them end and come back.


QUIET = line(0.0, pool_status())


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
        FakeProgram("web", line(0.0, cluster_status())) as server,
        FakeProgram("shop", QUIET),
    ):
        await seen.until(lambda lines: [each["lives"] for each in lines] == [True] * 2)
        assert [
            (each["name"], each["kind"], each["problem"])
            for each in seen.programs.lines()
        ] == [("shop", "pool", ""), ("web", "cluster", "")]
        assert server.asked == [{"action": "watch", "every": 0.5, "jobs": 100}]


@pytest.mark.parametrize("killed", [False, True])
async def test_a_program_ends_and_comes_back(seen: Seen, *, killed: bool) -> None:
    first = FakeProgram("shop", QUIET)
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
    monkeypatch.setattr(web, "_KEPT", 0.0)
    with FakeProgram("shop", QUIET):
        await seen.until(lambda lines: lines and lines[0]["lives"])
    await seen.until(lambda lines: not lines)


async def test_a_socket_that_a_killed_program_has_left_is_no_program(
    seen: Seen,
) -> None:
    FakeProgram("dead").end(leave_socket=True)
    with FakeProgram("shop", QUIET):
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
    monkeypatch.setattr(web, "_PATIENCE", 0.05)
    monkeypatch.setattr(web, "_EVERY", 0.05)
    with FakeProgram("shop", QUIET):
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


async def test_the_socket_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def somebody(_: socket.socket) -> int:
        return 12345

    monkeypatch.setattr(control_client, "peer_uid", somebody)
    with (
        FakeProgram("shop"),
        pytest.raises(PermissionError, match=r"^user 12345 listens at .*shop\.sock$"),
    ):
        await anext(replies(path_of("shop"), Request("stacks"), within=PATIENCE))
