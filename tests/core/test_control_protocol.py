"""Requests and answers on the control socket: what is one, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.options import MAX_WORKERS
from asyncpool._observe.control import protocol
from asyncpool._observe.control.protocol import (
    ACTIONS,
    MAX_JOBS,
    MAX_REQUEST,
    Request,
    pack_reply,
    unpack_line,
)
from asyncpool.errors import ProtocolError

REQUESTS = st.one_of(
    st.builds(Request, st.sampled_from(["status", "reload"])),
    st.builds(Request, st.just("resize"), st.integers(1, MAX_WORKERS)),
    st.builds(Request, st.just("stop"), now=st.booleans()),
    st.builds(
        Request,
        st.just("watch"),
        every=st.floats(0.1, 60) | st.integers(1, 60),
        jobs=st.integers(0, MAX_JOBS),
    ),
    st.builds(Request, st.just("kill"), slot=st.integers(0, 1 << 16)),
    st.builds(
        Request,
        st.sampled_from(["recycle", "stacks"]),
        slot=st.none() | st.integers(0, 1 << 16),
    ),
    st.builds(Request, st.just("stacks"), job=st.integers(1, 1 << 63)),
    st.builds(
        Request,
        st.just("profile"),
        slot=st.none() | st.integers(0, 1 << 16),
        seconds=st.floats(0.1, 600),
        function=st.none() | st.text(min_size=1, max_size=100),
    ),
)


@given(REQUESTS)
def test_a_request_arrives_as_it_was(request: Request) -> None:
    line = request.pack()
    assert line.count(b"\n") == 1
    assert Request.unpack(line) == request


def test_an_older_client_sends_fields_that_say_nothing() -> None:
    line = b'{"action": "status", "workers": null, "now": false}\n'
    assert Request.unpack(line) == Request("status")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"action": "status"}', "line of the control socket is cut off or too long"),
        (b"\n", "a line of the control socket is no JSON"),
        (b"[" * 2000 + b"\n", "a line of the control socket is no JSON"),
        (b"\xff\n", "a line of the control socket is no JSON"),
        (b"[]\n", "a line of the control socket is no JSON object"),
        (b"{}\n", "there is no action None"),
        (b'{"action": "halt"}\n', "there is no action 'halt'"),
        (b'{"action": ["stop"]}\n', "there is no action ['stop']"),
        (b'{"action": "resize"}\n', "there may be 1 to 4096 workers, not None"),
        (b'{"action": "resize", "workers": 0}\n', "may be 1 to 4096 workers, not 0"),
        (b'{"action": "resize", "workers": 4097}\n', "be 1 to 4096 workers, not 4097"),
        (b'{"action": "resize", "workers": true}\n', "be 1 to 4096 workers, not True"),
        (b'{"action": "stop", "workers": 1}\n', "stop takes no 'workers'"),
        (b'{"action": "status", "x": "y"}\n', "status takes no 'x'"),
        (b'{"action": "kill"}\n', "kill takes the slot of one worker"),
        (b'{"action": "kill", "slot": -1}\n', "slot is 0 to 65536, not -1"),
        (b'{"action": "kill", "slot": 1.0}\n', "slot is 0 to 65536, not 1.0"),
        (b'{"action": "kill", "slot": false}\n', "slot is 0 to 65536, not False"),
        (b'{"action": "stacks", "slot": 0, "job": 1}\n', "a slot or a job, not both"),
        (b'{"action": "stacks", "job": 0}\n', "job is 1 to 2**63, not 0"),
        (
            b'{"action": "stacks", "job": ' + b"9" * 100 + b"}\n",
            f"job is 1 to 2**63, not {'9' * 64}...",
        ),
        (b'{"action": "watch", "jobs": 1001}\n', "jobs is 0 to 1000, not 1001"),
        (b'{"action": "watch", "jobs": null}\n', "jobs is 0 to 1000, not None"),
        (b'{"action": "watch", "every": 0.01}\n', "is 0.1 to 60 seconds, not 0.01"),
        (b'{"action": "watch", "every": NaN}\n', "every is 0.1 to 60 seconds, not nan"),
        (b'{"action": "watch", "every": true}\n', "is 0.1 to 60 seconds, not True"),
        (b'{"action": "profile", "seconds": 601}\n', "is 0.1 to 600 seconds, not 601"),
        (b'{"action": "profile", "function": ""}\n', "most 1000 characters, or null"),
        (b'{"action": "stop", "now": 1}\n', "now is true or false, not 1"),
    ],
)
def test_what_is_no_request(line: bytes, error: str) -> None:
    with pytest.raises(ProtocolError, match=f"{re.escape(error)}$"):
        Request.unpack(line)


def test_a_request_has_a_bound() -> None:
    line = b'{"action": "status"}'
    assert Request.unpack(line.ljust(MAX_REQUEST - 1) + b"\n") == Request("status")
    with pytest.raises(ProtocolError, match="too long"):
        Request.unpack(line.ljust(MAX_REQUEST) + b"\n")


ANY_FIELDS = st.dictionaries(
    st.sampled_from(["workers", "now", "slot", "job", "every", "jobs", "seconds", "x"]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
)


@given(st.sampled_from([*ACTIONS]), ANY_FIELDS)
def test_any_object_is_a_request_or_a_protocol_error(
    action: str, fields: dict[str, Any]
) -> None:
    line = json.dumps({"action": action, **fields}).encode() + b"\n"
    try:
        request = Request.unpack(line)
    except ProtocolError:
        return
    assert Request.unpack(request.pack()) == request


@given(st.dictionaries(st.text(), st.integers() | st.text()))
def test_an_answer_arrives_as_it_was(reply: dict[str, Any]) -> None:
    line = pack_reply(reply)
    assert line.count(b"\n") == 1
    assert unpack_line(line) == reply


def test_an_answer_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_REPLY", 100)
    fits = {"a": "x" * (100 - len(json.dumps({"a": ""})) - 1)}
    assert unpack_line(pack_reply(fits)) == fits
    fits["a"] += "x"
    assert unpack_line(pack_reply(fits)) == {
        "error": "the answer has 101 bytes, too many"
    }
