"""The trace context of jobs on its way to an agent: headers, as JSON, since agents unpickle nothing."""

from __future__ import annotations

import json
import pickle
from typing import Any

from asyncpool._core.wire.messages import MAX_TRACE
from asyncpool.errors import ProtocolError


def pack_headers(trace: bytes) -> bytes:
    """Return what the agent gets for the trace of a context, which is of this process's making."""
    if not trace:
        return b""
    return json.dumps(pickle.loads(trace)).encode()  # noqa: S301 - as just said


def unpack_headers(data: bytes) -> bytes:
    """Return the trace of a context that :func:`pack_headers` was given.

    Raises:
        ProtocolError: If it has no headers, or too many.
    """
    if not data:
        return b""
    try:
        headers: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a trace context cannot be read: {error}") from error
    if not isinstance(headers, dict) or not all(
        type(value) is str for value in headers.values()
    ):
        raise ProtocolError("a trace context has other things than headers")
    trace = pickle.dumps(headers, 5)
    if len(trace) > MAX_TRACE:
        raise ProtocolError(f"a trace context has {len(trace)} bytes")
    return trace
