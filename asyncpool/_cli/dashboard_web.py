"""What serves the page: the programs that it shows, its figures as they come, its actions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Callable
from importlib import resources
from typing import Any, Final, cast

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asyncpool._cli.dashboard import Access
from asyncpool._observe.control.client import check_listener, reply_of
from asyncpool._observe.control.protocol import (
    MAX_REPLY,
    Request as Question,
    unpack_line,
)
from asyncpool._observe.control.socket_files import path_of, socket_names
from asyncpool._observe.history import History
from asyncpool.errors import ProtocolError

# Seconds: to connect and to begin to answer; a program may be busy.
_PATIENCE = 10.0

# Seconds between two lines of a program, and how many jobs each may tell of.
_EVERY = 0.5
_JOBS = 100

# Seconds between two looks for programs: new ones, and those that have ended.
_LOOK = 0.5
# Seconds that a program is shown after its end.
_KEPT = 600.0

_MOST_PROGRAMS = 100

_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)

# A page has one stream, and asks now and then.
_MOST_CONNECTIONS = 100
_MOST_STREAMS = 32
_MOST_BODY = 4096

# Seconds: news that come sooner after others are sent together.
_TOGETHER = 0.1
# Seconds after which a stream says that it is still there.
_SILENCE = 15.0
# Seconds that a program has to answer, beyond those of a profile: a roll takes as long as jobs do.
_WITHIN = 60.0

# What changes nothing, and what does.
_QUESTIONS = frozenset(("requests", "stacks", "profile"))
_ACTIONS = frozenset(("kill", "recycle", "resize", "reload"))

# The files of the page, which are part of the package, and their types.
_ASSETS = resources.files("asyncpool._cli.page") / "assets"
_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "svg": "image/svg+xml",
    "js": "text/javascript",
}
FILES = {it.name: _TYPES[it.name.rpartition(".")[2]] for it in _ASSETS.iterdir()}

# What the page may load, and who may show it in a frame: itself and nobody.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


# The pools and servers of this user: found by their control sockets, asked, and watched.


async def replies(
    path: str, question: Question, *, within: float = _PATIENCE
) -> AsyncGenerator[dict[str, Any]]:
    """Yield what a program answers to a question.

    Args:
        path: Its control socket.
        question: The question.
        within: The seconds that it has for each answer.

    Raises:
        TimeoutError: If it does not answer in time.
        OSError: If it has ended, or another user's process listens there.
        ProtocolError: If it refuses; the text is the program's.
    """
    async with asyncio.timeout(within):
        reader, writer = await asyncio.open_unix_connection(path, limit=MAX_REPLY)
    try:
        check_listener(writer.get_extra_info("socket"), path)
        writer.write(question.pack())
        while True:
            try:
                async with asyncio.timeout(within):
                    line = await reader.readline()
            except ValueError:
                raise ProtocolError("the answer has too many bytes") from None
            yield reply_of(unpack_line(line) if line else None)
    finally:
        # Not close(), which may wait for a program that does not read.
        writer.transport.abort()


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
        self.lives, self.problem = False, ""

    @property
    def is_known(self) -> bool:
        """Whether there is anything to show: a dead program may leave its socket behind."""
        return self.history.cursor > 0 or bool(self.problem)


class Programs(dict[str, Program]):
    """All of them, by name.

    Args:
        on_news: Called when anything has changed.

    Attributes:
        problem: Why programs cannot be found, or ``""``.
    """

    def __init__(self, on_news: Callable[[], object]) -> None:
        super().__init__()
        self.problem = ""
        self._on_news = on_news

    def lines(self) -> list[dict[str, Any]]:
        """Return what the list of programs says of each, by name."""
        return [
            {
                "name": name,
                "lives": it.lives,
                "problem": it.problem,
                **it.history.summary(),
            }
            for name, it in sorted(self.items())
            if it.is_known
        ]

    async def run(self) -> None:
        """Find programs, and watch them.

        Cancellation:
            Ends it; the programs do not notice.
        """
        async with anyio.create_task_group() as tasks:
            while True:
                for name in self._names():
                    if name not in self and len(self) < _MOST_PROGRAMS:
                        program = self[name] = Program(name)
                        title = f"asyncpool dashboard: {name}"
                        tasks.start_soon(self._follow, program, name=title)
                await asyncio.sleep(_LOOK)

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
            before = program.history.cursor
            problem = await self._watch(program)
            if (program.lives, program.problem) != (False, problem):
                program.lives, program.problem = False, problem
                self._on_news()
            if program.history.cursor > before:
                ended_at = loop.time()
            elif loop.time() - ended_at > _KEPT:
                break
            await asyncio.sleep(_LOOK)
        del self[program.name]
        self._on_news()

    async def _watch(self, program: Program) -> str:
        """Watch a program to its end; return why it cannot be watched any more, or ``""``."""
        request = Question("watch", every=_EVERY, jobs=_JOBS)
        try:
            found = replies(path_of(program.name), request, within=_EVERY + _PATIENCE)
            async with contextlib.aclosing(found) as lines:
                async for line in lines:
                    program.history.add(line)
                    program.lives, program.problem = True, ""
                    self._on_news()
        except TimeoutError:
            return "It does not answer: its process is stopped, or hangs."
        except PermissionError as error:
            return str(error)
        except OSError:
            pass  # it has ended
        except ProtocolError as error:
            return f"It cannot be watched: {error}."
        except _UNREADABLE as error:
            return f"Its figures are of another version of asyncpool: {error!r}."
        return ""


# The page.


async def serve(
    sock: socket.socket,
    access: Access,
    *,
    allow_actions: bool,
    on_ready: Callable[[], object] = lambda: None,
) -> None:
    """Serve the page until a signal comes, and watch programs meanwhile.

    Args:
        sock: Where.
        access: Who may see it.
        allow_actions: Whether the page may change anything.
        on_ready: Called when the page can be opened; from then on Ctrl-C ends it cleanly.

    Cancellation:
        Ends it.
    """
    dashboard = Dashboard(allow_actions=allow_actions)
    config = uvicorn.Config(
        dashboard.app(access),
        access_log=False,  # it would have the token
        log_config=None,
        log_level="error",
        lifespan="off",
        ws="none",
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    server.on_ready, server.on_end = on_ready, dashboard.end
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dashboard.programs.run, name="asyncpool dashboard: programs")
        try:
            await server.serve(sockets=[sock])
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                if server.started:
                    await server.shutdown([sock])
            raise
        tasks.cancel_scope.cancel()


class _Server(uvicorn.Server):
    """A server that tells when it begins and ends."""

    on_ready: Callable[[], object]
    on_end: Callable[[], object]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and then say so."""
        await super().startup(sockets=sockets)
        self.on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, which would last for ever, and then the connections."""
        self.on_end()
        await super().shutdown(sockets)


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
        """Return the application of ASGI, which answers no request that is refused."""
        routes = [
            Route("/events", self._events),
            Route("/ask", self._ask, methods=["POST"]),
            Route("/", _file),
            Route("/{name}", _file),
        ]
        page = Starlette(routes=[Mount(f"/{access.token}", routes=routes)])

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(_HEADERS)
                await send(message)

            if scope["type"] != "http":
                return
            answer: ASGIApp = page
            if refusal := access.refusal(scope["path"], Headers(scope=scope)):
                status, text = refusal
                answer = PlainTextResponse(f"{text}\n", status)
            await answer(scope, receive, send_with_headers)

        return guarded

    def end(self) -> None:
        """End the streams, so that the server can end."""
        self._ending = True
        self._news()

    def _news(self) -> None:
        # Whoever waits has the old one.
        self._change.set()
        self._change = asyncio.Event()

    async def _events(self, request: Request) -> Response:
        if self._streams >= _MOST_STREAMS:
            return PlainTextResponse("Too many pages are open.", 503)
        name = request.query_params.get("program", "")
        last = request.headers.get("last-event-id", "0")
        cursor = int(last) if last.isascii() and last.isdigit() else 0
        stream = self._stream(name, cursor)
        return StreamingResponse(stream, media_type="text/event-stream")

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
            name, question = _question(await _body(request))
        except ValueError as error:
            return _error(400, str(error))
        if question.action in _ACTIONS and not self._allow_actions:
            return _error(
                403,
                "This page only shows: asyncpool dashboard --allow-actions lets it act.",
            )
        if self.programs.get(name) is None:
            return _error(404, f"There is no {name}.")
        try:
            found = replies(path_of(name), question, within=_WITHIN + question.seconds)
            async with contextlib.aclosing(found) as answers:
                return JSONResponse(await anext(answers))
        except TimeoutError:
            return _error(504, f"{name} does not answer.")
        except (OSError, ProtocolError) as error:
            return _error(502, f"{name}: {error}")


async def _file(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    if name not in FILES:
        return PlainTextResponse("There is no such file.", 404)
    return Response((_ASSETS / name).read_text("utf-8"), media_type=FILES[name])


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)


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
    fields = cast("dict[str, Any]", asked)
    name, action = fields.pop("program", None), fields.get("action")
    if not isinstance(name, str) or not isinstance(action, str):
        raise ValueError("The request names no program, or no action.")  # noqa: TRY004
    if action not in _QUESTIONS | _ACTIONS:
        raise ValueError(f"There is no action {action!r}.")
    try:
        return name, Question.unpack(json.dumps(fields).encode() + b"\n")
    except ProtocolError as error:
        raise ValueError(f"{error}.") from None
