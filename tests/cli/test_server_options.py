"""Options of uvicorn: their types, and what is refused before anything starts."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from asyncpool._cli.parameters import CommandError
from asyncpool._cli.serve.server_options import read_options


def read(*words: str, password_file: str | None = None, **given: Any) -> dict[str, Any]:
    return read_options(words, given, password_file=password_file)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *((f"proxy_headers={text}", True) for text in ("True", "yes", "ON", "1")),
        *((f"server_header={text}", False) for text in ("False", "no", "off", "0")),
        ("limit_concurrency=5", 5),
        ("ws_ping_interval=2.5", 2.5),
        ("ssl_keyfile_password=1234", "1234"),
        ("root_path=/api", "/api"),
        ("root_path=", ""),
        ('headers=[["x-shop", "1"]]', [["x-shop", "1"]]),
        ("lifespan=off", "off"),
        ("forwarded_allow_ips=10.0.0.1", "10.0.0.1"),
        ("http=h11", "h11"),
        ("limit_max_requests=7", 7),
    ],
)
def test_a_value_has_the_type_of_its_option(word: str, value: object) -> None:
    assert read(word) == {word.partition("=")[0]: value}


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("x", "--option: 'x' is not NAME=VALUE"),
        ("limit_concurrency=abc", "limit_concurrency is a whole number, not 'abc'"),
        ("limit_max_requests=1.5", "limit_max_requests is a whole number, not '1.5'"),
        ("ws_ping_interval=soon", "ws_ping_interval is a number, not 'soon'"),
        ("proxy_headers=maybe", "proxy_headers is true or false, not 'maybe'"),
        ("lifespan=later", "lifespan is one of auto, on, off, not 'later'"),
        ("headers=x", "headers is a list or an object, in JSON, not 'x'"),
        ("workers=2", "--option: workers is the command's: --workers"),
        ("uds=/x", "--option: uds is the command's: --bind unix:PATH"),
        ("rootpath=/x", f"uvicorn {uvicorn.__version__} has no rootpath; is root_path"),
        ("app=x", f"uvicorn {uvicorn.__version__} has no app"),
        ("env_file=/nowhere", "env_file: there is no file /nowhere"),
        ("ssl_certfile=/nope.pem", "ssl_certfile: there is no file /nope.pem"),
    ],
)
def test_what_has_not_is_refused(word: str, text: str) -> None:
    with pytest.raises(CommandError) as caught:
        read(word)
    assert text in caught.value.message


def test_what_was_not_given_is_uvicorns_choice() -> None:
    assert read(root_path=None, factory=False, limit_concurrency=None) == {}
    assert read(root_path="/x", factory=True) == {"root_path": "/x", "factory": True}


def test_nothing_is_given_twice() -> None:
    with pytest.raises(
        CommandError, match="root_path is given twice, by an option of its own"
    ):
        read("root_path=/y", root_path="/x")


def test_a_certificate_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cert.pem"
    path.write_text("no certificate")
    with pytest.raises(CommandError) as caught:
        read(ssl_certfile=str(path))
    assert caught.value.message.startswith(
        f"{path}: the certificate and its key cannot be loaded: "
    )
    with pytest.raises(
        CommandError, match="a key needs its certificate: --ssl-certfile FILE"
    ):
        read(ssl_keyfile=str(path))


def test_a_password_is_read_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        ssl.SSLContext, "load_cert_chain", lambda _, *args: loaded.append(args)
    )
    secret = tmp_path / "secret"
    secret.write_text("top\nthe rest\n")
    path = str(secret)
    found = read(password_file=path, ssl_certfile=path, ssl_keyfile=path)
    assert found["ssl_keyfile_password"] == "top"
    assert loaded == [(path, path, "top")]
