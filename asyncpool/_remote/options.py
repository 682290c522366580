"""The options of a job, as a client writes them for an agent, and as the agent reads them.

The client decides by most of them itself, about its queue and about attempts.  What the agent's
pool has to know, it writes here, in one form for both that an agent's pool runs for a client:

- *Jobs.*  Many have the same options, so those are sent once, and name no time: what is left until
  the deadline, and for how long the job may wait, comes with each job.
- *Calls that the client does not watch*: those of a broadcast.  Their options go with the question
  that asks for them, with all limits.

An agent does not believe its clients, so the reading functions check everything.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from asyncpool._core.functions import SessionTraits
from asyncpool._core.options import CHECKS, JobOptions, Keeper, changed
from asyncpool.errors import ProtocolError

# Those that the client enforces for jobs: it sends what is left of them.
_WAITS = frozenset({"queue_timeout", "deadline"})
# Those that it decides by alone, or tells in another way.  Agents are told all others.
_OWN = {"max_attempts", "retry_on", "priority", "key", "lease", "prefetch", "codec"}
_LIMITS = tuple(name for name in CHECKS if name not in _OWN)

# A call that the client does not watch has nothing but limits.
_NAMES = frozenset({"limits", "via", "key", "prefetch", "session", "leased"})

# Hashes are smaller.
_MOST_KEY = 1 << 64


def write_options(options: JobOptions, now: float | None = None) -> dict[str, Any]:
    """Return what an agent has to know of *options*; the client decides about the rest.

    Args:
        options: The options.
        now: The time, for a call that the client does not watch; ``None`` for jobs.
    """
    limits = {name: getattr(options, name) for name in _LIMITS}
    if now is None:
        for name in _WAITS:
            del limits[name]
    elif limits["deadline"] is not None:
        limits["deadline"] -= now  # the agent's clock may be another one
    told: dict[str, Any] = {"limits": limits}
    if options.via != "submit":
        told["via"] = options.via
    if options.key is not None:
        told["key"] = options.key
    if options.via == "stream":
        told["prefetch"] = options.prefetch
    if options.session is not None:
        told["session"] = options.session.session
    if options.lease is not None:
        told["leased"] = True
    return told


def read_options(told: Any, keeper: Keeper, codec: Any = None) -> JobOptions:
    """Return the options of jobs, of which :func:`write_options` has told.

    Args:
        told: What it has returned.
        keeper: The agent's own, for jobs with a lease.
        codec: What serializes them there.

    Raises:
        ProtocolError: If it has returned no such thing.
        ValueError: If a value is out of range; changed() checks those.
        TypeError: If a value has the wrong type.
    """
    about = _checked(told, _NAMES)
    session = _whole("session", about.get("session"))
    options = JobOptions(
        key=_whole("key", about.get("key")),
        via=about.get("via", "submit"),
        session=None if session is None else SessionTraits(session),
        lease=(keeper, 0) if about.get("leased") else None,
        codec=codec,
    )
    prefetch = about.get("prefetch", 1)
    return changed(options, {"prefetch": prefetch, **_limits(about, None)})


def read_call(told: Any, now: float) -> JobOptions:
    """Return the options of a call that its client does not watch.

    Args:
        told: What :func:`write_options` has returned.
        now: The agent's time.

    Raises:
        ProtocolError: If :func:`write_options` has returned no such thing for such a call.
        ValueError: If a value is out of range.
        TypeError: If a value has the wrong type.
    """
    return changed(JobOptions(), _limits(_checked(told, {"limits"}), now))


def _checked(told: Any, names: AbstractSet[str]) -> dict[str, Any]:
    about: dict[str, Any] = told if isinstance(told, dict) else {}
    limits = about.get("limits")
    if not isinstance(limits, dict):
        raise ProtocolError("a client sent options without limits")
    wrong = sorted((about.keys() - names) | (limits.keys() - _LIMITS))
    if wrong:
        raise ProtocolError(f"a client sent options with {wrong[0]!r:.40}")
    return about


def _limits(told: dict[str, Any], now: float | None) -> dict[str, Any]:
    limits = {name: _number(value) for name, value in told["limits"].items()}
    if now is None:
        if not _WAITS.isdisjoint(limits):
            raise ProtocolError("a client sent the time of one job for many")
    elif isinstance(limits.get("deadline"), float):
        limits["deadline"] += now
    return limits


def _number(value: Any) -> Any:
    """Return *value*, as a float if it is an int: JSON has ints that are too large for a clock."""
    try:
        return float(value) if type(value) is int else value
    except OverflowError:
        raise ProtocolError("a client sent a limit that is no time") from None


def _whole(name: str, value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise ProtocolError(f"the client sent a {name} of type {type(value).__name__}")
    if value is not None and abs(value) >= _MOST_KEY:
        raise ProtocolError(f"the client sent a {name} that is too large")
    return value
