"""Requests and answers on the control socket: what is one, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.control import control_protocol
from asyncpool._core.control.control_protocol import (
    MAX_REQUEST,
    MAX_WORKERS,
    Request,
    is_name,
    pack_reply,
    unpack_reply,
)
from asyncpool.errors import ProtocolError

REQUESTS = st.one_of(
    st.builds(Request, st.sampled_from(["status", "reload", "stacks"])),
    st.builds(Request, st.just("resize"), st.integers(1, MAX_WORKERS)),
    st.builds(Request, st.just("stop"), now=st.booleans()),
)


@given(REQUESTS)
def test_a_request_arrives_as_it_was(request: Request) -> None:
    line = request.pack()
    assert line.count(b"\n") == 1
    assert Request.unpack(line) == request


def test_a_request_need_not_say_everything() -> None:
    assert Request.unpack(b'{"action": "stop"}\n') == Request("stop")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            b'{"action": "status"}',
            "a line of the control socket is cut off or too long",
        ),
        (b"\n", "a line of the control socket is no JSON"),
        (b"[" * 2000 + b"\n", "a line of the control socket is no JSON"),
        (b"\xff\n", "a line of the control socket is no JSON"),
        (b"[]\n", "a line of the control socket is no JSON object"),
        (b"{}\n", "there is no action None"),
        (b'{"action": "halt"}\n', "there is no action 'halt'"),
        (b'{"action": ["stop"]}\n', "there is no action ['stop']"),
        (b'{"action": "resize"}\n', "there may be 1 to 4096 workers, not None"),
        (
            b'{"action": "resize", "workers": 0}\n',
            "there may be 1 to 4096 workers, not 0",
        ),
        (
            b'{"action": "resize", "workers": 4097}\n',
            "there may be 1 to 4096 workers, not 4097",
        ),
        (
            b'{"action": "resize", "workers": true}\n',
            "there may be 1 to 4096 workers, not True",
        ),
        (b'{"action": "stop", "workers": 1}\n', "stop takes no number of workers"),
        (b'{"action": "stop", "now": 1}\n', "now is true or false, not 1"),
    ],
)
def test_what_is_no_request(line: bytes, error: str) -> None:
    with pytest.raises(ProtocolError, match=f"^{re.escape(error)}$"):
        Request.unpack(line)


def test_a_request_has_a_bound() -> None:
    line = b'{"action": "status"}'
    assert Request.unpack(line.ljust(MAX_REQUEST - 1) + b"\n") == Request("status")
    with pytest.raises(ProtocolError, match="too long"):
        Request.unpack(line.ljust(MAX_REQUEST) + b"\n")


@given(st.binary(max_size=50).map(lambda data: data + b"\n"))
def test_any_line_is_a_request_or_a_protocol_error(line: bytes) -> None:
    try:
        request = Request.unpack(line)
    except ProtocolError:
        return
    assert isinstance(request, Request)


@given(st.dictionaries(st.text(), st.integers() | st.text()))
def test_an_answer_arrives_as_it_was(reply: dict[str, Any]) -> None:
    line = pack_reply(reply)
    assert line.count(b"\n") == 1
    assert unpack_reply(line) == reply


def test_an_answer_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_protocol, "MAX_REPLY", 100)
    fits = {"a": "x" * (100 - len(json.dumps({"a": ""})) - 1)}
    assert unpack_reply(pack_reply(fits)) == fits
    fits["a"] += "x"
    assert unpack_reply(pack_reply(fits)) == {
        "error": "the answer has 101 bytes, too many"
    }


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
