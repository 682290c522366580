"""A web service that makes thumbnails, and survives the images that it is sent.

    uvicorn --app-dir examples thumbnails.app:app

Images are read in worker processes.  What is here takes requests, hands them to the
pool, and says in terms of HTTP what has become of them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from http import HTTPStatus
from typing import TypeVar

from starlette.applications import Starlette
from starlette.config import Config
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import asyncpool
from thumbnails.images import BadImageError, make_thumbnail

T = TypeVar("T")

config = Config(env_prefix="THUMBNAILS_")  # from the environment
WORKERS: int | None = config("WORKERS", cast=int, default=None)  # as many as CPUs
MAX_QUEUED = config("MAX_QUEUED", cast=int, default=32)  # images that may wait
MAX_MEMORY = config("MAX_MEMORY", cast=int, default=512 << 20)  # bytes, each worker
MAX_UPLOAD = config("MAX_UPLOAD", cast=int, default=20 << 20)  # bytes
STRICT = config("STRICT", cast=bool, default=True)  # no start without the sandbox
TIMEOUT = config("TIMEOUT", cast=float, default=10.0)  # seconds, to upload and to work

# Decoders need nothing but the bytes that they get.  A hostile image that takes over its worker
# has no files, no network, no programs, and not the environment of the service.
SANDBOX = replace(asyncpool.Sandbox.parser(), strict=STRICT)

SIZES = {"small": 64, "medium": 256, "large": 1024}

# What may become of an image besides a thumbnail; anything else is a bug, and a plain 500.
PROBLEMS: dict[type[Exception], tuple[int, str]] = {
    BadImageError: (422, ""),  # it says itself what is wrong
    asyncpool.errors.JobTimeoutError: (504, "this image was not done in time"),
    asyncpool.errors.WorkerOutOfMemoryError: (500, "this image needs too much memory"),
    asyncpool.errors.WorkerCrashedError: (
        500,
        "each worker that tried this image died",
    ),
    asyncpool.errors.PoolFullError: (503, "too many images are waiting"),
    asyncpool.errors.PoolBrokenError: (503, "no worker can be kept alive"),
    asyncpool.errors.PoolClosedError: (503, "the service is being stopped"),
    ClientDisconnect: (499, "the client has left"),  # so nobody reads this
}


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[dict[str, asyncpool.Pool]]:
    """Have a pool from startup to shutdown; requests find it in their state."""
    async with asyncpool.Pool(
        WORKERS,
        name="thumbnails",
        preload=["thumbnails.images"],  # imported once, before the sandbox
        sandbox=SANDBOX,
        codec="msgspec",  # nor is anything unpickled that such a worker sends
        functions=[make_thumbnail],
        errors=[BadImageError],
        worker_limits=asyncpool.WorkerLimits(kill_memory=MAX_MEMORY),
        max_queued=MAX_QUEUED,
        on_cancel="kill",  # C code does not listen, and has nothing to clean up here
    ) as pool:
        yield {"pool": pool}


async def thumbnails(request: Request) -> Response:
    """Answer an image with its thumbnail."""
    size = SIZES.get(request.query_params.get("size", "medium"))
    if size is None:
        raise HTTPException(400, f"size must be one of {', '.join(SIZES)}")
    upload = await read_upload(request)
    deadline = asyncio.get_running_loop().time() + TIMEOUT
    # It may be made twice, and the first worker may have died of something else.
    view = request.state.pool.options(deadline=deadline, max_attempts=2)
    job = view.submit(make_thumbnail, upload, size)
    return Response(await unless_client_leaves(request, job), media_type="image/webp")


async def health(request: Request) -> Response:
    """Tell how the pool is, and whether it can work at all."""
    stats = request.state.pool.stats()
    return JSONResponse(asdict(stats), 200 if stats.state == "running" else 503)


async def read_upload(request: Request) -> bytearray:
    """Return the body of a request, if that is not too large and comes in time."""
    too_large = HTTPException(413, f"an image may have {MAX_UPLOAD} bytes")
    if int(request.headers.get("content-length", 0)) > MAX_UPLOAD:
        raise too_large  # before anything is sent, if the client asks first, as curl does
    upload = bytearray()
    try:
        async with asyncio.timeout(TIMEOUT):
            async for chunk in request.stream():
                upload += chunk
                if len(upload) > MAX_UPLOAD:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, "the upload takes too long") from None
    return upload


async def unless_client_leaves(request: Request, job: asyncpool.Job[T]) -> T:
    """Return the result of *job*; cancel it if nobody waits for it any more."""
    left = asyncio.create_task(client_left(request))
    try:
        await asyncio.wait((job, left), return_when=asyncio.FIRST_COMPLETED)
        if job.done():
            return job.result()
        raise ClientDisconnect
    finally:  # also if this handler is cancelled
        left.cancel()
        job.cancel()  # which does nothing to one that is done


async def client_left(request: Request) -> None:
    """Wait until the client goes away, once its request has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def refuse(_: Request, error: Exception) -> Response:
    """Say in JSON what is wrong with the request."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def explain(_: Request, error: Exception) -> Response:
    """Say in JSON why there is no thumbnail."""
    kinds = type(error).__mro__
    status, text = next(PROBLEMS[kind] for kind in kinds if kind in PROBLEMS)
    headers = {"Retry-After": "1"} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return JSONResponse({"error": text or str(error)}, status, headers)


app = Starlette(
    routes=[
        Route("/thumbnails", thumbnails, methods=["POST"]),
        Route("/health", health),
    ],
    lifespan=lifespan,
    exception_handlers={HTTPException: refuse, **dict.fromkeys(PROBLEMS, explain)},
)
