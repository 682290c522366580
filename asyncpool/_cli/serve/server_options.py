"""The options of uvicorn that ``asyncpool serve`` passes on, with their types."""

from __future__ import annotations

import inspect
import json
import ssl
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from asyncpool._cli.parameters import CommandError, seconds, seconds_or_never, size

F = TypeVar("F", bound=Callable[..., Any])

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}

# What is an option of the command, rather than of uvicorn.
_ELSEWHERE = {
    "backlog": "--backlog",
    "fd": "--bind fd://N",
    "host": "--bind",
    "limit_max_requests": "--max-requests",
    "loop": "--loop",
    "port": "--bind",
    "reload": "--reload-on-change",
    "timeout_graceful_shutdown": "--drain-timeout",
    "timeout_worker_healthcheck": "--ping-timeout",
    "uds": "--bind unix:PATH",
    "workers": "--workers",
}
_OPTIONAL = {"limit_max_requests"}  # which may be given in both ways

_FILE = click.Path(exists=True, dir_okay=False, readable=True)


# In the order in which --help shows them.
_OPTIONS = (
    click.option(
        "--ssl-certfile",
        type=_FILE,
        metavar="FILE",
        help="Serve TLS, with this certificate and its chain (PEM).",
    ),
    click.option(
        "--ssl-keyfile",
        type=_FILE,
        metavar="FILE",
        help="The certificate's key, if that is not in the same file.",
    ),
    click.option(
        "--ssl-keyfile-password-file",
        type=_FILE,
        metavar="FILE",
        help="A file whose first line is the password of the key.",
    ),
    click.option(
        "--root-path", metavar="PATH", help="What a proxy takes off each path."
    ),
    click.option(
        "--env-file",
        type=_FILE,
        metavar="FILE",
        help="Variables (NAME=VALUE) that workers have before they import the "
        "application; those that are set already stay.",
    ),
    click.option(
        "--factory",
        is_flag=True,
        help="NAME makes the application when it is called.",
    ),
    click.option(
        "--forwarded-allow-ips",
        metavar="ADDRESSES",
        help="Believe X-Forwarded-For and -Proto of these peers, separated by commas; "
        "'*' for all.  By default of none.",
    ),
    click.option(
        "--limit-concurrency",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="Answer 503 while a worker has so many connections or requests.",
    ),
    click.option(
        "--request-timeout",
        type=seconds_or_never,
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a request may go without a response, or its client without reading "
        "one; 0 for any time.",
    ),
    click.option(
        "--header-timeout",
        type=seconds,
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a client may take for the head of a request.",
    ),
    click.option(
        "--header-size",
        type=size,
        default="64K",
        show_default=True,
        metavar="SIZE",
        help="The most bytes of a head.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        default=10,
        show_default=True,
        metavar="NUMBER",
        help="How many requests a worker runs at once, with --interface wsgi.",
    ),
)


def server_options(function: F) -> F:
    """Add the options of uvicorn that servers need most."""
    # The decorator that is applied last is shown first.
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def read_options(
    words: tuple[str, ...], given: Mapping[str, Any], *, password_file: str | None
) -> dict[str, Any]:
    """Return options of uvicorn from ``NAME=VALUE`` and from the command's own.

    Args:
        words: ``NAME=VALUE``, as the user wrote them.
        given: The command's own options, by uvicorn's names; ``None`` if one is not given.
        password_file: Where the password of the key is.

    Raises:
        CommandError: If there is no such option, its value is of another type, or it was given
            in both ways; if there is no such file, or the certificate cannot be loaded.
    """
    import uvicorn  # noqa: PLC0415 - an extra, which only workers need otherwise

    known = inspect.signature(uvicorn.Config).parameters
    hints = get_type_hints(uvicorn.Config.__init__)
    found = {name: value for name, value in given.items() if value not in {None, False}}
    for word in words:
        name, equals, text = word.partition("=")
        if not (equals and name.isidentifier()):
            raise CommandError(f"--option: {word!r} is not NAME=VALUE")
        if name in _ELSEWHERE and name not in _OPTIONAL:
            raise CommandError(f"--option: {name} is the command's: {_ELSEWHERE[name]}")
        if name not in known or name == "app":
            near = get_close_matches(name, known, 1)
            hint = f"; is {near[0]} meant?" if near else ""
            raise CommandError(
                f"--option: uvicorn {uvicorn.__version__} has no {name}{hint}"
            )
        if name in found and name in given:
            raise CommandError(
                f"--option: {name} is given twice, by an option of its own too"
            )
        found[name] = _typed(name, text, hints.get(name, Any))
    if password_file is not None:
        lines = Path(password_file).read_text(encoding="utf-8").splitlines()
        found["ssl_keyfile_password"] = lines[0] if lines else ""
    _check_files(found)
    return found


def _typed(name: str, text: str, hint: Any) -> Any:
    """Return the value that a text stands for.

    Raises:
        CommandError: If the text is no value of that type.
    """
    kinds = _kinds(hint)
    choices = [word for kind in kinds for word in get_args(kind)]
    if kinds and all(get_origin(kind) is Literal for kind in kinds):
        if text not in choices:
            raise CommandError(
                f"--option: {name} is one of {', '.join(choices)}, not {text!r}"
            )
        return text
    if kinds == {bool}:
        if text.lower() not in _BOOLEANS:
            raise CommandError(f"--option: {name} is true or false, not {text!r}")
        return _BOOLEANS[text.lower()]
    for kind, what in ((int, "a whole number"), (float, "a number")):
        if kinds == {kind}:
            try:
                return kind(text)
            except ValueError:
                raise CommandError(
                    f"--option: {name} is {what}, not {text!r}"
                ) from None
    if any(kind is str or get_origin(kind) is Literal for kind in kinds):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise CommandError(
            f"--option: {name} is a list or an object, in JSON, not {text!r}"
        ) from None


def _kinds(hint: Any) -> set[Any]:
    """Return the types that a hint allows, ``None`` left out."""
    if get_origin(hint) in {Union, UnionType}:
        return set().union(*map(_kinds, get_args(hint)))
    return set() if hint is NoneType else {hint}


def _check_files(options: Mapping[str, Any]) -> None:
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "env_file"):
        path = options.get(name)
        if path is not None and not Path(path).is_file():
            raise CommandError(f"--option: {name}: there is no file {path}")
    certificate, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
    if certificate is None:
        if key is not None:
            raise CommandError("a key needs its certificate: --ssl-certfile FILE")
        return
    # A prompt for a password at the terminal would have to be answered in each worker.
    password = options.get("ssl_keyfile_password", "")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key, password
        )
    except (OSError, ValueError) as error:
        named = f"{certificate} and {key}" if key else f"{certificate}"
        raise CommandError(
            f"{named}: the certificate and its key cannot be loaded: {error}"
        ) from None
