"""gunicorn's workers on asyncio's own loop; its documentation has one make a class."""

from uvicorn_worker import UvicornWorker


class AsyncioWorker(UvicornWorker):  # type: ignore[misc] # it has no annotations
    CONFIG_KWARGS = {"loop": "asyncio", "http": "httptools"}  # noqa: RUF012 # theirs


class UvloopWorker(UvicornWorker):  # type: ignore[misc] # it has no annotations
    CONFIG_KWARGS = {"loop": "uvloop", "http": "httptools"}  # noqa: RUF012
