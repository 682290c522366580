"""The messages on the control socket of a pool or a cluster.

Each line is one JSON object.  A client asks and the program answers, in turns; after
``"watch"`` the program goes on with one line after the other, until the client goes.  A
connection that stays open is closed when the pool, or the cluster's process, ends.  So a
client that has asked a cluster to stop can wait for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from asyncpool._core.options import MAX_WORKERS
from asyncpool._wire.text import MAX_PROGRAM_NAME
from asyncpool.errors import ProtocolError

Action = Literal[
    "status",
    "watch",
    "stacks",
    "profile",
    "kill",
    "recycle",
    "resize",
    "reload",
    "stop",
]

# What changes nothing, and is given up if the client leaves before the answer.
QUESTIONS: frozenset[Action] = frozenset(("status", "stacks", "profile"))

# The most bytes of a line, with its end.
MAX_REQUEST = 4096
MAX_REPLY = 1 << 24

MAX_JOBS = 1000
_MAX_SLOT = 1 << 16
_MAX_JOB = 1 << 63

# Seconds: how often a client that watches gets a line, and how long a profile may take.
SHORTEST, LONGEST = 0.1, 60.0
LONGEST_PROFILE = 600.0

_MAX_FUNCTION = 1000
# What each action is told besides.
_FIELDS: dict[str, tuple[str, ...]] = {
    "status": (),
    "watch": ("every", "jobs"),
    "stacks": ("slot", "job"),
    "profile": ("seconds", "slot", "function"),
    "kill": ("slot",),
    "recycle": ("slot",),
    "resize": ("workers",),
    "reload": (),
    "stop": ("now",),
}


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

    action: Action
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
        fields = {name: getattr(self, name) for name in _FIELDS[self.action]}
        return json.dumps({"action": self.action, **fields}).encode() + b"\n"

    @classmethod
    def unpack(cls, line: bytes) -> Request:
        """Read a line.

        Raises:
            ProtocolError: If it is no valid request.  The error says why.
        """
        fields = _unpack(line, MAX_REQUEST)
        action: Any = fields.pop("action", None)
        if action not in get_args(Action):
            raise ProtocolError(f"there is no action {action!r}")
        found: dict[str, Any] = {}
        for name, value in fields.items():
            if name in _FIELDS[action]:
                _CHECKS[name](value)
                found[name] = value
            elif value is not None and value is not False:  # as older clients send
                raise ProtocolError(f"{action} takes no {name!r}")
        request = cls(action, **found)
        request._check_whole()
        return request

    def _check_whole(self) -> None:
        """Check what no field says by itself.

        Raises:
            ProtocolError: If a field is missing, or two do not go together.
        """
        if self.action == "resize":
            _check_workers(self.workers)
        if self.action == "kill" and self.slot is None:
            raise ProtocolError("kill takes the slot of one worker")
        if self.slot is not None and self.job is not None:
            raise ProtocolError("stacks takes a slot or a job, not both")


def _check_workers(value: object) -> None:
    # True is an int in Python, too.
    if type(value) is not int or not 1 <= value <= MAX_WORKERS:
        raise ProtocolError(f"there may be 1 to {MAX_WORKERS} workers, not {value!r}")


def _check_now(value: object) -> None:
    if type(value) is not bool:
        raise ProtocolError(f"now is true or false, not {value!r}")


def _check_function(value: object) -> None:
    if value is None:
        return
    if type(value) is not str or not 0 < len(value) <= _MAX_FUNCTION:
        raise ProtocolError(
            f"function is a name of at most {_MAX_FUNCTION} characters, or null"
        )


def _whole(
    name: str, least: int, most: int, *, optional: bool
) -> Callable[[object], None]:
    """Return the check of an int within bounds."""

    def check(value: object) -> None:
        if value is None and optional:
            return
        if type(value) is not int or not least <= value <= most:
            shown = str(most) if most < _MAX_JOB else "2**63"
            raise ProtocolError(f"{name} is {least} to {shown}, not {_brief(value)}")

    return check


def _seconds(name: str, most: float) -> Callable[[object], None]:
    """Return the check of a number of seconds within bounds."""

    def check(value: object) -> None:
        if type(value) not in {int, float} or not SHORTEST <= value <= most:  # type: ignore[operator]
            raise ProtocolError(
                f"{name} is {SHORTEST:g} to {most:g} seconds, not {_brief(value)}"
            )

    return check


_CHECKS: dict[str, Callable[[object], None]] = {
    "workers": _check_workers,
    "now": _check_now,
    "slot": _whole("slot", 0, _MAX_SLOT, optional=True),
    "job": _whole("job", 1, _MAX_JOB, optional=True),
    "every": _seconds("every", LONGEST),
    "jobs": _whole("jobs", 0, MAX_JOBS, optional=False),
    "seconds": _seconds("seconds", LONGEST_PROFILE),
    "function": _check_function,
}


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_PROGRAM_NAME else f"{text[:MAX_PROGRAM_NAME]}..."


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
