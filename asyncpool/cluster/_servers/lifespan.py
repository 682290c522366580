"""The lifespan of an ASGI application, which uvicorn runs: how it begins, and why it does not."""

from __future__ import annotations

import logging
from typing import Any

import uvicorn

from asyncpool._core.pickling.calls import describe

# Characters of a reason; a line of a traceback is shorter, a line of an application may not be.
_MOST = 500


async def begin_lifespan(lifespan: Any, config: uvicorn.Config) -> None:
    """Begin a lifespan of uvicorn's, and return when the application is ready.

    Raises:
        RuntimeError: If it refuses; the text has the reason that it gave, which uvicorn
            tells the log alone.
    """
    app = config.loaded_app
    witness = config.loaded_app = _Witness(app)
    logger = getattr(lifespan, "logger", None)  # there is none where it is off
    try:
        if logger is not None:
            lifespan.logger = _WithoutErrors(logger)
        await lifespan.startup()
    finally:
        config.loaded_app = app  # no request goes through the witness
        if logger is not None:
            lifespan.logger = logger
    if lifespan.should_exit:
        if witness.error is None and logger is not None and "\n" in witness.message:
            logger.error(witness.message)  # the reason below is its last line alone
        text = "the application's lifespan has refused to start"
        reason = f"{text}: {witness.reason}" if witness.reason else text
        raise RuntimeError(reason) from witness.error


class _WithoutErrors(logging.LoggerAdapter[logging.Logger]):
    """A logger without the errors: the master tells of a start that has failed.

    uvicorn would tell of it twice more, with its own frames.
    """

    def error(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Do not log the record."""


class _Witness:
    """An application in its lifespan, and why it did not begin.

    Args:
        app: The application.

    Attributes:
        message: What it said of that; empty if it said nothing.
        reason: The last line of what it said, or of its traceback; empty if there is none.
        error: What it has raised, if it did.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.message = self.reason = ""
        self.error: BaseException | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def listen(message: Any) -> None:
            if message["type"] == "lifespan.startup.failed":
                # Of Starlette it is a whole traceback.
                self.message = str(message.get("message", "")).strip()
                self.reason = _last_line(self.message)
            await send(message)

        try:
            await self._app(scope, receive, listen)
        except BaseException as error:
            self.error = error
            self.reason = self.reason or _last_line(describe(error))
            raise


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_MOST] if lines else ""
