"""The messages on the control socket of a pool or a cluster.

Each line is one JSON object.  A client asks and the program answers, in turns; after
``"watch"`` the program goes on with one line after the other, until the client goes.  A
connection that stays open is closed when the pool, or the cluster's process, ends.  So a
client that has asked a cluster to stop can wait for that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from inspect import isawaitable
from typing import Any

from asyncpool._core.options import MAX_WORKERS
from asyncpool._wire.text import MAX_PROGRAM_NAME
from asyncpool.errors import ProtocolError

# What changes nothing, and is given up if the client leaves before the answer.
QUESTIONS = frozenset(("status", "requests", "stacks", "profile"))

# The most bytes of a line, with its end.
MAX_REQUEST = 4096
MAX_REPLY = 1 << 24

MAX_JOBS = 1000

# Seconds: how often a client that watches gets a line, and how long a profile may take.
SHORTEST, LONGEST = 0.1, 60.0
LONGEST_PROFILE = 600.0

_MAX_FUNCTION = 1000

# What a client may want, and what each action is told besides.
ACTIONS: dict[str, tuple[str, ...]] = {
    "status": (),
    "requests": (),
    "watch": ("every", "jobs"),
    "stacks": ("slot", "job"),
    "profile": ("seconds", "slot", "function"),
    "kill": ("slot",),
    "recycle": ("slot",),
    "resize": ("workers",),
    "reload": (),
    "stop": ("now",),
}

# What programs may have a pool do that they cannot touch: its methods of these names, which check
# what they are given.
ORDERS = frozenset(("stats", "stacks", "profile", "retire", "kill", "roll", "resize"))


async def carry_out(pool: Any, order: str, **given: Any) -> Any:
    """Have *pool* do what one of these says, and return what comes of it.

    Args:
        pool: The pool, or what has these methods.
        order: Which method is meant.
        given: Its arguments; a list stands for a tuple, which JSON does not have.

    Raises:
        ValueError: If there is no such order; and what the method raises.
    """
    if order not in ORDERS:
        raise ValueError(f"there is no {order!r} to ask for")
    for name, value in given.items():
        given[name] = tuple(value) if isinstance(value, list) else value
    found = getattr(pool, order)(**given)
    return await found if isawaitable(found) else found


# Between which bounds a number is, and what errors say of it.
_BOUNDS: dict[str, tuple[float, float, str]] = {
    "workers": (1, MAX_WORKERS, "there may be {} to {} workers"),
    "slot": (0, 1 << 16, "slot is {} to {}"),
    "job": (1, 1 << 63, "job is {} to 2**63"),
    "jobs": (0, MAX_JOBS, "jobs is {} to {}"),
    "every": (SHORTEST, LONGEST, "every is {:g} to {:g} seconds"),
    "seconds": (SHORTEST, LONGEST_PROFILE, "seconds is {:g} to {:g} seconds"),
    "now": (False, True, "now is true or false"),
}
_OPTIONAL = frozenset(("slot", "job", "function"))


def _check(name: str, value: Any) -> None:
    if name == "function":
        if type(value) is not str or not 0 < len(value) <= _MAX_FUNCTION:
            raise ProtocolError(
                f"function is a name of at most {_MAX_FUNCTION} characters, or null"
            )
        return
    least, most, what = _BOUNDS[name]
    # True is an int in Python, too.
    kinds = (int, float) if type(least) is float else (type(least),)
    if type(value) not in kinds or not least <= value <= most:
        text = repr(value)
        if len(text) > MAX_PROGRAM_NAME:
            text = f"{text[:MAX_PROGRAM_NAME]}..."
        raise ProtocolError(f"{what.format(least, most)}, not {text}")


@dataclass(frozen=True, slots=True)
class Request:
    """What a client wants.

    Attributes:
        action: What the program should do.
        workers: For ``"resize"``, the number of workers.
        now: For ``"stop"``, whether open connections are cut off.
        slot: Whose worker is meant; ``None`` for all, which cannot be killed.
        job: For ``"stacks"``, the only job that is meant.
        every: For ``"watch"``, the seconds between two lines.
        jobs: For ``"watch"``, how many ended jobs a line may tell of.
        seconds: For ``"profile"``, how long it takes.
        function: For ``"profile"``, the only function that is meant.
    """

    action: str
    workers: int | None = None
    now: bool = False
    slot: int | None = None
    job: int | None = None
    every: float = 1.0
    jobs: int = 0
    seconds: float = 5.0
    function: str | None = None

    def pack(self) -> bytes:
        """Return the line."""
        fields = {name: getattr(self, name) for name in ACTIONS[self.action]}
        return json.dumps({"action": self.action, **fields}).encode() + b"\n"

    @classmethod
    def unpack(cls, line: bytes) -> Request:
        """Read a line.

        Raises:
            ProtocolError: If it is no valid request.  The error says why.
        """
        fields = unpack_line(line, MAX_REQUEST)
        action: Any = fields.pop("action", None)
        if type(action) is not str or action not in ACTIONS:
            raise ProtocolError(f"there is no action {action!r}")
        for name, value in [*fields.items()]:
            if name in ACTIONS[action]:
                if value is not None or name not in _OPTIONAL:
                    _check(name, value)
            elif value is None or value is False:  # as older clients send
                del fields[name]
            else:
                raise ProtocolError(f"{action} takes no {name!r}")
        request = cls(action, **fields)
        if action == "resize":
            _check("workers", request.workers)
        if action == "kill" and request.slot is None:
            raise ProtocolError("kill takes the slot of one worker")
        if request.slot is not None and request.job is not None:
            raise ProtocolError("stacks takes a slot or a job, not both")
        return request


def pack_reply(reply: dict[str, Any]) -> bytes:
    """Return the line of an answer; an answer that is too long becomes an error."""
    line = json.dumps(reply, default=fields_of).encode() + b"\n"
    if len(line) > MAX_REPLY:
        return pack_reply({"error": f"the answer has {len(line)} bytes, too many"})
    return line


def fields_of(record: Any) -> Any:
    """Return the fields of a record by their names, or anything else as something that JSON has.

    These are not copied, as by ``dataclasses.asdict``: for the histograms of a pool with 200
    functions that takes 30 ms.
    """
    if is_dataclass(record):
        kind: Any = type(record)
        return {name: getattr(record, name) for name in _names(kind)}
    return dict(record) if isinstance(record, Mapping) else repr(record)


# To ask a record for its fields takes longer than to read them.
@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def unpack_line(line: bytes, most: int = MAX_REPLY) -> dict[str, Any]:
    """Read a line: an answer, whose ``"error"`` says what went wrong, or a request.

    Raises:
        ProtocolError: If it is no valid one, or has more than *most* bytes.
    """
    if len(line) > most or not line.endswith(b"\n"):
        raise ProtocolError("a line of the control socket is cut off or too long")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a line of the control socket is no JSON") from error
    if not isinstance(fields, dict):
        raise ProtocolError("a line of the control socket is no JSON object")
    return fields
