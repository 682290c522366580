"""Addresses: what is one, what is none, and what the error says."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.cluster.addresses import (
    Bind,
    Inherited,
    Systemd,
    Tcp,
    Unix,
    parse,
    parse_all,
    passed,
)

NAMES = st.text(string.ascii_letters + string.digits + ".-", max_size=30)
V6 = st.ip_addresses(v=6).map(str)
PORTS = st.integers(0, 65535)
PATHS = st.text(
    st.characters(exclude_characters="\0", codec="utf-8"), min_size=1
).filter(lambda path: "?mode=" not in path and not path.startswith("//"))
BINDS = st.one_of(
    st.builds(Tcp, st.one_of(NAMES, V6, st.ip_addresses(v=4).map(str)), PORTS),
    st.builds(Unix, PATHS, st.none() | st.integers(0, 0o777)),
    st.builds(Inherited, st.integers(0, 10_000)),
    st.builds(Systemd, NAMES),
)


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("127.0.0.1:8000", Tcp("127.0.0.1", 8000)),
        ("tcp://127.0.0.1:8000", Tcp("127.0.0.1", 8000)),
        ("localhost:0", Tcp("localhost", 0)),
        (":8000", Tcp("", 8000)),
        ("tcp://:8000", Tcp("", 8000)),
        ("[::1]:65535", Tcp("::1", 65535)),
        ("tcp://[fe80::1%eth0]:1", Tcp("fe80::1%eth0", 1)),
        # A name like any other, though not one of the best.
        ("unix.example:80", Tcp("unix.example", 80)),
        ("tcp:80", Tcp("tcp", 80)),
        ("unix:///run/app.sock", Unix("/run/app.sock")),
        ("unix:/run/app.sock", Unix("/run/app.sock")),
        ("unix:app.sock", Unix("app.sock")),
        ("unix:///run/app.sock?mode=660", Unix("/run/app.sock", 0o660)),
        ("unix:///run/a?b", Unix("/run/a?b")),
        ("fd://3", Inherited(3)),
        ("fd:0", Inherited(0)),
        ("systemd:", Systemd()),
        ("systemd:web", Systemd("web")),
    ],
)
def test_what_an_address_means(text: str, bind: Bind) -> None:
    assert parse(text) == bind


FORMS = (
    "127.0.0.1:8000, [::1]:8000, tcp://localhost:8000, unix:///run/app.sock, "
    "fd://3 or systemd:"
)
OCTAL = "'unix:/a?mode={0}': '{0}' are no permissions, which are octal, as in ?mode=660"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("localhost", f"'localhost' has no port; write {FORMS}"),
        ("", f"'' has no port; write {FORMS}"),
        ("http://localhost:80", f"'http://localhost:80' is no address; write {FORMS}"),
        ("host:", "'host:': '' is no port, which is 0 to 65535"),
        ("host:65536", "'host:65536': '65536' is no port, which is 0 to 65535"),
        ("host:-1", "'host:-1': '-1' is no port, which is 0 to 65535"),
        ("host:٣", "'host:٣': '٣' is no port, which is 0 to 65535"),
        (
            "tcp://h:80/",
            "'tcp://h:80/': '80/' is no port, which is 0 to 65535",
        ),
        ("::1:80", "'::1:80': an IPv6 address goes in brackets, as in [::1]:8000"),
        ("[::1:80", "'[::1:80': an IPv6 address goes in brackets, as in [::1]:8000"),
        ("[name]:80", "'[name]:80': '[name]' is no host"),
        ("a b:80", "'a b:80': 'a b' is no host"),
        ("me@host:80", "'me@host:80': 'me@host' is no host"),
        ("unix://", "'unix://' has no path; write unix:///run/app.sock"),
        ("unix:a\0b", r"'unix:a\x00b' has no path; write unix:///run/app.sock"),
        (
            "unix:/a?mode=888",
            OCTAL.format("888"),
        ),
        (
            "unix:/a?mode=1777",
            OCTAL.format("1777"),
        ),
        ("fd://x", "'fd://x': behind fd:// comes a number, as in fd://3"),
        ("fd://-3", "'fd://-3': behind fd:// comes a number, as in fd://3"),
    ],
)
def test_what_is_no_address(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        parse(text)


@given(BINDS)
def test_an_address_is_written_as_it_is_read(bind: Bind) -> None:
    assert parse(str(bind)) == bind


@given(st.text(alphabet=":/[]@%?=.umnixtcpfdsy018 \0", max_size=30))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        bind = parse(text)
    except ValueError as error:
        message = str(error)
    else:
        message = repr(text)
        assert parse(str(bind)) == bind
    assert repr(text) in message


def test_several_addresses() -> None:
    assert parse_all(["h:0", "h:0", "fd://3"]) == (
        Tcp("h", 0),
        Tcp("h", 0),
        Inherited(3),
    )
    with pytest.raises(ValueError, match=r"^there is nothing to listen on; write 127"):
        parse_all([])
    with pytest.raises(ValueError, match=r"^tcp://h:80 is given twice$"):
        parse_all(["h:80", "tcp://h:80"])


def of_systemd(name: str = "", **changes: str | None) -> tuple[int, ...]:
    values = {"count": "3", "owner": "77", "names": "web:web:admin"} | changes
    return passed(name, pid=77, **values)


def test_descriptors_of_systemd() -> None:
    assert of_systemd() == (3, 4, 5)
    assert of_systemd(names=None) == (3, 4, 5)
    assert of_systemd("web") == (3, 4)
    assert of_systemd("admin") == (5,)


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("", {"count": None}, "systemd has passed no sockets (LISTEN_FDS is not set)"),
        ("", {"owner": None}, "systemd has passed no sockets (LISTEN_FDS is not set)"),
        ("", {"count": "x"}, "LISTEN_FDS is 'x', which is no number of sockets"),
        ("", {"count": "0"}, "LISTEN_FDS is '0', which is no number of sockets"),
        ("", {"owner": "1"}, "the sockets were passed to process 1, and this is 77"),
        ("we", {}, "there is no such name in LISTEN_FDNAMES, 'web:web:admin'"),
        ("a", {"names": None}, "there is no such name in LISTEN_FDNAMES, None"),
    ],
)
def test_there_is_nothing_of_systemd(
    name: str, changes: dict[str, str | None], error: str
) -> None:
    with pytest.raises(ValueError, match=f"^'systemd:{name}': {re.escape(error)}"):
        of_systemd(name, **changes)
