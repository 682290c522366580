"""Which requests of a browser, or of another program, the dashboard answers."""

from __future__ import annotations

import pytest

from asyncpool._cli.dashboard.access import Access

ACCESS = Access(token="secret", host="127.0.0.1")
HOST = "127.0.0.1:8750"


def status(path: str = "/secret/", **headers: str) -> int | None:
    """Return the status with which a request is refused."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = ACCESS.refusal(path, {"host": HOST} | named)
    return None if refusal is None else refusal.status


@pytest.mark.parametrize(
    "path", ["/secret/", "/secret", "/secret/events", "/secret/a/b"]
)
def test_who_knows_the_token_is_let_in(path: str) -> None:
    assert status(path) is None


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "//secret/",
        "/Secret/",
        "/secret2/",
        "/secre/",
        "/sëcret/",
        "/x/secret/",
    ],
)
def test_who_does_not_is_refused(path: str) -> None:
    assert status(path) == 401


@pytest.mark.parametrize(
    "host",
    ["localhost:8750", "LOCALHOST", "127.0.0.1:9999", "[::1]:8750", "192.168.0.7:80"],
)
def test_an_address_and_localhost_are_good_names(host: str) -> None:
    """The port may be another one: ssh can forward it."""
    assert status(host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8750",
        "127.0.0.1.evil.example",
        "",
        "[::1",
        "a@b",
        "evil.example@localhost",
        "localhost/evil.example",
        "localhost?evil.example",
    ],
)
def test_another_name_of_this_machine_is_refused(host: str) -> None:
    """It may be that of a page whose owner has it point here (DNS rebinding)."""
    assert status(host=host) == 421


def test_the_name_that_it_was_bound_to_is_good() -> None:
    access = Access(token="secret", host="build.example")
    assert access.refusal("/secret/", {"host": "build.example:80"}) is None
    assert access.refusal("/secret/", {"host": "other.example:80"}) is not None


def test_its_own_page_may_ask() -> None:
    assert status(origin=f"http://{HOST}", sec_fetch_site="same-origin") is None


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1", "http://localhost:8750", ""],
)
def test_a_page_of_another_origin_may_not(origin: str) -> None:
    assert status(origin=origin) == 403


def test_another_site_may_link_to_the_page_and_not_load_it() -> None:
    assert status(sec_fetch_site="cross-site", sec_fetch_mode="navigate") is None
    assert status(sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 403


def test_tokens_are_long_and_differ() -> None:
    tokens = {Access.to("127.0.0.1").token for _ in range(10)}
    assert len(tokens) == 10
    assert {len(token) for token in tokens} == {22}
