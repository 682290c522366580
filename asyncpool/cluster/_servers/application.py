"""What kind of application something is, before it replaces one that works."""

from __future__ import annotations

import inspect
import logging

from asyncpool._core.logs import worker_messages as say

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Any

# How many arguments each kind is called with.
_ASGI3, _WSGI, _ASGI2, _FACTORY = 3, 2, 1, 0


def asgi_application(found: Any, name: str, *, factory: bool) -> Any:
    """Return an ASGI application.

    Args:
        found: It, or what makes it.
        name: What it is called in errors.
        factory: Whether it is certain to be what makes it.

    Raises:
        TypeError: If it is none; the text says what it looks like, and the way out.
    """
    found = _made(found, name, factory=factory)
    if _takes(found, _ASGI3) or _takes(found, _ASGI2):
        return found
    if _takes(found, _WSGI):
        raise TypeError(
            f"{name} is a WSGI application, not ASGI: serve it with --interface wsgi, in a "
            "program with asyncpool.cluster.wsgi()"
        )
    raise TypeError(
        f"{name} is no ASGI application: {_kind(found)} cannot be called with "
        "(scope, receive, send)"
    )


def asgi_version(app: Any) -> str:
    """Return how an ASGI application is to be called, as an ``interface`` of uvicorn's.

    uvicorn takes whatever is not written with ``async def`` for ASGI 2, which is called
    with the scope alone, and so a plain function that returns a coroutine, or a partial.
    """
    return "asgi3" if _takes(app, _ASGI3) else "auto"


def wsgi_application(found: Any, name: str, *, factory: bool) -> Any:
    """Return a WSGI application; see :func:`asgi_application`."""
    found = _made(found, name, factory=factory)
    if _takes(found, _WSGI):
        return found
    if _takes(found, _ASGI3):
        raise TypeError(
            f"{name} is an ASGI application, not WSGI: serve it with --interface asgi"
        )
    raise TypeError(
        f"{name} is no WSGI application: {_kind(found)} cannot be called with "
        "(environ, start_response)"
    )


def with_usual_keys(app: Any, threads: int) -> Any:
    """Return a WSGI application that finds what other servers give it, and a2wsgi does not.

    A framework reads a body in chunks only if ``wsgi.input_terminated`` says that it may read to
    the end, and sends files with ``wsgi.file_wrapper``.

    Args:
        app: The application.
        threads: How many threads call it.
    """
    import sys  # noqa: PLC0415 - only WSGI needs them
    from wsgiref.util import FileWrapper  # noqa: PLC0415 - likewise

    def call(environ: dict[str, Any], start_response: Any) -> Any:
        environ["wsgi.input_terminated"] = True
        environ["wsgi.file_wrapper"] = FileWrapper
        environ["wsgi.errors"] = sys.stderr
        environ["wsgi.multithread"] = threads > 1
        return app(environ, start_response)

    return call


def load_environment(path: str) -> None:
    """Set the variables of a file, but for those that are set already.

    Raises:
        ModuleNotFoundError: If python-dotenv is missing.
        FileNotFoundError: If there is no such file.
    """
    # Its own answer to a missing file is silence.
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
        try:
            from dotenv import load_dotenv  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "an env_file needs python-dotenv: "
                "pip install 'asyncpool-supervised[cluster]'"
            ) from error
        load_dotenv(stream=file)


def _made(found: Any, name: str, *, factory: bool) -> Any:
    if not callable(found):
        raise TypeError(f"{name} is no application: {_kind(found)} cannot be called")
    if not factory and not _is_factory(found):
        return found
    if not factory:
        say.LOOKS_LIKE_FACTORY.log(logging.getLogger("asyncpool"), {"function": name})
    made = found()
    if not callable(made):
        raise TypeError(
            f"{name} has made no application: {_kind(made)} cannot be called"
        )
    return made


def _is_factory(found: Any) -> bool:
    taken = [count for count in (_ASGI3, _WSGI, _ASGI2) if _takes(found, count)]
    return not taken and _takes(found, _FACTORY)


def _takes(found: Any, count: int) -> bool:
    """Tell whether something can be called with so many arguments, as far as is known."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # of some that are made in C
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _kind(found: Any) -> str:
    cls = type(found)
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
