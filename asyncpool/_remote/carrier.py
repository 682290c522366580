"""What moves batches between a client and an agent, and the greeting of both."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any, Protocol

from asyncpool._remote.borrowed_memory import BorrowedMemory
from asyncpool._remote.lent_memory import LentMemory
from asyncpool._remote.reliable_link import ReliableLink

# For how many seconds an agent works for a client that it does not hear, by default.  A program
# that computes in its event loop is silent for that long, and is not gone.
LEASE = 60.0

# By default a client gives an agent up that it has not heard for so many times as long.
_PATIENCE = 1.5

# How often in that time each end says something, if it has nothing to say.
_BEATS = 8

# But not more often than so many seconds, if the time is very short.
_SHORTEST_BEAT = 0.001

# The largest number of a session or a time that a batch can have.
_MOST = (1 << 64) - 1

# The most bytes of a greeting.
MAX_GREETING = 1 << 16


def beat_every(lease: float) -> float:
    """Return how many seconds an end may be silent."""
    return max(lease / _BEATS, _SHORTEST_BEAT)


def node_timeout(lease: float) -> float:
    """Return after how many seconds a client gives an agent up, by default."""
    return lease * _PATIENCE


def ignore(_: Exception | None = None) -> None:
    """Do nothing, in place of who hears that the other end is gone."""


class Carrier(Protocol):
    """One end of a way between a client and an agent; it moves bytes and reads none.

    Attributes:
        on_bytes: Called with what has come.
        on_gone: Called once when the other process is surely dead, or has ended the session; with
            what it has done wrong, or what the system says of it, if that is why.
        loses: Whether batches may be lost, so that they must be repeated.
        process: The other process, if it is on this machine and the system says which it is.
        lent: Memory for large buffers that go to the other end, if the carrier has such.
        borrowed: Likewise for those that come.
    """

    on_bytes: Callable[[bytes], None]
    on_gone: Callable[[Exception | None], object]
    loses: bool
    process: int | None
    lent: LentMemory | None
    borrowed: BorrowedMemory | None

    def allow(self, limit: int) -> None:
        """Let a piece that comes have *limit* bytes from now on, and not only a greeting's."""
        ...

    def send(self, data: bytes) -> None:
        """Send bytes, which arrive as one piece or not at all."""
        ...

    def close(self) -> None:
        """Send no more, and let the other end know if it can be known; it gets what was sent."""
        ...

    def abort(self) -> None:
        """Do the same, and drop what is still to be sent."""
        ...


def greeting(version: str, codec: str) -> dict[str, Any]:
    """Return what both ends must have in common."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {"asyncpool": version, "python": python, "codec": codec}


def pack_greeting(what: dict[str, Any]) -> bytes:
    """Return the first bytes that an end sends."""
    return json.dumps(what).encode()


def unpack_greeting(data: bytes) -> dict[str, Any]:
    """Read them; an empty greeting stands for bytes that are none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def difference(here: dict[str, Any], there: dict[str, Any]) -> str:
    """Return in what the other end differs so that the two cannot work together, or nothing."""
    for name, what in (
        ("asyncpool", "asyncpool"),
        ("python", "Python"),
        ("codec", "the codec"),
    ):
        if here[name] != there.get(name):
            return (
                f"the agent has {what} {here[name]}, and the client {there.get(name)}: "
                "both need the same"
            )
    return ""


# What an agent tells about itself, and of which type that is.
_TOLD: dict[str, type] = {
    "session": int,
    "node": str,
    "credits": int,
    "lanes": int,
    "stamp": int,
    "page": int,
    "lease": float,
    "fresh": bool,
    "counts_jobs": bool,
}


def flaw(about: dict[str, Any]) -> str:
    """Return what is wrong with the greeting of an agent, or nothing."""
    if "refused" in about:
        return str(about["refused"])[:1000]
    for name, kind in _TOLD.items():
        value = about.get(name)
        if type(value) is not kind or (kind is not str and not value >= 0):  # type: ignore[operator]
            return "it does not answer as an agent does"
    # What a batch has no room for would fail with each batch, and not here.
    fits = max(about["session"], about["stamp"]) <= _MOST
    if not (fits and 0 < about["lease"] < math.inf and about["credits"] > 0):
        return "it does not answer as an agent does"
    return ""


def send_new(carrier: Carrier, link: ReliableLink, stamp: int = 0) -> None:
    """Send the messages that were put into *link*; *stamp* is the agent's time."""
    while link.unsent or link.owes:
        carrier.send(link.next_batch(stamp).pack())


def send_beat(carrier: Carrier, link: ReliableLink, stamp: int = 0) -> None:
    """Show the other end that this one is alive, and send again what may be lost."""
    again = carrier.loses and link.unacknowledged
    batch = link.repeat(stamp) if again else link.next_batch(stamp)
    carrier.send(batch.pack())
