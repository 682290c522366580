"""The messages on the control socket of a cluster.

Each line is one JSON object.  A client asks and the cluster answers, in turns.  A
connection that stays open is closed when the cluster's process ends.  So a client that
has asked the cluster to stop can wait for that.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from asyncpool.errors import ProtocolError

Action = Literal["status", "reload", "resize", "stop", "stacks"]

# The most bytes of a line, with its end.
MAX_REQUEST = 4096
MAX_REPLY = 1 << 24

# A larger number is more likely a mistake.
MAX_WORKERS = 4096

_MAX_NAME = 64
_IN_NAMES = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:"
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a client wants.

    Attributes:
        action: What the cluster should do.
        workers: For ``"resize"``, the number of workers.
        now: For ``"stop"``, whether open connections are cut off.
    """

    action: Action
    workers: int | None = None
    now: bool = False

    def pack(self) -> bytes:
        """Return the line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def unpack(cls, line: bytes) -> Request:
        """Read a line.

        Raises:
            ProtocolError: If it is no valid request.  The error says why.
        """
        fields = _unpack(line, MAX_REQUEST)
        action: Any = fields.get("action")
        workers, now = fields.get("workers"), fields.get("now", False)
        if action not in get_args(Action):
            raise ProtocolError(f"there is no action {action!r}")
        if action == "resize":
            # True is an int in Python, too.
            if type(workers) is not int or not 1 <= workers <= MAX_WORKERS:
                raise ProtocolError(
                    f"there may be 1 to {MAX_WORKERS} workers, not {workers!r}"
                )
        elif workers is not None:
            raise ProtocolError(f"{action} takes no number of workers")
        if type(now) is not bool:
            raise ProtocolError(f"now is true or false, not {now!r}")
        return cls(action, workers, now)


def pack_reply(reply: dict[str, Any]) -> bytes:
    """Return the line of an answer; an answer that is too long becomes an error."""
    line = json.dumps(reply).encode() + b"\n"
    if len(line) > MAX_REPLY:
        return pack_reply({"error": f"the answer has {len(line)} bytes, too many"})
    return line


def unpack_reply(line: bytes) -> dict[str, Any]:
    """Read an answer; its ``"error"`` says what went wrong, if anything.

    Raises:
        ProtocolError: If it is no valid answer.
    """
    return _unpack(line, MAX_REPLY)


def is_name(text: str) -> bool:
    """Tell whether a cluster may have this name, which becomes a part of a path."""
    return (
        0 < len(text) <= _MAX_NAME
        and set(text) <= _IN_NAMES
        and not text.startswith((".", "-"))
    )


def _unpack(line: bytes, most: int) -> dict[str, Any]:
    if len(line) > most or not line.endswith(b"\n"):
        raise ProtocolError("a line of the control socket is cut off or too long")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a line of the control socket is no JSON") from error
    if not isinstance(fields, dict):
        raise ProtocolError("a line of the control socket is no JSON object")
    return fields
