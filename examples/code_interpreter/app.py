"""A web service that runs generated code: each user has a Python session in a sandbox.

    uvicorn --app-dir examples code_interpreter.app:app

A session is a worker process to itself, so its cells find what earlier cells have left.  It has
the files in its own folder, no network, no other processes, and limits of time, memory and output.
"""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from tempfile import TemporaryDirectory

from starlette.applications import Starlette
from starlette.config import Config
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

import asyncpool
from code_interpreter import cells
from code_interpreter.sessions import (
    BusyError,
    FullError,
    GoneError,
    Session,
    Sessions,
)

config = Config(env_prefix="INTERPRETER_")  # from the environment
MOST = config("SESSIONS", cast=int, default=100)  # at once
IDLE = config("IDLE", cast=float, default=600.0)  # seconds until an unused one ends
TIMEOUT = config("TIMEOUT", cast=float, default=10.0)  # seconds for a cell
MAX_MEMORY = config("MAX_MEMORY", cast=int, default=512 << 20)  # bytes, each session
MAX_SOURCE = config("MAX_SOURCE", cast=int, default=100_000)  # bytes of a cell

# Imported once, and shared by all sessions until they write to it.
LIBRARIES = [name for name in ("matplotlib.pyplot",) if find_spec("matplotlib")]


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Sessions]]:
    """Have a pool from startup to shutdown; requests find its sessions in their state."""
    # matplotlib keeps its list of fonts there, and may have no home.
    with TemporaryDirectory(prefix="interpreter-") as settings:
        async with (
            asyncpool.Pool(
                (1, MOST),
                name="interpreter",
                idle_timeout=5.0,
                preload=["code_interpreter.cells", *LIBRARIES],
                sandbox=asyncpool.Sandbox(
                    memory=MAX_MEMORY,
                    read=[settings],
                    env={
                        "MPLBACKEND": "Agg",
                        "MPLCONFIGDIR": settings,
                        "LANG": "C.UTF-8",
                    },
                ),
                # The memory of a cell bounds itself; this is for what it maps otherwise.
                worker_limits=asyncpool.WorkerLimits(kill_memory=2 * MAX_MEMORY),
                # What a session sends is read as data, and it calls nothing but this.
                codec="msgspec",
                functions=["code_interpreter.cells:*"],
                max_message_size=8 << 20,
                max_shared_memory=0,
            ) as pool,
            Sessions(pool, most=MOST, idle=IDLE) as sessions,
        ):
            yield {"sessions": sessions}


async def begin(request: Request) -> Response:
    """Begin a session."""
    session = await request.state.sessions.open()
    return JSONResponse({"session": session.id}, 201)


async def end(request: Request) -> Response:
    """End a session; its worker and its folder go."""
    found(request).over.set()
    return Response(status_code=204)


async def run(request: Request) -> Response:
    """Run the cell that is the body of the request."""
    session = found(request)
    with session.turn():
        source = (await body_of(request, MAX_SOURCE)).decode()
        result = await answer(session, source)
    return Response(result, media_type="application/json")


async def put_file(request: Request) -> Response:
    """Put a file into the folder of the session."""
    session, name = found(request), request.path_params["name"]
    with session.turn():
        data = await body_of(request, cells.MAX_FILE)
        await session.call(TIMEOUT, cells.write_file, name, data)
    return Response(status_code=204)


async def get_file(request: Request) -> Response:
    """Return a file of the folder, never as something that a browser would run."""
    session, name = found(request), request.path_params["name"]
    with session.turn():
        data = await session.call(TIMEOUT, cells.read_file, name)
    if data is None:
        raise HTTPException(404, "there is no such file, or it is too large")
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
    return Response(data, media_type="application/octet-stream", headers=headers)


async def converse(socket: WebSocket) -> None:
    """Run each message as a cell, in a session that lasts as long as the connection."""
    await socket.accept()
    try:
        session = await socket.state.sessions.open()
    except FullError:
        await socket.close(1013, "there are too many sessions")
        return
    try:
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            source: str | None = message.get("text")
            if source is None:
                await socket.close(1003, "a cell is text")
                return
            if len(source) > MAX_SOURCE:
                await socket.close(1009, "the cell is too long")
                return
            try:
                with session.turn():
                    result = await answer(session, source)
                await socket.send_text(result)
            except GoneError as error:
                await socket.send_json({"error": str(error), "gone": True})
                await socket.close(1011)
                return
    except WebSocketDisconnect:
        pass
    finally:
        session.over.set()


async def health(request: Request) -> Response:
    """Tell how many sessions there are."""
    return JSONResponse({"sessions": len(request.state.sessions), "most": MOST})


async def answer(session: Session, source: str) -> str:
    """Run a cell, and return what it has come to, as JSON."""
    try:
        result = await session.call(TIMEOUT, cells.run_cell, source)
        # It comes from a process that may have been taken over: it is data, but of any shape.
        pictures = [b64encode(one).decode() for one in result["pictures"]]
        return json.dumps({**result, "pictures": pictures})
    except asyncpool.errors.JobTimeoutError:
        error = f"the cell was not done within {TIMEOUT:g} s"
    except (
        asyncpool.errors.JobRaisedError,
        asyncpool.errors.JobNotPicklableError,
        asyncpool.errors.RemoteError,
    ) as failure:
        error = f"the cell has no result that can be sent: {failure}"
    except (LookupError, TypeError, ValueError, RecursionError) as failure:
        error = f"the cell has broken its session: {failure}"
    return json.dumps({"error": error})


def found(request: Request) -> Session:
    """Return the session that the path names."""
    sessions: Sessions = request.state.sessions
    return sessions.find(request.path_params["session"])


async def body_of(request: Request, most: int) -> bytes:
    """Return the body of a request, if it is not too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, f"this may have {most} bytes")
    return bytes(body)


async def refuse(_: Request, error: Exception) -> Response:
    """Say in JSON what is wrong with the request."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def explain(_: Request, error: Exception) -> Response:
    """Say in JSON why there is no answer."""
    status, text = next(
        PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS
    )
    return JSONResponse({"error": text or str(error)}, status)


PROBLEMS: dict[type[Exception], tuple[int, str]] = {
    GoneError: (410, ""),
    FullError: (503, "there are too many sessions"),
    BusyError: (429, "too many requests of this session are open"),
    TimeoutError: (504, "this was not done in time"),
    UnicodeDecodeError: (400, "a cell is text in UTF-8"),
    asyncpool.errors.RemoteError: (422, ""),
    asyncpool.errors.PoolClosedError: (503, "the service is being stopped"),
    asyncpool.errors.PoolBrokenError: (503, "no worker can be kept alive"),
}

app = Starlette(
    routes=[
        Route("/sessions", begin, methods=["POST"]),
        Route("/sessions/{session}", end, methods=["DELETE"]),
        Route("/sessions/{session}/cells", run, methods=["POST"]),
        Route("/sessions/{session}/files/{name}", put_file, methods=["PUT"]),
        Route("/sessions/{session}/files/{name}", get_file),
        Route("/health", health),
        WebSocketRoute("/converse", converse),
    ],
    lifespan=lifespan,
    exception_handlers={HTTPException: refuse, **dict.fromkeys(PROBLEMS, explain)},
)
