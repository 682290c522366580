"""The options of jobs as a client writes them for an agent, and as the agent reads them.

A client decides by itself about attempts and about which job is next.  So an agent gets what
its pool has to enforce, and no more.  ``tests/runtime/test_written_options.py`` says of each
option what becomes of it.

The options of jobs are written once for many jobs.  What is left of a job's own time,
*deadline* and *queue_timeout*, comes with each job.  A call that is for one worker, or for
every worker, has all of its limits with it.  A deadline is written as the time that is left:
the clocks of two machines differ.
"""

from __future__ import annotations

import json
from typing import Any

from asyncpool._core.base.job_traits import SessionTraits
from asyncpool._core.policies.job_options import JobLimits, JobOptions, Keeper
from asyncpool.errors import ProtocolError


def write_options(options: JobOptions) -> bytes:
    """Return what an agent has to know of the options of jobs."""
    told: dict[str, Any] = {"limits": _write_usual(options.limits)}
    if options.via != "submit":
        told["via"] = options.via
    if options.key is not None:
        told["key"] = options.key
    if options.via == "stream":
        told["prefetch"] = options.prefetch
    if options.bound is not None:
        told["session"] = options.bound.session
    if options.lease is not None:
        told["leased"] = True
    return json.dumps(told).encode()


def read_options(written: bytes, keeper: Keeper, codec: Any) -> JobOptions:
    """Return the options of a client's jobs.

    Args:
        written: What :func:`write_options` has returned.
        keeper: Keeps the leases of the client's jobs.
        codec: What serializes them at the agent.

    Raises:
        ProtocolError: If the key is none.
        LookupError: If something is missing; or ValueError, TypeError for a value that is wrong.
    """
    told = json.loads(written)
    key, session = told.get("key"), told.get("session")
    if key is not None and type(key) is not int:
        raise ProtocolError(f"the client sent a key of type {type(key).__name__}")
    return JobOptions(
        limits=JobLimits(**told["limits"]),
        key=key,
        codec=codec,
        via=told.get("via", "submit"),
        prefetch=told.get("prefetch", 1),
        bound=None if session is None else SessionTraits(session),
        lease=(keeper, 0) if told.get("leased") else None,
    )


def write_limits(limits: JobLimits, now: float) -> dict[str, Any]:
    """Return all limits of a call, for an agent that has another clock."""
    deadline = limits.deadline
    return {
        **_write_usual(limits),
        "queue_timeout": limits.queue_timeout,
        "left": None if deadline is None else deadline - now,
    }


def read_limits(told: dict[str, Any], now: float) -> JobLimits:
    """Return the limits that :func:`write_limits` has written, on this loop's clock.

    Raises:
        LookupError: If something is missing; or ValueError, TypeError for a value that is wrong.
    """
    others = dict(told)
    left = others.pop("left")
    return JobLimits(deadline=None if left is None else now + left, **others)


def _write_usual(limits: JobLimits) -> dict[str, Any]:
    return {
        "timeout": limits.timeout,
        "heartbeat_timeout": limits.heartbeat_timeout,
        "on_cancel": limits.on_cancel,
        "cancel_grace": limits.cancel_grace,
    }
