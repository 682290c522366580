"""The decoders that are fuzzed: each takes any bytes, and raises nothing but what it may.

The first byte of an input says which decoder it is for, so that one process fuzzes all.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import suppress

from asyncpool._cluster.service import _read_requests
from asyncpool._core.figures import RequestFigures
from asyncpool._observe.control.protocol import MAX_REPLY, Request, unpack_line
from asyncpool._wire import messages, page
from asyncpool._wire.buffers import ReceivedPickle
from asyncpool._wire.formats import format_of
from asyncpool._wire.frames import (
    HEADER_SIZE,
    VERSION,
    Frame,
    FrameDecoder,
    FrameKind,
    header,
)
from asyncpool._wire.log_records import read_record
from asyncpool._wire.messages import Failure, pack_numbers, unpack_numbers
from asyncpool._wire.page import (
    CHUNK_SIZE,
    LOG_HEAD,
    LOG_SIZE,
    copy_log,
    note,
    read_log,
)
from asyncpool._wire.profile import MAX_CHUNK, SampleChunk
from asyncpool._wire.schemas import load_failure
from asyncpool.errors import JobNotPicklableError, ProtocolError
from tests.helpers.inside import no_pickles_in_logs

__all__ = ["NAMES", "SEEDS", "run"]

_LIMIT = 4096
_ERRORS: dict[str, type[BaseException]] = {
    "ValueError": ValueError,
    "E": UnicodeDecodeError,
}
_FORMATS = [format_of("json"), format_of("msgspec")]
_KINDS = [how.kind_of(hint) for hint in (object, bytes, list[int]) for how in _FORMATS]


def _decode(parts: list[bytes], most: int) -> tuple[list[Frame], str]:
    decoder = FrameDecoder(max_payload=_LIMIT, most=most)
    found: list[Frame] = []
    try:
        for part in (*parts, b""):
            frames = decoder.feed(part)
            assert len(frames) <= most
            found += frames
            while decoder.more:
                found += decoder.feed(b"")
            assert decoder.error or decoder.pending <= HEADER_SIZE + _LIMIT
    except ProtocolError as error:
        return found, str(error)
    return found, ""


def frames(data: bytes) -> None:
    """A stream gives the same frames, however it is cut, and however many come at once."""
    size, most, stream = (
        (data[:1] or b"\1")[0] or 1,
        (data[1:2] or b"\1")[0] or 1,
        data[2:],
    )
    whole = _decode([stream], most=1 << 30)
    parts = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert _decode(parts, most) == whole
    for frame in whole[0]:
        assert len(frame.payload) <= _LIMIT


def numbers(data: bytes) -> None:
    with suppress(ProtocolError):
        assert pack_numbers(unpack_numbers(data)) == data


def reports(data: bytes) -> None:
    with suppress(ProtocolError):
        Failure.unpack(data)


def log_records(data: bytes) -> None:
    with suppress(ProtocolError):
        read_record(data)


def samples(data: bytes) -> None:
    with suppress(ProtocolError):
        SampleChunk.unpack(data[:MAX_CHUNK])


def heartbeats(data: bytes) -> None:
    page.unpack_beat(data)
    for beat in page.read_beats(data.ljust(5000, b"\0")):
        assert len(beat.details) <= messages.MAX_DETAILS


def chunk_log(data: bytes) -> None:
    memory = data.ljust(LOG_SIZE, b"\0")[:LOG_SIZE]
    with no_pickles_in_logs():
        log = copy_log(memory, 0, 1, 1)
        assert len(read_log(data)) <= CHUNK_SIZE
        assert log is None or len(read_log(log)) <= CHUNK_SIZE


def stack_texts(data: bytes) -> None:
    assert len(messages.tidy(data.decode(errors="replace"))) <= 2 * len(data) + 100


def figures(data: bytes) -> None:
    with suppress(ProtocolError):
        RequestFigures.unpack(unpack_numbers(data), RequestFigures())


def control_requests(data: bytes) -> None:
    with suppress(ProtocolError, ValueError):
        Request.unpack(data)
    with suppress(ProtocolError, ValueError):
        unpack_line(data[:MAX_REPLY])


def open_requests(data: bytes) -> None:
    for row in _read_requests(1, data.decode(errors="replace")):
        json.dumps(row, allow_nan=False)


def data_values(data: bytes) -> None:
    """A message of a data-only pool: a value or an error, with buffers beside it."""
    head, rest = data[:2].ljust(2, b"\0"), data[2:]
    cut = head[1] % (len(rest) + 1)
    payload: bytes | ReceivedPickle = rest
    if head[0] & 64:
        payload = ReceivedPickle(rest[cut:], [memoryview(rest[:cut])])
    with suppress(ProtocolError, JobNotPicklableError):
        _KINDS[head[0] % len(_KINDS)].load(payload)


def data_errors(data: bytes) -> None:
    with suppress(ProtocolError, JobNotPicklableError):
        assert isinstance(load_failure(_ERRORS, data), BaseException)


_TARGETS: list[Callable[[bytes], None]] = [
    frames,
    numbers,
    reports,
    log_records,
    samples,
    heartbeats,
    chunk_log,
    stack_texts,
    figures,
    control_requests,
    data_values,
    data_errors,
    open_requests,
]
NAMES = [target.__name__ for target in _TARGETS]


def run(data: bytes) -> None:
    """Feed one decoder with *data*.

    Raises:
        Exception: If it has a bug.
    """
    if data:
        _TARGETS[data[0] % len(_TARGETS)](data[1:])


def _seed(name: str, data: bytes) -> bytes:
    return bytes((NAMES.index(name),)) + data


def _log(entries: bytes) -> bytes:
    return LOG_HEAD.pack(4, 0, 1, 1) + entries


def _part(text: bytes) -> bytes:
    return len(text).to_bytes(4) + text


# Two bytes, and a set of a tuple of them, a list and an int.
_IN_PARTS = b"\2\1" + (2).to_bytes(8) + b"ab" + _part(b"[9,2,0,2,5,3,6,1]") + _part(b"")
_FAILURE = b'\1\0{"type": "ValueError", "text": "no", "traceback": "T", "notes": ["n"], "args": [1]}'
_BEAT = page.Beat(1, 1, 1, 2.5, b"abc").pack()
SEEDS = [
    *(
        _seed("frames", bytes((size, 2)) + header(kind, 3, 1, 1, 7) + b"abc")
        for size, kind in itertools.product((1, 25), (FrameKind.VALUE, FrameKind.AREA))
    ),
    _seed("frames", b"\x20\x01" + bytes((VERSION, 8)) * 40),
    _seed("numbers", pack_numbers((1, 2, 3))),
    _seed("reports", Failure("initializer", "it failed", "Traceback").pack()),
    _seed("heartbeats", _BEAT.ljust(2048, b"\0") + _BEAT),
    _seed(
        "log_records", b'[[30,1,2,3,4,1,5.5],["a","","","","","","","","","x"],{"n":1}]'
    ),
    _seed("samples", b'[["f","g"],[[3,0,1]],[0,0,0],""]'),
    _seed("chunk_log", _log(note(7) + note("seven") + note(b"7") + note(7.5))),
    _seed(
        "stack_texts", b'Thread 0x1 (most recent call first):\n  File "a.py", line 1'
    ),
    _seed("figures", pack_numbers(RequestFigures().pack())),
    _seed("control_requests", b'{"version": 1, "action": "status"}\n'),
    _seed("data_values", b'\0\0\1\0{"b": [1, 2], "a": [null, 1.5]}'),
    *(
        _seed("data_values", bytes((number, 0)) + _IN_PARTS + rest)
        for number, rest in itertools.product(
            (1, 3, 65), (_part(b"[[1,2],3]") + _part(b""), b"")
        )
    ),
    _seed("data_errors", _FAILURE),
]
