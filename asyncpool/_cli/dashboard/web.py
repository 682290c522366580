"""The application that serves the page, its figures as they come, and its actions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from importlib import resources
from typing import Any, Final, cast

import anyio.abc
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asyncpool._cli.dashboard.access import HEADERS, Access
from asyncpool._cli.dashboard.asking import ask, watch
from asyncpool._observe.control.paths import path_of, socket_names
from asyncpool._observe.control.protocol import Request as Question
from asyncpool._observe.history import History
from asyncpool.errors import ProtocolError

# The pools and servers of this user: found by their control sockets, and watched.

# Seconds between two lines of a program, and how many jobs each may tell of.
_EVERY = 0.5
_JOBS = 100

# Seconds between two looks for programs: new ones, and those that have ended.
_LOOK = 0.5
# Seconds that a program is shown after its end.
_KEPT = 600.0

_MOST_PROGRAMS = 100

_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)


class Program:
    """One pool or server.

    Attributes:
        name: What its control socket is called.
        history: What is known of it.
        lives: Whether it answers.
        problem: Why it cannot be shown as it is, or ``""``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.history = History()
        self.lives = False
        self.problem = ""

    @property
    def is_known(self) -> bool:
        """Whether there is anything to show: a dead program may leave its socket behind."""
        return self.history.cursor > 0 or bool(self.problem)

    def line(self) -> dict[str, Any]:
        """Return what the list of programs says of it."""
        return {
            "name": self.name,
            "lives": self.lives,
            "problem": self.problem,
            **self.history.summary(),
        }


class Programs:
    """All of them.

    Args:
        on_news: Called when anything has changed.

    Attributes:
        problem: Why programs cannot be found, or ``""``.
    """

    def __init__(self, on_news: Callable[[], object]) -> None:
        self.problem = ""
        self._on_news = on_news
        self._all: dict[str, Program] = {}

    def lines(self) -> list[dict[str, Any]]:
        """Return what is said of each, by name."""
        known = [program for program in self._all.values() if program.is_known]
        return [program.line() for program in sorted(known, key=lambda each: each.name)]

    def get(self, name: str) -> Program | None:
        """Return a program by its name."""
        return self._all.get(name)

    async def run(self) -> None:
        """Find programs, and watch them.

        Cancellation:
            Ends it; the programs do not notice.
        """
        async with anyio.create_task_group() as tasks:
            while True:
                self._look(tasks)
                await asyncio.sleep(_LOOK)

    def _look(self, tasks: anyio.abc.TaskGroup) -> None:
        for name in self._names():
            if name not in self._all and len(self._all) < _MOST_PROGRAMS:
                program = self._all[name] = Program(name)
                tasks.start_soon(
                    self._follow, program, name=f"asyncpool dashboard: {name}"
                )

    def _names(self) -> list[str]:
        names, problem = list[str](), ""
        try:
            names = socket_names()
        except OSError as error:
            problem = str(error)
        if problem != self.problem:
            self.problem = problem
            self._on_news()
        return names

    async def _follow(self, program: Program) -> None:
        """Watch a program, and its successors of the same name, until there is none for long."""
        loop = asyncio.get_running_loop()
        ended_at = loop.time()
        while program.is_known or program.name in self._names():
            if await self._watch(program):
                ended_at = loop.time()
            elif loop.time() - ended_at > _KEPT:
                break
            await asyncio.sleep(_LOOK)
        del self._all[program.name]
        self._on_news()

    async def _watch(self, program: Program) -> bool:
        """Watch a program to its end; tell whether it has answered at all."""
        before, problem = program.history.cursor, ""
        try:
            lines = watch(path_of(program.name), every=_EVERY, jobs=_JOBS)
            async with contextlib.aclosing(lines):
                async for line in lines:
                    program.history.add(line)
                    program.lives, program.problem = True, ""
                    self._on_news()
        except TimeoutError:
            problem = "It does not answer: its process is stopped, or hangs."
        except PermissionError as error:
            problem = str(error)
        except OSError:
            pass  # it has ended
        except ProtocolError as error:
            problem = f"It cannot be watched: {error}."
        except _UNREADABLE as error:
            problem = f"Its figures are of another version of asyncpool: {error!r}."
        if (program.lives, program.problem) != (False, problem):
            program.lives, program.problem = False, problem
            self._on_news()
        return program.history.cursor > before


# The files of the page, which are part of the package.

# In the order in which the page loads its scripts.
SCRIPTS = (
    "theme.js",
    "text.js",
    "charts.js",
    "task_stream.js",
    "tables.js",
    "dialogs.js",
    "page.js",
)

FILES = {
    "index.html": "text/html",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(SCRIPTS, "text/javascript"),
}


def read_file(name: str) -> str:
    """Return the text of one of :data:`FILES`."""
    return (resources.files("asyncpool._cli.page") / "assets" / name).read_text("utf-8")


# Seconds: news that come sooner after others are sent together.
_TOGETHER = 0.1
# Seconds after which a stream says that it is still there.
_SILENCE = 15.0

_MOST_STREAMS = 32
_MOST_BODY = 4096

# What changes nothing, and what does.
_QUESTIONS = frozenset(("stacks", "profile"))
_ACTIONS = frozenset(("kill", "recycle", "resize", "reload"))

# Seconds that a program has to answer, beyond those of a profile: a roll takes as long as jobs do.
_WITHIN = 60.0


class Dashboard:
    """What the page asks for.

    Args:
        allow_actions: Whether the page may change anything.

    Attributes:
        programs: The pools and servers that are shown.
    """

    def __init__(self, *, allow_actions: bool) -> None:
        self.programs: Final = Programs(self._news)
        self._allow_actions = allow_actions
        self._change = asyncio.Event()
        self._streams = 0
        self._ending = False

    def app(self, access: Access) -> ASGIApp:
        """Return the application of ASGI."""
        routes = [
            Route("/events", self._events),
            Route("/ask", self._ask, methods=["POST"]),
            Route("/", self._file),
            Route("/{name}", self._file),
        ]
        return Guard(
            Starlette(routes=[Mount(f"/{access.token}", routes=routes)]), access
        )

    def end(self) -> None:
        """End the streams, so that the server can end."""
        self._ending = True
        self._news()

    def _news(self) -> None:
        # Whoever waits has the old one.
        self._change.set()
        self._change = asyncio.Event()

    async def _file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in FILES:
            return PlainTextResponse("There is no such file.", 404)
        return Response(read_file(name), media_type=FILES[name])

    async def _events(self, request: Request) -> Response:
        if self._streams >= _MOST_STREAMS:
            return PlainTextResponse("Too many pages are open.", 503)
        name = request.query_params.get("program", "")
        last = request.headers.get("last-event-id", "0")
        cursor = int(last) if last.isascii() and last.isdigit() else 0
        return StreamingResponse(
            self._stream(name, cursor), media_type="text/event-stream"
        )

    async def _stream(self, name: str, cursor: int) -> AsyncGenerator[str]:
        """Yield what is new, as server-sent events.

        A browser that does not read holds this up where it yields.  It gets all that was new
        meanwhile, within the bounds of the history, when it reads again.
        """
        self._streams += 1
        try:
            while not self._ending:
                change = self._change
                update: dict[str, Any] = {
                    "programs": self.programs.lines(),
                    "problem": self.programs.problem,
                    "actions": self._allow_actions,
                }
                if (program := self.programs.get(name)) is not None:
                    update["shown"] = program.history.since(cursor)
                    cursor = program.history.cursor
                yield f"id: {cursor}\ndata: {json.dumps(update)}\n\n"
                try:
                    async with asyncio.timeout(_SILENCE):
                        await change.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(_TOGETHER)
        finally:
            self._streams -= 1

    async def _ask(self, request: Request) -> Response:
        try:
            asked = await _body(request)
            name, question = _question(asked)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        if question.action in _ACTIONS and not self._allow_actions:
            text = (
                "This page only shows: asyncpool dashboard --allow-actions lets it act."
            )
            return JSONResponse({"error": text}, 403)
        if self.programs.get(name) is None:
            return JSONResponse({"error": f"There is no {name}."}, 404)
        try:
            within = _WITHIN + question.seconds
            return JSONResponse(await ask(path_of(name), question, within=within))
        except TimeoutError:
            return JSONResponse({"error": f"{name} does not answer."}, 504)
        except (OSError, ProtocolError) as error:
            return JSONResponse({"error": f"{name}: {error}"}, 502)


async def _body(request: Request) -> Any:
    """Return the JSON of a request.

    Raises:
        ValueError: If it is none, or is too long.
    """
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > _MOST_BODY:
                raise ValueError("The request is too long.")
        return json.loads(body)
    except (ClientDisconnect, RecursionError):
        raise ValueError("The request is no JSON.") from None


def _question(asked: Any) -> tuple[str, Question]:
    """Return which program is asked, and what.

    Raises:
        ValueError: If it is nothing that a page asks for.
    """
    if not isinstance(asked, dict):
        raise ValueError("The request is no object.")  # noqa: TRY004 - of JSON
    told = cast("dict[str, Any]", asked)
    name, action = told.get("program"), told.get("action")
    if not isinstance(name, str) or not isinstance(action, str):
        raise ValueError("The request names no program, or no action.")  # noqa: TRY004
    if action not in _QUESTIONS | _ACTIONS:
        raise ValueError(f"There is no action {action!r}.")
    fields = {field: value for field, value in told.items() if field != "program"}
    try:
        return name, Question.unpack(json.dumps(fields).encode() + b"\n")
    except ProtocolError as error:
        raise ValueError(f"{error}.") from None


class Guard:
    """Refuses requests that :class:`Access` refuses, and adds headers to all answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        answer = self._app
        if refusal := self._access.refusal(scope["path"], headers):
            answer = PlainTextResponse(f"{refusal.text}\n", refusal.status)
        await answer(scope, receive, send_with_headers)
