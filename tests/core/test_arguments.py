"""What a user writes: addresses, amounts, environments, names; what is wrong is said."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._cluster.addresses import (
    Bind,
    Inherited,
    Systemd,
    Tcp,
    Unix,
    parse,
    parse_all,
    passed,
)
from asyncpool._core.options import MAX_BYTES, WorkerEnv
from asyncpool._wire.messages import note_on_misplaced
from asyncpool._wire.text import (
    in_units,
    is_name,
    printable,
    printable_block,
    printable_text,
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
        ("tcp://h:80/", "'tcp://h:80/': '80/' is no port, which is 0 to 65535"),
        ("::1:80", "'::1:80': an IPv6 address goes in brackets, as in [::1]:8000"),
        ("[::1:80", "'[::1:80': an IPv6 address goes in brackets, as in [::1]:8000"),
        ("[name]:80", "'[name]:80': '[name]' is no host"),
        ("a b:80", "'a b:80': 'a b' is no host"),
        ("me@host:80", "'me@host:80': 'me@host' is no host"),
        ("unix://", "'unix://' has no path; write unix:///run/app.sock"),
        ("unix:a\0b", r"'unix:a\x00b' has no path; write unix:///run/app.sock"),
        ("unix:/a?mode=888", OCTAL.format("888")),
        ("unix:/a?mode=1777", OCTAL.format("1777")),
        ("fd://x", "'fd://x': behind fd:// comes a number, as in fd://3"),
        ("fd://-3", "'fd://-3': behind fd:// comes a number, as in fd://3"),
    ],
)
def test_what_is_no_address(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(error)}$"):
        parse(text)


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
    parts = zip(("FDS", "PID", "FDNAMES"), values.values(), strict=True)
    known = {f"LISTEN_{it}": value for it, value in parts if value is not None}
    return passed(name, known, 77)


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
    with pytest.raises(ValueError, match=re.escape(error)):
        of_systemd(name, **changes)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (3, TypeError, "to values, or a function of the slot that returns one, not 3"),
        ({"A": 1}, TypeError, "worker_env: the value of 'A' must be a str, not 1"),
        ({1: "A"}, TypeError, "worker_env: a name must be a str, not 1"),
        ({"": "A"}, ValueError, "worker_env: '' cannot be the name of a variable"),
        ({"A=": "A"}, ValueError, "worker_env: 'A=' cannot be the name of a variable"),
        ({"A\0": "A"}, ValueError, "'A\\x00' cannot be the name of a variable"),
        ({"A": "\0"}, ValueError, "worker_env: the value of 'A' has a null character"),
    ],
)
def test_what_is_no_environment_is_refused(
    given: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"{re.escape(text)}$"):
        WorkerEnv(given)


def test_the_variables_of_a_worker_are_bounded() -> None:
    env = WorkerEnv(lambda _: {"A": "x" * (MAX_BYTES - 1)})
    assert env.of(0, forked=True)
    with pytest.raises(ValueError, match=r"^worker_env\(0\) has 8193 characters"):
        WorkerEnv(lambda _: {"A": "x" * MAX_BYTES}).of(0, forked=True)


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "LD_PRELOAD", "DYLD_LIBRARY_PATH"])
def test_what_counts_only_at_the_start_is_for_fresh_interpreters(name: str) -> None:
    env = WorkerEnv(lambda _: {"A": "1", name: "0"})
    assert env.of(0, forked=False) == (("A", "1"), (name, "0"))
    with pytest.raises(ValueError, match=rf"^worker_env\(0\) sets {name}, which"):
        env.of(0, forked=True)


@pytest.mark.parametrize(
    ("names", "text", "named"),
    [
        (["timeout"], "f() got an unexpected keyword argument 'timeout'", "timeout"),
        (["x", "key"], "f() got an unexpected keyword argument 'key'", "key"),
        (["key"], "'key' is an invalid keyword argument for int()", "key"),
        (["timeout"], "time.sleep() takes no keyword arguments", "timeout"),
        (["x"], "f() got an unexpected keyword argument 'x'", ""),
        (["timeout"], "f() got an unexpected keyword argument 'x'", ""),
        (["timeout"], "unsupported operand", ""),
    ],
)
def test_only_an_option_that_was_refused_is_misplaced(
    names: list[str], text: str, named: str
) -> None:
    found = note_on_misplaced(names, text, ("timeout", "key"))
    assert bool(found) == bool(named)
    assert not named or f"Pool.options({named}=...).submit(...)" in found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("FAKE\x1b[31mRED\x1b[0m", r"FAKE\x1b[31mRED\x1b[0m"),
        ("\x1b]0;pwn\x07\x1b[2J", r"\x1b]0;pwn\x07\x1b[2J"),
        ("10 %\r20 %", r"10 %\x0d20 %"),
        ("C1\x9b2J\x85", r"C1\x9b2J\x85"),
        ("\x7f\x00", r"\x7f\x00"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("ab\u202ecd\u2066", r"ab\u202ecd\u2066"),
        ("a\tb", "a\tb"),
        ("grüße 漢字 😀 \u00a0\ufeff", "grüße 漢字 😀 \u00a0\ufeff"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_moves_a_terminal_is_escaped_and_nothing_else(
    text: str, shown: str
) -> None:
    assert printable(text) == printable_text(text) == printable_block(text) == shown


def test_a_line_feed_begins_no_line_that_looks_like_a_record() -> None:
    assert printable(b"a\n2026 CRITICAL \xff") == "a\\n2026 CRITICAL \ufffd"
    assert printable_block("a\nb\x1b") == "a\nb\\x1b"
    shown = printable_text("a\nb\n\n  c", 6)
    assert printable_text(shown) == shown == "a\n    b\n\n     "


@given(st.text())
def test_one_line_is_one_line_and_no_character_controls_anything(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    for kind in map(unicodedata.category, shown.replace("\t", "")):
        assert kind not in {"Cc", "Zl", "Zp"}
    assert printable(shown) == shown


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1025, "1.0 KiB"),
        (64 << 20, "64 MiB"),
        (529_694_720, "505.2 MiB"),
        (419_430_400, "400 MiB"),
        (2 << 30, "2 GiB"),
        ((2 << 30) - 1, "2.0 GiB"),
        (3 << 39, "1.5 TiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_units_are_those_of_memory(size: int, text: str) -> None:
    assert in_units(size) == text


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("app", True),
        ("my-app_2.web:8000", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("", False),
        (".", False),
        ("..", False),
        (".hidden", False),
        ("-rf", False),
        ("a/b", False),
        ("a b", False),
        ("a\0", False),
        ("ä", False),
    ],
)
def test_names(text: str, good: bool) -> None:  # noqa: FBT001
    assert is_name(text) is good
